"""Worlds so small that the right values are known by heart, and a learner so small that it must find them.

Each probe can be solved only if one more part of a loop is right: rewards arrive, delayed rewards are discounted, observations
and actions belong together, a time limit bootstraps from the observation before the reset, a termination does not bootstrap.
"""

from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi.types import Agent, Demos, Env, EnvSpec, TimeStep, Transition

GAMMA = 0.5


class Probe(NamedTuple):
    """A world of numbered places as tables over (place, action), and the number of steps after which each start's clock stops it."""

    starts: tuple[int, ...]
    next_place: np.ndarray
    reward: np.ndarray
    ends: np.ndarray
    """Where the task is truly over."""
    limit: tuple[int, ...]
    values: np.ndarray
    """The optimal Q-values, for `GAMMA`."""


class Place(NamedTuple):
    """Where a probe is and how many steps its clock still allows."""

    place: Array
    left: Array


NEVER = 1000


def one_step() -> Probe:
    """One step, reward 1."""
    return Probe((0,), np.array([[0]]), np.array([[1.0]]), np.array([[True]]), (NEVER,), np.array([[1.0]]))


def two_steps() -> Probe:
    """0 -> 1 -> end, the reward at the end: it must come back discounted."""
    return Probe((0,), np.array([[1], [0]]), np.array([[0.0], [1.0]]), np.array([[False], [True]]), (NEVER,), np.array([[GAMMA], [1.0]]))


def say_what_you_see() -> Probe:
    """One step from place 0 or 1; reward 1 for the action of that number, else -1: observations and actions must belong together."""
    q = np.array([[1.0, -1.0], [-1.0, 1.0]])
    return Probe((0, 1), np.array([[0, 0], [1, 1]]), q, np.ones((2, 2), bool), (NEVER, NEVER), q)


def time_limit() -> Probe:
    """0 -> 1, then reward 1 for ever, but the clock stops after three steps.

    A loop that treats the time limit as an end, or bootstraps from the observation after the reset, finds less.
    """
    values = np.array([[GAMMA], [1.0]]) / (1 - GAMMA)
    return Probe((0,), np.array([[1], [1]]), np.array([[0.0], [1.0]]), np.zeros((2, 1), bool), (3,), values)


def termination() -> Probe:
    """0 -> 1 -> 2 -> end, reward 1 each. The last observation looks like place 0: to bootstrap from it finds more."""
    values = np.array([[1 + GAMMA + GAMMA**2], [1 + GAMMA], [1.0]])
    return Probe((0,), np.array([[1], [2], [0]]), np.ones((3, 1)), np.array([[False], [False], [True]]), (NEVER,), values)


def medley(*probes: Probe) -> Probe:
    """Several probes as one world, of which an episode visits one: all are learned in one compiled run. Spare actions repeat the last."""
    actions = max(probe.reward.shape[1] for probe in probes)
    offsets = np.cumsum([0, *(len(probe.reward) for probe in probes)])

    def stacked(tables: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.pad(x, ((0, 0), (0, actions - x.shape[1])), mode="edge") for x in tables])

    shift = np.repeat(offsets[:-1], np.diff(offsets))[:, None]
    starts = tuple(int(start + offset) for probe, offset in zip(probes, offsets, strict=False) for start in probe.starts)
    return Probe(
        starts=starts,
        next_place=stacked([probe.next_place for probe in probes]) + shift,
        reward=stacked([probe.reward for probe in probes]),
        ends=stacked([probe.ends for probe in probes]),
        limit=tuple(limit for probe in probes for limit in probe.limit),
        values=stacked([probe.values for probe in probes]),
    )


def make(probe: Probe) -> Env:
    """The probe as an environment: places seen one-hot, episodes from a random start, `features` the place an action was taken in."""
    places, actions = probe.reward.shape

    def see(place: Array) -> Array:
        return jax.nn.one_hot(place, places)

    def reset(key: Array) -> tuple[Place, Array]:
        which = _below(len(probe.starts), key)
        place = jnp.asarray(probe.starts)[which]
        return Place(place, jnp.asarray(probe.limit)[which]), see(place)

    def step(state: Place, action: Array, key: Array) -> tuple[Place, TimeStep]:
        del key
        at = state.place, action
        place = jnp.asarray(probe.next_place, jnp.int32)[at]
        ends = jnp.asarray(probe.ends)[at]
        reward, discount = jnp.asarray(probe.reward, jnp.float32)[at], 1.0 - ends
        timestep = TimeStep(see(place), reward, discount, ends | (state.left == 1), {"features": see(state.place)})
        return Place(place, state.left - 1), timestep

    return Env(EnvSpec((places,), jnp.float32, actions), reset, step)


class ProbeEnv(gymnasium.Env[np.ndarray, Any]):
    """A probe, one world at a time, as Gymnasium has it; the first of its starts is the only one."""

    def __init__(self, probe: Probe):
        places, actions = probe.reward.shape
        self.probe = probe
        self.observation_space = gymnasium.spaces.Box(0, 1, (places,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(actions)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.left = self.probe.starts[0], self.probe.limit[0]
        return self.see(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        at, self.left = (self.place, action), self.left - 1
        self.place = int(self.probe.next_place[at])
        return self.see(), float(self.probe.reward[at]), bool(self.probe.ends[at]), self.left == 0, {}

    def see(self) -> np.ndarray:
        return np.eye(len(self.probe.reward), dtype=np.float32)[self.place]


def _below(count: int, key: Array) -> Array:
    """A uniform integer; compiles three times as fast as `jax.random.randint`."""
    return (jax.random.uniform(key) * count).astype(jnp.int32)


class Table(NamedTuple):
    """Q-values and the rollout to learn from; the demonstrations are carried along as a real agent carries them."""

    q: Array
    target: Array
    recent: Transition
    demos: Demos | None


def tabular_q(
    spec: EnvSpec, *, num_envs: int, rollout_length: int = 1, learning_rate: float = 0.25, epsilon: float = 0.3, noise: float = 0.0
) -> Agent:
    """Q-learning on one-hot observations with a slowly following target table; `noise` blurs its updates, so that keys matter."""
    places = spec.obs_shape[0]

    def init(key: Array, demos: Demos | None) -> Table:
        del key
        q = jnp.zeros((places, spec.num_actions))
        grid = (rollout_length, num_envs)
        obs = jnp.zeros((*grid, places))
        recent = Transition(obs, jnp.zeros(grid, jnp.int32), jnp.zeros(grid), jnp.zeros(grid), obs, jnp.zeros(grid, bool))
        return Table(q, q, recent, demos)

    def greedy(state: Table, obs: Array, key: Array) -> Array:
        del key
        return jnp.argmax(obs @ state.q, axis=-1).astype(jnp.int32)

    def act(state: Table, obs: Array, key: Array) -> Array:
        draw = jax.random.uniform(key, obs.shape[:1]) / epsilon  # uniform below 1 once it is below 1
        return jnp.where(draw < 1, (draw * spec.num_actions).astype(jnp.int32), greedy(state, obs, key))

    def observe(state: Table, rollout: Transition) -> Table:
        return state._replace(recent=rollout)

    def update(state: Table, key: Array) -> tuple[Table, dict[str, Any]]:
        step = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), state.recent)
        goal = step.reward + GAMMA * step.discount * jnp.max(step.next_obs @ state.target, axis=-1)
        place = jnp.argmax(step.obs, axis=-1)
        error = goal - state.q[place, step.action]
        visits = jnp.zeros_like(state.q).at[place, step.action].add(1.0)
        change = jnp.zeros_like(state.q).at[place, step.action].add(error) / jnp.maximum(visits, 1.0)
        q = state.q + learning_rate * change + noise * jax.random.normal(key, state.q.shape)
        target = state.target + 0.5 * (q - state.target)
        return state._replace(q=q, target=target), {"loss": jnp.mean(error**2), "largest_q": jnp.max(q)}

    return Agent(init, act, observe, update, greedy)
