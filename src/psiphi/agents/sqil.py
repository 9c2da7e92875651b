"""Soft Q imitation learning (SQIL; Reddy et al. 2019): soft Q-learning that is paid 1 for what was demonstrated and 0 for what it does.

It is `agents.dqn` with another batch (half demonstrations, half own transitions) and another backup (temperature * logsumexp). One model
per demonstrator, or one for all of them pooled. What is not in its paper is a config field that says so; `paper()` switches it off.

The `imitation` library's SQIL (1.0.1) differs from both: it runs stable-baselines3's DQN, so its backup is the hard max and it acts
epsilon-greedily; in its own half a time limit counts as the end of the task, while a demonstration ends only if it is marked as terminal.
Here `discount` decides in both halves: a time limit bootstraps, a true end does not.
"""

import math
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from psiphi import configs, gpi, losses, replay, spaces
from psiphi.agents import dqn
from psiphi.agents.dqn import DQNConfig, State
from psiphi.configs import Number, Positive
from psiphi.errors import UserError
from psiphi.nets import ActionNet
from psiphi.replay import Experience
from psiphi.types import NO_ACTION, Agent, Demonstration, Demos, EnvSpec, Metrics, Pace, Transition


def default_dqn() -> DQNConfig:
    """One step, one network to choose and to tell, no random actions beside the softmax's."""
    return DQNConfig(n_step=1, double=False, epsilon_start=0.0, epsilon_end=0.0)


@dataclass(frozen=True)
class SQILConfig:
    """Soft Q-learning on constant rewards."""

    dqn: DQNConfig = field(default_factory=default_dqn)
    """The learner. Half of its `batch` are demonstrations; its epsilon is a share of random actions beside the softmax's."""
    temperature: Positive = 0.1
    """Of the backup and of the policy (paper: none, that is 1, in units of a demonstrated step's reward)."""
    demonstrator: Number | None = None
    """Whom to imitate, counted from 0; None: all of them, as one pool of steps."""
    demo_reward: float = 1.0
    """Reward of a demonstrated step (paper: 1)."""
    env_reward: bool = False
    """The agent's own transitions carry the environment's reward; off: 0 (paper). On, this is our reading of "SQILv2", which the PsiPhi
    paper compares with but does not define: it solves a task that was not demonstrated, so it must have seen that task's reward.
    Demonstrations keep `demo_reward`."""
    fade_updates: Number = 0
    """Extension: over so many updates demonstrations leave the batch for own steps, along a line; 0: they stay (paper). Beside
    `env_reward` they would go on paying for what the task may punish."""
    absorbing: bool = True
    """Extension: who has reached the end of the task stays there for ever, paid as before, whatever it does; off: an end is worth nothing
    more (paper). Where demonstrators finish, the paper's way pays the imitator for never finishing."""
    greedy: bool = False
    """Judge the best action; off: draw from the softmax, as while learning: that is the policy whose values are learned (paper)."""

    def __post_init__(self):
        configs.check(self)


SPACE = spaces.inside("dqn", {name: dqn.SPACE[name] for name in ("learning_rate", "ema", "clip")})
"""Where `psiphi tune` looks."""


def paper(config: SQILConfig = SQILConfig()) -> SQILConfig:  # noqa: B008 - a frozen value
    """SQIL's equations as printed, on whatever network and optimiser the config has."""
    return replace(config, temperature=1.0, demo_reward=1.0, env_reward=False, fade_updates=0, absorbing=False, greedy=False)


def soft_backup(temperature: float) -> dqn.Backup:
    """The target's soft value."""

    def backup(net: ActionNet, target: ActionNet, next_obs: Array) -> Float[Array, " B"]:
        del net
        return jax.vmap(losses.soft_value, (0, None))(target(next_obs), temperature)

    return backup


def as_transitions(demo: Demonstration, gamma: float) -> Transition:
    """Demonstrated steps as one-step transitions without pay; a recording cut short goes on as far as is known."""
    last = (demo.next_action == NO_ACTION) | (demo.discount == 0)
    return Transition(demo.obs, demo.action, jnp.zeros(demo.discount.shape), gamma * demo.discount, demo.next_obs, last)


def paid(config: SQILConfig, batch: Transition, reward: Float[Array, " B"], for_ever: float, num_actions: int) -> Transition:
    """One-step transitions with another reward and, where ends are absorbing, the soft value of staying there at `for_ever` a step."""
    gamma = config.dqn.gamma
    if not config.absorbing:
        return batch._replace(reward=reward)
    stay = (for_ever + config.temperature * math.log(num_actions)) / (1 - gamma)
    return batch._replace(reward=reward + (gamma - batch.discount) * stay)


def mine(config: SQILConfig, own: Transition, num_actions: int) -> Transition:
    """What the agent did, paid 0, or what the environment paid."""
    return paid(config, own, own.reward if config.env_reward else jnp.zeros_like(own.reward), 0.0, num_actions)


def theirs(config: SQILConfig, demo: Demonstration, num_actions: int) -> Transition:
    """What was demonstrated, paid `demo_reward`."""
    steps = as_transitions(demo, config.dqn.gamma)
    return paid(config, steps, steps.reward + config.demo_reward, config.demo_reward, num_actions)


def halves(config: SQILConfig, own: Transition, demo: Demonstration, num_actions: int) -> Transition:
    """The batch: what the agent did, then what was demonstrated."""
    both = mine(config, own, num_actions), theirs(config, demo, num_actions)
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y.astype(x.dtype)]), *both)


def half(config: SQILConfig) -> DQNConfig:
    """The learner as it samples its own half of a batch."""
    return configs.replaced(config.dqn, batch=config.dqn.batch // 2)


def fade(config: SQILConfig, batch: Transition, own: Transition, count: Array, key: Array, num_actions: int) -> Transition:
    """The batch with more of its demonstrations replaced by `own` steps, as many as there are, the more updates there have been."""
    gone = jax.random.bernoulli(key, jnp.clip(count / config.fade_updates, 0, 1), own.reward.shape)
    gone = jnp.concatenate([jnp.zeros_like(gone), gone])
    return jax.tree.map(
        lambda x, y: jnp.where(gone.reshape(-1, *[1] * (x.ndim - 1)), jnp.concatenate([y, y]), x), batch, mine(config, own, num_actions)
    )


def sample(config: SQILConfig, spec: EnvSpec, experience: Experience, state: State, key: Array) -> Transition:
    """A batch of both halves."""
    own_key, demo_key, mirror_key = jax.random.split(key, 3)
    assert state.demos is not None
    demo = replay.sample_pool(state.demos, demo_key, half(config).batch)
    demo = replay.mirror(spec, demo, mirror_key) if config.dqn.mirror else demo
    batch = halves(config, dqn.sample(half(config), spec, experience, state, own_key), demo, spec.num_actions)
    if not config.fade_updates:
        return batch
    more_key, fade_key = jax.random.split(jax.random.fold_in(key, 1))
    more = dqn.sample(half(config), spec, experience, state, more_key)
    return fade(config, batch, more, state.count, fade_key, spec.num_actions)


def check(config: SQILConfig) -> None:
    """Refuse what SQIL has no use for, and what it cannot do."""
    inner = config.dqn
    if config.fade_updates and not config.env_reward:
        raise UserError(
            f"fade_updates is {config.fade_updates}, but without env_reward nothing would be paid once demonstrations are gone."
        )
    if inner.batch < 2 or inner.batch % 2:
        raise UserError(f"SQIL's batch is {inner.batch}, expected an even number: half of it are demonstrations.")
    if config.absorbing and inner.gamma >= 1:
        raise UserError(f"SQIL's gamma is {inner.gamma}, expected less than 1: an absorbing end pays for ever.")
    unused = {"n_step": (inner.n_step, 1), "double": (inner.double, False), "bc_weight": (inner.bc_weight, 0.0)}
    for name, (found, expected) in unused.items():
        if found != expected:
            raise UserError(f"SQIL's {name} is {found}, expected {expected}: its soft backup has no other.")


def make(config: SQILConfig, spec: EnvSpec, num_demonstrators: int, pace: Pace) -> Agent:
    """SQIL as an agent; the demonstrations given to `init` become part of its state, of the imitated demonstrator only, however many
    there are."""
    del num_demonstrators
    check(config)
    learner = dqn.make(half(config), spec, 0, pace)
    optimiser, experience = dqn.make_optimiser(config.dqn, pace), dqn.make_experience(half(config), pace, spec)
    backup = soft_backup(config.temperature)

    def init(key: Array, demos: Demos | None) -> State:
        checked = replay.check_shapes(demos, spec, config.demonstrator)
        return learner.init(key, None)._replace(demos=replay.only(checked, config.demonstrator))

    def act(state: State, obs: Array, key: Array) -> Array:
        draw_key, explore_key = jax.random.split(key)
        action = gpi.draw(state.net(obs), draw_key, config.temperature)
        return dqn.explore(config.dqn, state, action, spec.num_actions, explore_key)

    def update(state: State, key: Array) -> tuple[State, Metrics]:
        return dqn.learn(config.dqn, optimiser, state, sample(config, spec, experience, state, key), backup)

    def policy(state: State, obs: Array, key: Array) -> Array:
        return gpi.draw(dqn.deployed(config.dqn, state)(obs), key, 0.0 if config.greedy else config.temperature)

    return Agent(init, act, learner.observe, update, policy)
