"""Logs of a world's agents, who plan exactly for what they truly want and err now and then."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from planning import greedy_policy, random_policy, value_iteration
from worlds import World

from psiphi import Demonstrations

Kind = Literal["epsilon", "boltzmann"]


class Recorded(NamedTuple):
    """Demonstrations, and of each of their steps what only the world knows."""

    demos: Demonstrations
    state: np.ndarray
    """int64[M]: the state before each step."""
    action: np.ndarray
    """int64[M]: what was done."""
    next_state: np.ndarray
    """int64[M]: the state after it."""
    end: np.ndarray
    """bool[M]: whether the world ended the episode with it."""
    outcome: np.ndarray
    """int64[M]: which of the J outcomes came of it, so that a reward ``[S, A, J]`` was ``reward[state, action, outcome]``."""


class _Episode(NamedTuple):
    state: np.ndarray
    """int64[T + 1]."""
    action: np.ndarray
    outcome: np.ndarray
    terminated: bool


def demonstrations(
    world: World, episodes: int, noise: float = 0.1, kind: Kind = "epsilon", seed: int = 0, *, shuffled: bool = False
) -> Recorded:
    """So many episodes of every agent. If `shuffled`, whose they are said to be is permuted over all episodes."""
    rng = np.random.default_rng(seed)
    who = [agent for agent in world.agents for _ in range(episodes)]
    seen = [episode for agent in world.agents for episode in walked(world, demonstrator(world, agent, noise, kind), episodes, rng)]
    if shuffled:
        who = [who[i] for i in rng.permutation(len(who))]
    return recorded(world, seen, who)


def random_walk(world: World, steps: int, seed: int = 0) -> Recorded:
    """At least so many steps of a single agent, "anybody", who does anything."""
    rng = np.random.default_rng(seed)
    seen: list[_Episode] = []
    while sum(len(episode.action) for episode in seen) < steps:
        seen += walked(world, random_policy(world), 8, rng)
    total = np.cumsum([len(episode.action) for episode in seen])
    seen = seen[: int(np.searchsorted(total, steps)) + 1]
    return recorded(world, seen, ["anybody"] * len(seen))


def demonstrator(world: World, agent: str, noise: float, kind: Kind = "epsilon") -> np.ndarray:
    """float64[S, A]: an agent's policy.

    "epsilon": the optimal action, and a uniformly random one with probability `noise`. "boltzmann": softmax of the optimal values,
    as hot as it takes to be wrong in a share `noise` of an episode's steps (see `temperature`).
    """
    q = value_iteration(world, world.reward(agent))
    best = greedy_policy(q)
    if kind == "epsilon":
        return (1 - noise) * best + noise * random_policy(world)
    if kind != "boltzmann":
        raise ValueError(f"The kind is {kind!r}, expected 'epsilon' or 'boltzmann'.")
    return softmax(q / temperature(world, q, noise)) if noise else best


def temperature(world: World, q: np.ndarray, noise: float) -> float:
    """The temperature at which a share `noise` of an episode's steps is not optimal, by bisection.

    Only steps in which something else would have been worse are counted: who has all it wants and wanders about makes no mistakes.
    """
    best, scale = greedy_policy(q) > 0, max(float(np.abs(q).max()), 1e-12)
    matters = ~best.all(axis=1)
    low, high = np.log(1e-5 * scale), np.log(1e3 * scale)
    for _ in range(25):
        middle = (low + high) / 2
        policy = softmax(q / np.exp(middle))
        visits = expected_visits(world, policy) * matters
        share = (visits[:, None] * policy * ~best).sum() / visits.sum()
        low, high = (middle, high) if share < noise else (low, middle)
    return float(np.exp((low + high) / 2))


def expected_visits(world: World, policy: np.ndarray) -> np.ndarray:
    """float64[S]: how often an episode of a policy is expected to make a step in each state, until it ends or is cut off."""
    here = np.bincount(world.start, minlength=world.num_states) / len(world.start)
    flow = policy[:, :, None] * world.chance * ~world.ends
    visits = np.zeros(world.num_states)
    for _ in range(world.limit):
        visits += here
        here = np.bincount(world.next_state.ravel(), (here[:, None, None] * flow).ravel(), world.num_states)
    return visits


def softmax(x: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


# --- Episodes ------------------------------------------------------------------------------------------------------------


def walked(world: World, policy: np.ndarray, count: int, rng: np.random.Generator) -> list[_Episode]:
    """So many episodes of a policy, all walked at once."""
    states, actions, outcomes = [rng.choice(world.start, count)], [], []
    length, running = np.zeros(count, np.int64), np.ones(count, bool)
    terminated = np.zeros(count, bool)
    for _ in range(world.limit):
        here = states[-1]
        action = _drawn(policy[here], rng)
        outcome = _drawn(world.chance[here, action], rng)
        length += running
        terminated |= running & world.ends[here, action, outcome]
        running &= ~terminated
        states.append(world.next_state[here, action, outcome])
        actions.append(action)
        outcomes.append(outcome)
        if not running.any():
            break
    state, action, outcome = (np.stack(columns, axis=1) for columns in (states, actions, outcomes))
    return [_Episode(state[e, : n + 1], action[e, :n], outcome[e, :n], bool(terminated[e])) for e, n in enumerate(length)]


def _drawn(chances: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """int64[n]: one draw from each row of ``[n, m]`` chances; what has none is never drawn."""
    cumulated = chances.cumsum(axis=1)
    drawn = (rng.random((len(chances), 1)) * cumulated[:, -1:] >= cumulated).sum(axis=1)
    return np.minimum(drawn, chances.shape[1] - 1)


def recorded(world: World, seen: Sequence[_Episode], who: Sequence[str]) -> Recorded:
    terminated = [episode.terminated for episode in seen]
    demos = Demonstrations.from_lists(
        [world.obs[episode.state] for episode in seen],
        [episode.action for episode in seen],
        who,
        terminated=terminated,
        truncated=[not ended for ended in terminated],
        num_actions=world.num_actions,
        names=world.names,
    )
    state, following, action, outcome = (
        np.concatenate(columns) for columns in zip(*((e.state[:-1], e.state[1:], e.action, e.outcome) for e in seen), strict=True)
    )
    return Recorded(demos, state, action, following, demos.terminated.copy(), outcome)
