"""Proximal policy optimisation (PPO, Schulman et al. 2017), and PPO+BC-aux: the same on a torso that must also tell demonstrators' actions.

On-policy: `observe` keeps the last rollout only and notes, with the network that acted, how likely its actions were and what its states
were worth; `update` is the whole of PPO's update, several epochs of minibatches. So a rollout needs no fields that other agents' have not.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float

from psiphi import configs, gpi, losses, optim, replay
from psiphi.agents import bc
from psiphi.configs import BatchSize, Count, Layers, Positive, Share, Weight, Width
from psiphi.errors import UserError
from psiphi.nets import MLP, ActionNet, Torso, TorsoName, torso
from psiphi.spaces import Range
from psiphi.types import Agent, Demonstration, Demos, EnvSpec, Metrics, Pace, Transition


@dataclass(frozen=True)
class PPOConfig:
    """The default is what works best on CoinGrid."""

    torso: TorsoName = "auto"
    """What reads the observation."""
    torso_hidden: Layers = (256, 256)
    """Dense layers of the torso."""
    head_hidden: tuple[Width, ...] = ()
    """Hidden layers between the torso and the logits, and between the torso and the value."""
    share_torso: bool = False
    """Whether the value reads the policy's torso or has one of its own."""
    gamma: Share = 0.9
    """Discount factor."""
    lambda_: Share = 0.95
    """Of generalised advantage estimation: 0 trusts the value after one step, 1 only where the rollout or the episode ends."""
    rollout_length: Count = 32
    """Steps of each environment per update, T; the loop's number."""
    epochs: Count = 4
    """Times that an update goes through the rollout."""
    minibatches: Count = 4
    """Gradient steps per epoch."""
    clip_ratio: Weight = 0.2
    """How far, as a ratio, an update may move an action's probability and still gain by it."""
    learning_rate: Positive = 1e-3
    """Adam's rate at the first update."""
    decay: Literal["constant", "linear", "cosine"] = "linear"
    """How the rate falls to 0 over the run's updates, that is over its rollouts, if it does."""
    clip: Weight = 0.5
    """Clip the gradient's global norm; 0: don't."""
    entropy: Weight = 0.01
    """Weight of the policy's entropy, which is rewarded."""
    value_weight: Weight = 0.5
    """Weight of the squared error of the value."""
    value_clip: Weight = 0.0
    """How far an update may move a value and still gain by it; 0: any distance."""
    normalise: bool = True
    """Whether the advantages of a rollout are brought to mean 0 and variance 1."""
    bc_weight: Weight = 0.0
    """Weight of cloning each demonstrator by a head of its own on the policy's torso (PPO+BC-aux); 0: plain PPO, without demonstrations."""
    bc_batch: BatchSize = 64
    """Demonstrated steps per demonstrator and gradient step for the above."""
    mirror: bool = True
    """Show half of each batch of demonstrations through the environment's symmetry, if it declares one. Never the ego's own steps: its
    policy need not be symmetric, so the mirrored action is not one that it drew, nor need the ego's reward be symmetric."""
    temperature: Weight = 0.0
    """When it is judged it draws its actions from softmax(logits / temperature); 0: it takes the likeliest. While it learns it is 1."""

    GONE = configs.RUN_FACTS

    def __post_init__(self):
        configs.check(self)


SPACE = {
    "learning_rate": Range(1e-4, 1e-2, log=True),
    "gamma": Range(0.85, 0.99),
    "lambda_": Range(0.8, 0.99),
    "clip_ratio": Range(0.05, 0.4, log=True),
    "entropy": Range(1e-4, 0.1, log=True),
    "value_weight": Range(0.1, 2.0, log=True),
}
"""Where `psiphi tune` looks."""


class ActorCritic(eqx.Module):
    """The policy (with a cloning head per demonstrator, if any) and the value; `value_torso` is None where the value reads the policy's."""

    policy: ActionNet
    value_torso: Torso | None
    value_head: MLP

    def __call__(self, obs: Array) -> tuple[Float[Array, "B A"], Float[Array, " B"]]:
        """Logits and values."""
        features = self.policy.torso(obs)
        mine = features if self.value_torso is None else self.value_torso(obs)
        return self.policy.head(features), self.value_head(mine)[:, 0]

    def value(self, obs: Array) -> Float[Array, " B"]:
        return self(obs)[1]


class Behaviour(NamedTuple):
    """What the network that acted thought of its rollout ``[T, N]``."""

    log_policy: Array
    value: Array
    next_value: Array


class State(NamedTuple):
    """The network and the last rollout; `demos` is None where no demonstrator is cloned."""

    net: ActorCritic
    optimiser: Any
    rollout: Transition
    behaviour: Behaviour
    demos: Demos | None
    count: Array


class Batch(NamedTuple):
    """Steps to learn from ``[B]``: what was done, how likely it was, and what came of it."""

    obs: Array
    action: Array
    log_policy: Array
    value: Array
    advantage: Array
    target: Array


# --- The network ---------------------------------------------------------------------------------------------------------


def initial_net(config: PPOConfig, spec: EnvSpec, num_demonstrators: int, key: Array) -> ActorCritic:
    """An untrained network of nearly uniform actions; it has cloning heads if the config gives them a weight."""
    policy_key, torso_key, value_key = jax.random.split(key, 3)
    policy = ActionNet(
        spec,
        torso_name=config.torso,
        torso_hidden=config.torso_hidden,
        head_hidden=config.head_hidden,
        clones=num_demonstrators if config.bc_weight else 0,
        last_scale=0.01,
        key=policy_key,
    )
    value_torso = None if config.share_torso else torso(config.torso, spec, config.torso_hidden, key=torso_key)
    return ActorCritic(policy, value_torso, MLP((config.torso_hidden[-1], *config.head_hidden, 1), key=value_key))


def deployed(config: PPOConfig, state: State) -> ActionNet:
    """The policy to use."""
    del config
    return state.net.policy


def from_cloned(net: ActorCritic, cloned: ActionNet) -> ActorCritic:
    """The network with the torso and the head of a cloned policy (`bc.of_demonstrator`); value and cloning heads stay as they are."""

    def acting(policy: ActionNet) -> tuple[Torso, MLP]:
        return policy.torso, policy.head

    mine, theirs = ([x.shape for x in jax.tree.leaves(acting(policy))] for policy in (net.policy, cloned))
    if jax.tree.structure(acting(net.policy)) != jax.tree.structure(acting(cloned)) or mine != theirs:
        raise UserError(f"the cloned policy has layers {theirs}, expected this agent's, {mine}.")
    return eqx.tree_at(lambda n: acting(n.policy), net, acting(cloned))


# --- What it learns from -------------------------------------------------------------------------------------------------


def flat(rollout: Any) -> Any:
    """A rollout ``[T, N]`` as a batch ``[T * N]``."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rollout)


def log_likelihood(logits: Float[Array, "B A"], action: Array) -> Float[Array, " B"]:
    return -jax.vmap(losses.cross_entropy)(logits, action)


def behaviour(net: ActorCritic, rollout: Transition) -> Behaviour:
    """What `net`, which must be the network that acted, thinks of a rollout; of pictures, one step of all environments after the other,
    as a whole rollout of them does not fit in a processor's cache."""

    def think(step: Transition) -> Behaviour:
        logits, value = net(step.obs)
        return Behaviour(log_likelihood(logits, step.action), value, net.value(step.next_obs))

    if replay.is_large(rollout.obs.shape[2:], rollout.obs.dtype):
        return jax.lax.map(think, rollout)
    return jax.tree.map(lambda x: x.reshape(rollout.action.shape), think(flat(rollout)))


def advantages(config: PPOConfig, rollout: Transition, thought: Behaviour) -> Float[Array, "T N"]:
    """Generalised advantage estimates, each environment's steps by themselves."""
    per_env = jax.vmap(losses.gae, (1, 1, 1, 1, 1, None), out_axes=1)
    discount = config.gamma * rollout.discount
    return per_env(rollout.reward, thought.value, thought.next_value, discount, rollout.last, config.lambda_)


def batch(config: PPOConfig, rollout: Transition, thought: Behaviour) -> Batch:
    """All that an update learns from. The value's target is the advantage before it is normalised plus the old value."""
    advantage = advantages(config, rollout, thought)
    target = advantage + thought.value
    if config.normalise:
        advantage = (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)
    return flat(Batch(rollout.obs, rollout.action, thought.log_policy, thought.value, advantage, target))


def minibatch_indices(config: PPOConfig, steps: int, key: Array) -> Array:
    """``[epochs * minibatches, B]``: each epoch goes through all steps once, in an order of its own."""
    orders = jax.vmap(lambda k: jax.random.permutation(k, steps))(jax.random.split(key, config.epochs))
    return orders.reshape(config.epochs * config.minibatches, -1)


# --- How it learns -------------------------------------------------------------------------------------------------------


def value_loss(config: PPOConfig, value: Array, mini: Batch) -> Array:
    if config.value_clip:
        return jnp.mean(jax.vmap(losses.clipped_value, (0, 0, 0, None))(value, mini.value, mini.target, config.value_clip))
    return jnp.mean(jax.vmap(losses.squared)(value - mini.target))


def policy_loss(config: PPOConfig, logits: Array, mini: Batch) -> tuple[Array, Metrics]:
    """The clipped surrogate; how far the policy has moved: the KL divergence's estimate (r - 1) - log r, and the share that is clipped."""
    log_policy = log_likelihood(logits, mini.action)
    surrogate = jax.vmap(losses.clipped_surrogate, (0, 0, 0, None))(log_policy, mini.log_policy, mini.advantage, config.clip_ratio)
    log_ratio = log_policy - mini.log_policy
    moved = jnp.abs(jnp.expm1(log_ratio)) > config.clip_ratio
    return jnp.mean(surrogate), {"kl": jnp.mean(jnp.expm1(log_ratio) - log_ratio), "clipped": jnp.mean(moved)}


def cloning_loss(net: ActorCritic, demo: Demonstration, shown: Array) -> tuple[Array, Metrics]:
    """BC-aux: mean surprise of each demonstrator's own head at its own steps ``[K, B]``, over those who have `shown` any."""
    scores = net.policy.clones(demo.obs)
    surprise = bc.surprise(scores, demo.action, shown)
    hit = jnp.argmax(scores, axis=-1) == demo.action
    return surprise, {"clone_loss": surprise, "clone_accuracy": bc.over_demonstrators(hit, shown)}


def loss(net: ActorCritic, mini: Batch, clone: tuple[Demonstration, Array] | None, config: PPOConfig) -> tuple[Array, Metrics]:
    """The weighted sum of all terms, and each of them; `clone`: demonstrations and who has shown any."""
    logits, value = net(mini.obs)
    surrogate, metrics = policy_loss(config, logits, mini)
    error = value_loss(config, value, mini)
    entropy = jnp.mean(jax.vmap(losses.entropy)(logits))
    total = surrogate + config.value_weight * error - config.entropy * entropy
    metrics = metrics | {"policy_loss": surrogate, "value_loss": error, "entropy": entropy}
    if clone is None:
        return total, metrics
    clone_loss, clone_metrics = cloning_loss(net, *clone)
    return total + config.bc_weight * clone_loss, metrics | clone_metrics


def make_optimiser(config: PPOConfig, pace: Pace) -> optax.GradientTransformation:
    """Adam with PPO's customary 1e-5 beside the root of the second moment; the schedule counts gradient steps."""
    steps = pace.updates * config.epochs * config.minibatches
    return optim.adam(
        config.learning_rate,
        clip=config.clip,
        eps=1e-5,
        cosine_steps=steps if config.decay == "cosine" else 0,
        final_fraction=0.0,
        linear_steps=steps if config.decay == "linear" else 0,
    )


def check(config: PPOConfig, num_demonstrators: int, pace: Pace) -> None:
    """Refuse what cannot be done."""
    steps = pace.num_envs * config.rollout_length
    if steps % config.minibatches:
        raise UserError(f"minibatches is {config.minibatches}, expected a divisor of num_envs * rollout_length, {steps}.")
    if config.bc_weight and not num_demonstrators:
        raise UserError(f"bc_weight is {config.bc_weight}, but there is no demonstrator to clone; set it to 0 or bring demonstrations.")


def sample_clone(config: PPOConfig, spec: EnvSpec, demos: Demos, key: Array) -> tuple[Demonstration, Array]:
    """Steps ``[K, B]`` of the demonstrators to clone, and who has shown any."""
    sample_key, mirror_key = jax.random.split(key)
    demo = replay.sample_demonstrations(demos, sample_key, config.bc_batch)
    return replay.mirror_demonstrations(spec, demo, mirror_key) if config.mirror else demo, replay.has_shown(demos)


def make(config: PPOConfig, spec: EnvSpec, num_demonstrators: int, pace: Pace) -> Agent:
    """PPO as an agent, to be updated once per rollout; the loop's `num_envs` is the pace's and its `rollout_length` the config's."""
    check(config, num_demonstrators, pace)
    optimiser = make_optimiser(config, pace)

    def init(key: Array, demos: Demos | None) -> State:
        cloned = replay.check_shapes(demos, spec, num_demonstrators=num_demonstrators) if config.bc_weight else None
        net = initial_net(config, spec, num_demonstrators, key)
        grid = (config.rollout_length, pace.num_envs)
        rollout = jax.tree.map(lambda x: jnp.zeros((*grid, *x.shape), x.dtype), replay.blank_transition(spec))
        nothing = Behaviour(jnp.zeros(grid), jnp.zeros(grid), jnp.zeros(grid))
        return State(net, optim.start(optimiser, net), rollout, nothing, cloned, jnp.zeros((), jnp.int32))

    def act(state: State, obs: Array, key: Array) -> Array:
        return gpi.draw(state.net.policy(obs), key, 1.0)

    def policy(state: State, obs: Array, key: Array) -> Array:
        return gpi.draw(deployed(config, state)(obs), key, config.temperature)

    def observe(state: State, rollout: Transition) -> State:
        found, expected = rollout.action.shape, state.rollout.action.shape
        if found != expected:
            raise UserError(
                f"PPO was shown a rollout of (steps, environments) {found}, expected {expected}, by its config and the run's pace."
            )
        return state._replace(rollout=rollout, behaviour=behaviour(state.net, rollout))

    def update(state: State, key: Array) -> tuple[State, Metrics]:
        order_key, demo_key = jax.random.split(key)
        steps = batch(config, state.rollout, state.behaviour)

        def descend(carry: tuple[ActorCritic, Any], now: tuple[Array, Array]) -> tuple[tuple[ActorCritic, Any], Metrics]:
            net, optimiser_state = carry
            mini = jax.tree.map(lambda x: x[now[0]], steps)
            clone = None if state.demos is None else sample_clone(config, spec, state.demos, now[1])
            gradients, metrics = jax.grad(loss, has_aux=True)(net, mini, clone, config)
            return optim.step(optimiser, gradients, optimiser_state, net), metrics

        index = minibatch_indices(config, steps.action.shape[0], order_key)
        keys = jax.random.split(demo_key, index.shape[0])
        (net, optimiser_state), metrics = jax.lax.scan(descend, (state.net, state.optimiser), (index, keys))
        metrics = jax.tree.map(jnp.mean, metrics) | {"explained": explained(state.behaviour.value, steps.target)}
        return state._replace(net=net, optimiser=optimiser_state, count=state.count + 1), metrics

    return Agent(init, act, observe, update, policy)


def explained(value: Array, target: Array) -> Array:
    """Share of the targets' variance that the values explain: 1 is all, 0 is as much as a constant."""
    return 1 - jnp.var(target - value.reshape(-1)) / (jnp.var(target) + 1e-8)
