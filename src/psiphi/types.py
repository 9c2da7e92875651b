"""The records that travel through the library: what an environment gives, what a demonstrator leaves, what an agent is.

Every record is a NamedTuple of arrays (a pytree), so it can be stacked, scanned, vmapped and saved. Leading axes are the
caller's business: the same `Transition` is one step, a rollout ``[T, N]`` or a batch ``[B]``.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from jax import Array

Metrics = dict[str, Array]
"""Scalars by name, as an update or an evaluation reports them."""

NO_ACTION = -1
"""`Demonstration.next_action` where the next action was not seen (the recording stopped before the goal)."""


class Transition(NamedTuple):
    """One step of the ego agent.

    There is no `done`: `discount` is 0 only where the task truly ended, so a time limit still bootstraps, and `next_obs` is the
    observation before any reset. `last` marks the end of an episode for either reason: n-step returns stop there.
    """

    obs: Array
    action: Array
    reward: Array
    discount: Array
    next_obs: Array
    last: Array


class Demonstration(NamedTuple):
    """One step of a demonstrator. There is no reward field: rewards are not known."""

    obs: Array
    action: Array
    discount: Array
    next_obs: Array
    next_action: Array


class Demos(NamedTuple):
    """Demonstrations of K agents side by side, padded to a common length: `steps` has axes ``[K, M, ...]``.

    `count[k]` steps of agent k are real; the rest is padding and is never sampled. `background` are steps of no agent in particular, with
    one axis: they tell how the world answers and are never imitated. `aside` are arrays that
    go with them through a compiled program, which would be another one for other data if they were its constants. Where observations are
    large, `frames` ``[K, F, ...]`` has each of them once, and `steps.obs` and `steps.next_obs` are their places in it.
    """

    steps: Demonstration
    count: Array
    background: Demonstration | None = None
    aside: Any = None
    frames: Array | None = None


class TimeStep(NamedTuple):
    """What an environment answers to an action: `obs` is the state reached, before any reset."""

    obs: Array
    reward: Array
    discount: Array
    last: Array
    extras: dict[str, Array]


class Symmetry(NamedTuple):
    """A map of observations and actions under which the world is the same world (a mirror, say)."""

    obs: Callable[[Array], Array]
    action: Callable[[Array], Array]


Kind = Literal["vector", "board", "picture"]
"""What an observation is: numbers of any scale, the small whole numbers of a board's cells, or the brightness of a picture's pixels."""


class EnvSpec(NamedTuple):
    """What an agent must know of an environment before it has seen it."""

    obs_shape: tuple[int, ...]
    obs_dtype: Any
    num_actions: int
    symmetry: Symmetry | None = None
    kind: Kind | None = None
    """None: not said. Where a stranger's world is looked at through a lens, its values tell then; elsewhere it is a vector."""


class Env(NamedTuple):
    """A world as two pure functions on one environment; callers vmap. `step` never resets: the loop does."""

    spec: EnvSpec
    reset: Callable[[Array], tuple[Any, Array]]
    """``reset(key) -> state, obs``"""
    step: Callable[[Any, Array, Array], tuple[Any, TimeStep]]
    """``step(state, action, key) -> state, timestep``"""


class Pace(NamedTuple):
    """What a run decides for an agent: it is no part of the algorithm's config."""

    num_envs: int = 8
    """Environments side by side, N."""
    updates: int = 1_000
    """Length of the schedules (rate, ramps) in updates; an array in the state, so one compiled program serves all lengths."""


class Agent(NamedTuple):
    """An algorithm as pure functions of an explicit state, which also holds its replay: every loop runs every agent."""

    init: Callable[[Array, Demos | None], Any]
    """``init(key, demos) -> state``; the demonstrations become part of the state, so no jitted function closes over them."""
    act: Callable[[Any, Array, Array], Array]
    """``act(state, obs[N], key) -> action[N]``: how it behaves while it learns."""
    observe: Callable[[Any, Transition], Any]
    """``observe(state, rollout[T, N]) -> state``: remember experience without learning from it yet."""
    update: Callable[[Any, Array], tuple[Any, Metrics]]
    """``update(state, key) -> state, metrics``: one step of learning from what the state remembers."""
    policy: Callable[[Any, Array, Array], Array]
    """``policy(state, obs[N], key) -> action[N]``: how it behaves when it is judged."""
