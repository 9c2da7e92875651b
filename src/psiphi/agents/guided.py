"""A DQN that follows clones of the demonstrators now and then: what following alone is worth.

PsiPhi-learning with a `guide` follows such clones, too. This learner does the same and has no successor features, no preferences and no
generalised policy improvement, so that the two can be told apart. The DQN and the clones share nothing but the steps that they lead to.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from psiphi import configs, replay, spaces
from psiphi.agents import bc, dqn, following
from psiphi.agents.bc import BCConfig
from psiphi.agents.dqn import DQNConfig
from psiphi.configs import Number, Share
from psiphi.errors import UserError
from psiphi.types import Agent, Demos, EnvSpec, Metrics, Pace, Transition


@dataclass(frozen=True)
class GuidedConfig:
    """The learner, the clones and when they are followed."""

    dqn: DQNConfig = field(default_factory=DQNConfig)
    """The learner."""
    clone: BCConfig = field(default_factory=BCConfig)
    """The clones, one of each demonstrator."""
    follow: Share = 1.0
    """The share of the environments in which a clone acts at first. It falls along a line to none over the first part of the updates."""
    followed: Share = 0.25
    """That part of all updates, those before the first step included; 0: a quarter."""
    follow_on: Share = 0.1
    """The share of the environments in which clones go on acting to the end."""
    stretch: Number = 16
    """An environment follows a clone for so many updates, then it is drawn anew whether it follows one and whom; 0: the first environments
    follow one all the time."""

    def __post_init__(self):
        configs.check(self)


SPACE = spaces.inside("dqn", dqn.SPACE)
"""Where `psiphi tune` looks."""


class State(NamedTuple):
    """The learner's, the clones', and the demonstrations."""

    learner: dqn.State
    clones: bc.State
    demos: Demos | None


def make(config: GuidedConfig, spec: EnvSpec, num_demonstrators: int, pace: Pace) -> Agent:
    """DQN and BC as one agent; it is judged as the DQN is, with no clone to help."""
    if not num_demonstrators:
        raise UserError("There is a clone of each demonstrator, but there are 0 demonstrators; expected at least 1.")
    if config.dqn.bc_weight:
        raise UserError(f"dqn.bc_weight is {config.dqn.bc_weight}, expected 0: the clones have torsos of their own.")
    learner, cloning = dqn.make(config.dqn, spec, 0, pace), bc.make(config.clone, spec, num_demonstrators, pace)

    def init(key: Array, demos: Demos | None) -> State:
        learner_key, clone_key = jax.random.split(key)
        checked = replay.check_shapes(demos, spec, num_demonstrators=num_demonstrators)
        return State(learner.init(learner_key, None), _without_demos(cloning.init(clone_key, checked)), checked)

    def act(state: State, obs: Array, key: Array) -> Array:
        led = following.led(config, state.clones.count, obs.shape[0], pace.updates)
        return jnp.where(led, imitated(state, obs), learner.act(state.learner, obs, key))

    def imitated(state: State, obs: Array) -> Int[Array, " N"]:
        """What the clone would do whose turn it is."""
        every = jax.vmap(lambda one: one(obs))(bc.deployed(config.clone, state.clones))  # [K, N, A]
        whose = following.whom(config, state.clones.count, obs.shape[0], num_demonstrators)
        return jnp.argmax(every[whose, jnp.arange(obs.shape[0])], axis=-1)

    def observe(state: State, rollout: Transition) -> State:
        return state._replace(learner=learner.observe(state.learner, rollout))

    def update(state: State, key: Array) -> tuple[State, Metrics]:
        learner_key, clone_key = jax.random.split(key)
        assert state.demos is not None
        clones, cloned = cloning.update(state.clones._replace(demos=state.demos), clone_key)
        learned, metrics = learner.update(state.learner, learner_key)
        return State(learned, _without_demos(clones), state.demos), metrics | {f"clone_{name}": x for name, x in cloned.items()}

    def policy(state: State, obs: Array, key: Array) -> Array:
        return learner.policy(state.learner, obs, key)

    return Agent(init, act, observe, update, policy)


def _without_demos(state: bc.State) -> bc.State:
    """The demonstrations are kept once, where `watching` finds them."""
    return state._replace(demos=None)  # pyright: ignore[reportArgumentType]
