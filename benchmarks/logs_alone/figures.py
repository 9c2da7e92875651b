"""What a fit is worth: of each agent, how well a planner does with the inferred reward, how near that is to the truth, and the verdict.

Every score is 0 for who does anything and 1 for the best (see `planning.score`, and `minecart` for its own two).
"""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import learner
import measures
import minecart
import numpy as np
from demonstrate import demonstrations, random_walk
from learner import Learned, Steps
from planning import optimal_policy, score
from sweeps import MINECART, Fit, Setting, agents_of, world_of
from worlds import World

from psiphi import Demonstrations

Figures = dict[str, Any]
"""Plain values by name, ready for JSON; None where a figure does not exist."""

CAUTIONS: dict[str, float | None] = {"default": None, "plain": 0.0, "cautious": 0.3}
"""The rewards that are planned for, by how much caution is asked for."""
WITH_MAXENT = (Setting(),)
"""The logs on which MaxEnt is measured too: it takes as long as a fit."""
NO_MAXENT: dict[str, float | None] = {"maxent": None}
MOST_ROWS = 200_000
"""So many steps are paid for at once."""
WALK = 10_000
"""Random steps on which rewards are compared."""
BACKGROUND_SEED, WALK_SEED = 1_000_000, 2_000_000
"""Added to the seed of a fit, so that no two walks are the same."""


class Task(NamedTuple):
    """What is learned from, and what judges an agent's answer."""

    demos: Demonstrations
    background: Demonstrations | None
    judge: Callable[[Learned, str], Figures]


def measured(fit: Fit) -> list[Figures]:
    """Fit once; the figures of every agent."""
    task = _driven(fit) if fit.world == MINECART else _finite(fit)
    began = time.process_time()  # other work on the machine does not count
    learned = learner.learned(task.demos, task.background, fit.seed)
    seconds = time.process_time() - began
    found = []
    for agent in agents_of(fit):
        began = time.process_time()
        judged = task.judge(learned, agent) | verdict(learned, agent)
        spent = {"seconds": round(seconds, 2), "measuring_s": round(time.process_time() - began, 2), "steps": len(task.demos)}
        found.append({"agent": agent} | judged | spent)
    return found


def verdict(learned: Learned, agent: str) -> Figures:
    """What the fit says of itself."""
    return {
        "doubtful": agent in learned.doubtful,
        "findings": [name for who, name in learned.findings if who == agent],
        "log_findings": [name for who, name in learned.findings if who is None],
    }


def defined(r: float, with_itself: float) -> float | None:
    """A correlation with the truth: None if the truth is constant, so that it has none with itself; 0 if only the other is."""
    return None if np.isnan(with_itself) else float(np.nan_to_num(r))


# --- Finite worlds -------------------------------------------------------------------------------------------------------


def _finite(fit: Fit) -> Task:
    world, setting = world_of(fit), fit.setting
    log = demonstrations(world, setting.episodes, setting.noise, setting.kind, fit.seed, shuffled=setting.shuffled)
    background = random_walk(world, setting.background, BACKGROUND_SEED + fit.seed).demos if setting.background else None
    walk = random_walk(world, WALK, WALK_SEED + fit.seed)

    def judge(learned: Learned, agent: str) -> Figures:
        rewards = {name: everywhere(world, learned, agent, caution) for name, caution in CAUTIONS.items()}
        policies = {name: optimal_policy(world, reward) for name, reward in rewards.items()}
        policies["imitation"] = imitation(world, learned, agent)
        policies["count_clone"] = measures.count_clone(world, log, agent)
        if setting in WITH_MAXENT:
            policies["maxent"] = optimal_policy(world, world.reward(measures.maxent(world, log, agent)))
        truth = world.reward(agent)
        r, with_itself = (measures.correlations(world, reward, truth, log, agent, walk) for reward in (rewards["plain"], truth))
        own, logged, random = (defined(*pair) for pair in zip(r, with_itself, strict=True))
        return {
            "scores": NO_MAXENT | {name: score(world, policy, agent) for name, policy in policies.items()},
            "test_scores": NO_MAXENT | {name: score(world, policy, agent, world.test_start) for name, policy in policies.items()}
            if len(world.test_start)
            else None,
            "starc": measures.starc(world, rewards["default"], truth),
            "starc_plain": measures.starc(world, rewards["plain"], truth),
            "r_own": own,
            "r_all": logged,
            "r_random": random,
        }

    return Task(log.demos, background, judge)


def everywhere(world: World, learned: Learned, agent: str, caution: float | None) -> np.ndarray:
    """float64[S, A, J]: an inferred reward of all that can happen; 0 for what cannot, and where an episode is over."""
    s, a, j = np.nonzero((world.chance > 0) & world.live[:, None, None])
    reward = np.zeros(world.chance.shape)
    for first in range(0, len(s), MOST_ROWS):
        rows = slice(first, first + MOST_ROWS)
        at = s[rows], a[rows], j[rows]
        steps = Steps(world.obs[at[0]], at[1], world.obs[world.next_state[at]], world.ends[at])
        reward[at] = learned.reward(agent, caution, steps)
    if not np.isfinite(reward).all():
        raise ValueError(f"The reward of {agent!r} with caution {caution} has entries that are not finite.")
    return reward


def imitation(world: World, learned: Learned, agent: str) -> np.ndarray:
    """float64[S, A]: what an agent's imitation does."""
    values = np.concatenate([learned.values(agent, world.obs[i : i + MOST_ROWS]) for i in range(0, world.num_states, MOST_ROWS)])
    return np.eye(world.num_actions)[values.argmax(axis=1)]


# --- Minecart ------------------------------------------------------------------------------------------------------------


def _driven(fit: Fit) -> Task:
    """There is no exact planner here, and neither the counting clone nor MaxEnt: the best trip of a family stands for the plan."""
    setting = fit.setting
    if setting.kind != "epsilon" or setting.agents is not None:
        raise ValueError(f"Minecart has its own agents, who err by epsilon; expected no other setting, found {setting}.")
    log = minecart.demonstrations(setting.episodes, setting.noise, fit.seed, shuffled=setting.shuffled)
    background = minecart.random_walk(setting.background, BACKGROUND_SEED + fit.seed).demos if setting.background else None
    walk = minecart.random_walk(WALK, WALK_SEED + fit.seed)

    def judge(learned: Learned, agent: str) -> Figures:
        def paid(trip: minecart.Trip, caution: float | None) -> np.ndarray:
            return learned.reward(agent, caution, _steps_of_trip(trip))

        w = np.array(minecart.TASKS[agent])
        inferred = {name: functools.partial(paid, caution=caution) for name, caution in CAUTIONS.items()}
        scores: dict[str, float | None] = {name: minecart.score(reward, agent) for name, reward in inferred.items()}
        on_log = learned.reward(agent, 0.0, _steps_of_log(log.demos))
        on_walk = learned.reward(agent, 0.0, _steps_of_log(walk.demos))
        own = log.demos.agent == agent
        return {
            "scores": scores | {"imitation": trip_score(imitated(learned, agent), agent), "count_clone": None, "maxent": None},
            "test_scores": None,
            "starc": None,
            "starc_plain": None,
            "r_own": correlation(on_log[own], log.phi[own] @ w),
            "r_all": correlation(on_log, log.phi @ w),
            "r_random": correlation(on_walk, walk.phi @ w),
        }

    return Task(log.demos, background, judge)


def imitated(learned: Learned, agent: str) -> minecart.Trip:
    """The episode of an agent's imitation, in the real environment."""
    import mo_gymnasium

    env: Any = mo_gymnasium.make("minecart-deterministic-v0").unwrapped  # pyright: ignore[reportPrivateImportUsage]
    seen, done, paid, end = [np.asarray(env.reset()[0], np.float32)], [], [], False
    while not end and len(done) < minecart.LIMIT:
        done.append(int(learned.values(agent, seen[-1][None])[0].argmax()))
        obs, phi, end, _, _ = env.step(done[-1])
        seen.append(np.asarray(obs, np.float32))
        paid.append(phi)
    return minecart.Trip(np.array(seen), np.array(done, np.int64), np.array(paid, np.float32), bool(end))


def trip_score(trip: minecart.Trip, agent: str) -> float:
    """What a trip truly earns the agent, on the scale of `minecart.score`."""
    reward = minecart.true_reward(agent)
    earned = [minecart.discounted(reward, one) for one in minecart.trips().values()]
    return (minecart.discounted(reward, trip) - float(np.mean(earned))) / (max(earned) - float(np.mean(earned)))


def _steps_of_trip(trip: minecart.Trip) -> Steps:
    ends = np.zeros(len(trip.action), bool)
    ends[-1] = trip.terminated
    return Steps(trip.obs[:-1], trip.action, trip.obs[1:], ends)


def _steps_of_log(demos: Demonstrations) -> Steps:
    following = np.concatenate([demos.obs[1:], demos.obs[:1]])
    following[demos.episodes.start[1:] - 1] = demos.episodes.final_obs
    return Steps(demos.obs, demos.action, following, demos.terminated)


def correlation(inferred: np.ndarray, true: np.ndarray) -> float | None:
    """Of two rewards of the same steps; see `defined`."""
    constant = [np.ptp(x) <= 1e-9 * max(float(np.abs(x).max()), 1e-12) for x in (inferred, true)]
    return None if constant[1] else 0.0 if constant[0] else float(np.corrcoef(inferred, true)[0, 1])
