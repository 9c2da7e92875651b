"""Any agent on a reward of our choosing: what it remembers of its experience is paid by a reward function instead of the environment.

With the reward that ITD inferred for a demonstrator, a DQN or PPO learns to do what that demonstrator wants (the paper's table 1).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import Array

from psiphi import model as models
from psiphi.model import Model
from psiphi.types import Agent, Demos, Metrics, Transition

Pay = Callable[[Any, Transition], Array]
"""``pay(parameters, steps[B]) -> reward[B]``"""


class State(NamedTuple):
    """The agent's own state and what its reward is computed from, which never changes."""

    agent: Any
    parameters: Any


def rewarded(agent: Agent, pay: Pay, parameters: Any) -> Agent:
    """`agent`, paid by `pay(parameters, ...)`. The parameters live in the state, so that compiled programs serve all of their values."""

    def init(key: Array, demos: Demos | None) -> State:
        return State(agent.init(key, demos), parameters)

    def observe(state: State, rollout: Transition) -> State:
        steps, envs = rollout.action.shape
        flat = jax.tree.map(lambda x: x.reshape(steps * envs, *x.shape[2:]), rollout)
        reward = pay(state.parameters, flat).reshape(steps, envs)
        return state._replace(agent=agent.observe(state.agent, rollout._replace(reward=reward)))

    def update(state: State, key: Array) -> tuple[State, Metrics]:
        inner, metrics = agent.update(state.agent, key)
        return state._replace(agent=inner), metrics

    def act(state: State, obs: Array, key: Array) -> Array:
        return agent.act(state.agent, obs, key)

    def policy(state: State, obs: Array, key: Array) -> Array:
        return agent.policy(state.agent, obs, key)

    return Agent(init, act, observe, update, policy)


def inferred(demonstrator: int) -> Pay:
    """What a model says one demonstrator is paid, in units of reward."""

    def pay(model: Model, steps: Transition) -> Array:
        return models.rewards(model, steps.obs, steps.action, steps.next_obs, steps.discount)[:, demonstrator]

    return pay
