"""Any agent with some of its config's numbers in its state: a population in one compiled program, each member with rates of its own.

A number in the state can be another for each member and can be changed between two calls, and the program stays the same. The agent is made
anew inside of every function that is traced, from a config that holds the state's numbers; that costs nothing once it is compiled.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from psiphi import configs
from psiphi.types import Agent, Demonstration, Demos, Metrics, Transition

Rates = dict[str, Float[Array, ""]]
"""Numbers of a config by their dotted names."""


class State(NamedTuple):
    """The agent's own state, and the numbers that its config has in it."""

    agent: Any
    rates: Rates


def tunable(made: Callable[[Mapping[str, Any]], Agent], rates: Mapping[str, float]) -> Agent:
    """`made(rates)` is the agent with these numbers; `rates` are those that it begins with."""

    def init(key: Array, demos: Demos | None) -> State:
        return State(made(rates).init(key, demos), {name: jnp.float32(value) for name, value in rates.items()})

    def act(state: State, obs: Array, key: Array) -> Array:
        return made(state.rates).act(state.agent, obs, key)

    def observe(state: State, rollout: Transition) -> State:
        return state._replace(agent=made(state.rates).observe(state.agent, rollout))

    def update(state: State, key: Array) -> tuple[State, Metrics]:
        inner, metrics = made(state.rates).update(state.agent, key)
        return state._replace(agent=inner), metrics

    def policy(state: State, obs: Array, key: Array) -> Array:
        return made(state.rates).policy(state.agent, obs, key)

    return Agent(init, act, observe, update, policy)


def with_rates(config: Any, rates: Mapping[str, Any]) -> Any:
    """A config with some numbers, by dotted names, that are traced."""
    for name, value in rates.items():
        first, _, rest = name.partition(".")
        config = configs.replaced(config, **{first: with_rates(getattr(config, first), {rest: value}) if rest else value})
    return config


def watched(watch: Callable[[Any, Array, Demonstration], Any]) -> Callable[[State, Array, Demonstration], State]:
    """What the agent inside is shown of others."""
    return lambda state, who, steps: state._replace(agent=watch(state.agent, who, steps))
