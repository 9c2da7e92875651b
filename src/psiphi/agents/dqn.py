"""Deep Q-learning (DQN; Mnih et al. 2015): replay, a target network, n-step returns, optionally double Q-learning.

With `bc_weight` it is DQN+BC-aux: one further head per demonstrator on the same torso, which is trained to clone it and never acts. What a
next state is worth (`Backup`) and the batch are arguments of `learn`, so that soft Q-learning on other rewards (SQIL) is this file's code.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float, Int

from psiphi import configs, losses, optim, replay
from psiphi.agents import bc
from psiphi.configs import BatchSize, Count, Few, Layers, Number, Positive, Share, Weight, Width
from psiphi.errors import UserError
from psiphi.nets import ActionNet, TorsoName
from psiphi.replay import Experience
from psiphi.spaces import Range
from psiphi.types import Agent, Demonstration, Demos, EnvSpec, Metrics, Pace, Transition

Backup = Callable[[ActionNet, ActionNet, Array], Array]
"""``backup(net, target, next_obs[B]) -> value[B]``: what it is worth to be there next."""


@dataclass(frozen=True)
class DQNConfig:
    """The default is what learned fastest on CoinGrid; `paper()` is the column of hyperparameters that the PsiPhi paper tuned on DQN."""

    torso: TorsoName = "auto"
    """What reads the observation."""
    torso_hidden: Layers = (256, 256)
    """Dense layers of the torso."""
    head_hidden: tuple[Width, ...] = (128,)
    """Hidden layers between the torso and the values, and of each cloning head."""
    gamma: Share = 0.9
    """Discount factor."""
    reward_offset: float = 0.0
    """Taken off every reward before anything is learned from it; see `PsiPhiConfig.reward_offset`."""
    n_step: Few = 1
    """Steps of reward before the target bootstraps; not corrected for who acted."""
    double: bool = True
    """The network chooses the next action and the target says what it is worth; off: the target does both."""
    huber: Weight = 0.0
    """Errors beyond this count linearly; 0: all are squared."""
    learning_rate: Positive = 2e-3
    """Adam's rate."""
    cosine: bool = False
    """The rate falls along a cosine over the run's updates."""
    clip: Weight = 10.0
    """Clip the gradient's global norm; 0: don't."""
    batch: BatchSize = 64
    """The agent's own transitions per update."""
    replay_size: Count = 40_000
    """How many of them are remembered."""
    epsilon_start: Share = 1.0
    """Share of random actions at first."""
    epsilon_end: Share = 0.05
    """Share of random actions in the end."""
    epsilon_steps: Number = 2_000
    """Environment steps, summed over the environments, in which the one falls to the other along a line."""
    ema: Share = 0.05
    """The target, which is also the network that is judged, follows by a moving average at this rate; 0: periodic copies."""
    target_period: Count = 1_000
    """Updates between copies where `ema` is 0; then the last network is judged."""
    mirror: bool = True
    """Show half of each batch through the environment's symmetry, if it declares one."""
    bc_weight: Weight = 0.0
    """Weight of cloning the demonstrators on the shared torso (BC-aux); 0: plain DQN, which needs no demonstrations."""
    bc_batch: BatchSize = 64
    """Demonstrated steps per demonstrator and update for that."""

    GONE = configs.RUN_FACTS

    def __post_init__(self):
        configs.check(self)


SPACE = {
    "learning_rate": Range(2e-4, 2e-2, log=True),
    "gamma": Range(0.85, 0.99),
    "epsilon_end": Range(0.005, 0.2, log=True),
    "ema": Range(0.005, 0.2, log=True),
    "clip": Range(0.5, 50.0, log=True),
}
"""Where `psiphi tune` looks."""


def paper(config: DQNConfig = DQNConfig()) -> DQNConfig:  # noqa: B008 - a frozen value
    """The CoinGrid column of the PsiPhi paper's table of hyperparameters, which it tuned on DQN; exploration is not printed there."""
    return replace(
        config, torso="impala-shallow", torso_hidden=(256,), head_hidden=(512, 256), gamma=0.9, n_step=8, double=False, huber=0.0,
        learning_rate=1e-4, cosine=False, clip=0.0, batch=64, ema=0.0, target_period=1_000, mirror=False,
    )  # fmt: skip


class State(NamedTuple):
    """The two networks, the optimiser, and what is remembered."""

    net: ActionNet
    target: ActionNet
    optimiser: Any
    demos: Demos | None
    experience: Any
    env_steps: Array
    """Environment steps seen, summed over the environments."""
    count: Array


# --- What is learned -----------------------------------------------------------------------------------------------------


def hard_backup(net: ActionNet, target: ActionNet, next_obs: Array) -> Float[Array, " B"]:
    """The target's best value."""
    del net
    return jax.vmap(losses.hard_value)(target(next_obs))


def double_backup(net: ActionNet, target: ActionNet, next_obs: Array) -> Float[Array, " B"]:
    """The target's value of the action that the network prefers."""
    return jax.vmap(losses.double_value)(net(next_obs), target(next_obs))


def td_loss(net: ActionNet, target: ActionNet, batch: Transition, backup: Backup, huber: float = 0.0) -> tuple[Array, Metrics]:
    """Mean squared (or Huber) Bellman error on transitions ``[B]`` whose `discount` already holds gamma, as `replay.n_step` leaves them."""
    q = jnp.take_along_axis(net(batch.obs), batch.action[:, None], axis=1)[:, 0]
    error = jax.vmap(losses.bellman)(q, batch.reward, batch.discount, backup(net, target, batch.next_obs))
    loss = jnp.mean(jax.vmap(partial(losses.huber, knee=huber) if huber else losses.squared)(error))
    return loss, {"loss": loss, "q": jnp.mean(q)}


def cloning_loss(net: ActionNet, demo: Demonstration, shown: Array) -> tuple[Array, Metrics]:
    """BC-aux: mean surprise of each demonstrator's own head at its own steps ``[K, B]``, over those who have `shown` any."""
    scores = net.clones(demo.obs)
    hit = jnp.argmax(scores, axis=-1) == demo.action
    loss = bc.surprise(scores, demo.action, shown)
    return loss, {"clone_loss": loss, "clone_accuracy": bc.over_demonstrators(hit, shown)}


def learn(
    config: DQNConfig,
    optimiser: optax.GradientTransformation,
    state: State,
    batch: Transition,
    backup: Backup,
    clone: tuple[Demonstration, Array] | None = None,
) -> tuple[State, Metrics]:
    """One step on a batch from wherever, with whatever backup, and on `clone`: demonstrations and who has shown any."""

    def total(net: ActionNet) -> tuple[Array, Metrics]:
        loss, metrics = td_loss(net, state.target, batch, backup, config.huber)
        if clone is None:
            return loss, metrics
        clone_loss, clone_metrics = cloning_loss(net, *clone)
        return loss + config.bc_weight * clone_loss, metrics | clone_metrics

    gradients, metrics = jax.grad(total, has_aux=True)(state.net)
    net, optimiser_state = optim.step(optimiser, gradients, state.optimiser, state.net)
    count = state.count + 1
    followed = configs.on(config.ema)
    target = optim.follow(state.target, net, config.ema) if followed else optim.refresh(state.target, net, count, config.target_period)
    return state._replace(net=net, target=target, optimiser=optimiser_state, count=count), metrics


# --- The parts of the agent ----------------------------------------------------------------------------------------------


def check(config: DQNConfig, num_demonstrators: int = 0) -> None:
    """Refuse what cannot be done."""
    if config.bc_weight and not num_demonstrators:
        raise UserError(f"bc_weight is {config.bc_weight}, but there is no demonstrator to clone; set it to 0 or bring demonstrations.")


def initial_net(config: DQNConfig, spec: EnvSpec, num_demonstrators: int, key: Array) -> ActionNet:
    """An untrained network; it has cloning heads if the config gives them a weight."""
    return ActionNet(
        spec,
        torso_name=config.torso,
        torso_hidden=config.torso_hidden,
        head_hidden=config.head_hidden,
        clones=num_demonstrators if config.bc_weight else 0,
        key=key,
    )


def deployed(config: DQNConfig, state: State) -> ActionNet:
    """The network to judge: the moving average where there is one."""
    return state.target if configs.on(config.ema) else state.net


def make_optimiser(config: DQNConfig, pace: Pace) -> optax.GradientTransformation:
    return optim.adam(config.learning_rate, clip=config.clip, cosine_steps=pace.updates if config.cosine else 0)


def make_experience(config: DQNConfig, pace: Pace, spec: EnvSpec | None = None) -> Experience:
    return replay.make_experience(num_envs=pace.num_envs, size=config.replay_size, batch=config.batch, n_step=config.n_step, spec=spec)


def sample(config: DQNConfig, spec: EnvSpec, experience: Experience, state: State, key: Array) -> Transition:
    """A batch of the agent's own n-step transitions."""
    sample_key, mirror_key = jax.random.split(key)
    sequence = experience.sample(state.experience, sample_key).experience
    batch = replay.n_step(sequence._replace(reward=sequence.reward - config.reward_offset), config.gamma)
    batch = replay.look_up(state.experience, batch)
    return replay.mirror(spec, batch, mirror_key) if config.mirror else batch


def sample_clone(config: DQNConfig, spec: EnvSpec, demos: Demos, key: Array) -> tuple[Demonstration, Array]:
    """Steps ``[K, B]`` of the demonstrators to clone, and who has shown any."""
    sample_key, mirror_key = jax.random.split(key)
    demo = replay.sample_demonstrations(demos, sample_key, config.bc_batch)
    return replay.mirror_demonstrations(spec, demo, mirror_key) if config.mirror else demo, replay.has_shown(demos)


def epsilon(config: DQNConfig, env_steps: Array) -> Array:
    """The share of random actions after so many steps."""
    fallen = jnp.clip(env_steps / max(config.epsilon_steps, 1), 0, 1)
    return config.epsilon_start + fallen * (config.epsilon_end - config.epsilon_start)


def explore(config: DQNConfig, state: State, action: Int[Array, " N"], num_actions: int, key: Array) -> Int[Array, " N"]:
    """`action`, or with probability epsilon any."""
    whether_key, which_key = jax.random.split(key)
    anything = jax.random.randint(which_key, action.shape, 0, num_actions)
    return jnp.where(jax.random.bernoulli(whether_key, epsilon(config, state.env_steps), action.shape), anything, action)


def make(config: DQNConfig, spec: EnvSpec, num_demonstrators: int, pace: Pace) -> Agent:
    """DQN as an agent: it acts epsilon-greedily by its network and is judged greedily by `deployed`.

    The loop must have collected `n_step` steps of each environment before the first update.
    """
    check(config, num_demonstrators)
    optimiser, experience = make_optimiser(config, pace), make_experience(config, pace, spec)
    backup = double_backup if config.double else hard_backup

    def init(key: Array, demos: Demos | None) -> State:
        if config.bc_weight:
            replay.check_shapes(demos, spec, num_demonstrators=num_demonstrators)
        net = initial_net(config, spec, num_demonstrators, key)
        zero = jnp.zeros((), jnp.int32)
        memory = experience.init(replay.blank_transition(spec))
        return State(net, net, optim.start(optimiser, net), demos if config.bc_weight else None, memory, zero, zero)

    def act(state: State, obs: Array, key: Array) -> Array:
        return explore(config, state, jnp.argmax(state.net(obs), axis=-1), spec.num_actions, key)

    def observe(state: State, rollout: Transition) -> State:
        memory = replay.remember(experience, state.experience, rollout)
        return state._replace(experience=memory, env_steps=state.env_steps + rollout.reward.size)

    def update(state: State, key: Array) -> tuple[State, Metrics]:
        batch_key, clone_key = jax.random.split(key)
        clone = None if state.demos is None else sample_clone(config, spec, state.demos, clone_key)
        return learn(config, optimiser, state, sample(config, spec, experience, state, batch_key), backup, clone)

    def policy(state: State, obs: Array, key: Array) -> Array:
        del key
        return jnp.argmax(deployed(config, state)(obs), axis=-1)

    return Agent(init, act, observe, update, policy)
