"""Any agent with online demonstrations: while it acts it watches others, and what they did goes to the rings that it learns from.

The agent inside is as it was: it samples demonstrations from its own state, whose `demos` this one keeps filling.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from psiphi import replay
from psiphi.types import Agent, Demonstration, Demos, Metrics, Transition


class State(NamedTuple):
    """The agent's own state, and how many steps of each demonstrator it was ever shown."""

    agent: Any
    seen: Int[Array, " K"]


def watching(agent: Agent) -> Agent:
    """`agent` with a count of what it was shown; give `init` empty rings (`replay.no_demonstrations`) and the loop `watch`."""

    def init(key: Array, demos: Demos | None) -> State:
        assert demos is not None
        return State(agent.init(key, demos), demos.count)

    def act(state: State, obs: Array, key: Array) -> Array:
        return agent.act(state.agent, obs, key)

    def observe(state: State, rollout: Transition) -> State:
        return state._replace(agent=agent.observe(state.agent, rollout))

    def update(state: State, key: Array) -> tuple[State, Metrics]:
        inner, metrics = agent.update(state.agent, key)
        return state._replace(agent=inner), metrics

    def policy(state: State, obs: Array, key: Array) -> Array:
        return agent.policy(state.agent, obs, key)

    return Agent(init, act, observe, update, policy)


def watch(state: State, who: Int[Array, " M"], steps: Demonstration) -> State:
    """Append what demonstrators `who` (-1: an empty slot) were seen to do; a full ring loses its oldest steps."""
    demos, seen = replay.add_demonstrations(state.agent.demos, who, steps, state.seen)
    return State(state.agent._replace(demos=demos), seen)


def watch_all_as_one(state: State, who: Int[Array, " M"], steps: Demonstration) -> State:
    """The same for who is not told apart from whom a step comes."""
    return watch(state, jnp.minimum(who, 0), steps)
