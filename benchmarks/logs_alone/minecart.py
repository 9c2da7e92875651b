"""MO-Gymnasium's minecart-deterministic-v0, whose states are continuous: agents who drive to a mine, dig, and bring the ore home.

There is no exact plan here. What there is instead is a family of `trips`, each a mine, how often to dig and how fast to drive, driven in
the real environment: an agent makes the trip that is best for what it truly wants, and an inferred reward is judged by the trip that it
makes out to be best (`score`). 1 is therefore the best of the family, not the optimum, and 0 a trip of the family drawn by lot, not the
uniform policy: it wastes so much fuel that any trip at all would score well beside it.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from psiphi import Demonstrations

GAMMA = 0.98
LIMIT = 200
"""Steps after which an episode is cut off; the environment's own limit is 1,000."""
NAMES = ("x", "y", "speed", "sin", "cos", "ore zero", "ore one")
PHI_NAMES = ("ore zero", "ore one", "fuel")
TASKS = {"zero": (1.0, 0.0, 0.1), "one": (0.0, 1.0, 0.1), "both": (1.0, 1.0, 0.1), "thrifty": (0.5, 0.5, 1.0), "nearest": (0.0, 0.0, 1.0)}
"""What each agent truly wants of `PHI_NAMES`, the environment's reward vector; fuel is negative."""
DIG, LEFT, RIGHT, FASTER, BRAKE, NOTHING = range(6)


class Plan(NamedTuple):
    """A trip to a mine and back."""

    mine: int
    """Which; -1: just out of the base and back in."""
    digs: int
    speed: int
    """How many times to accelerate."""


class Trip(NamedTuple):
    """One episode."""

    obs: np.ndarray
    """float32[T + 1, 7]."""
    action: np.ndarray
    """int64[T]."""
    phi: np.ndarray
    """float32[T, 3]: the environment's reward vectors."""
    terminated: bool


class Driven(NamedTuple):
    """Demonstrations, and of each of their steps the true features."""

    demos: Demonstrations
    phi: np.ndarray
    """float32[M, 3]."""


Reward = Callable[[Trip], np.ndarray]
"""[T]: what each step of a trip earns."""


def true_reward(agent: str) -> Reward:
    w = np.array(TASKS[agent])
    return lambda trip: trip.phi @ w


def demonstrations(episodes: int, noise: float = 0.1, seed: int = 0, *, shuffled: bool = False) -> Driven:
    """So many episodes of every agent, who makes its best trip, with probability `noise` of a uniformly random action at every step."""
    rng = np.random.default_rng(seed)
    who = [agent for agent in TASKS for _ in range(episodes)]
    seen = [_driven(best_plan(true_reward(agent)), noise, rng) for agent in who]
    return _logged(seen, [who[i] for i in rng.permutation(len(who))] if shuffled else who)


def random_walk(steps: int, seed: int = 0) -> Driven:
    """At least so many steps of a single agent, "anybody", who does anything."""
    rng, seen, total = np.random.default_rng(seed), [], 0
    while total < steps:
        seen.append(_driven(Plan(-1, 0, 1), 1.0, rng))
        total += len(seen[-1].action)
    return _logged(seen, ["anybody"] * len(seen))


def score(inferred: Reward, agent: str) -> float:
    """What the trip that an inferred reward prefers truly earns the agent: 0 is the mean of all trips, 1 the best."""
    earned = {plan: discounted(true_reward(agent), trip) for plan, trip in trips().items()}
    mean, best = float(np.mean(list(earned.values()))), max(earned.values())
    return (earned[best_plan(inferred)] - mean) / (best - mean)


def best_plan(reward: Reward) -> Plan:
    return max(trips(), key=lambda plan: discounted(reward, trips()[plan]))


def discounted(reward: Reward, trip: Trip) -> float:
    return float(reward(trip) @ GAMMA ** np.arange(len(trip.action)))


@functools.cache
def trips() -> dict[Plan, Trip]:
    """Every trip of the family that comes home, driven without a mistake."""
    rng = np.random.default_rng(0)
    plans = [Plan(-1, 0, 1), *(Plan(mine, digs, speed) for mine in range(5) for digs in (1, 2, 3) for speed in (1, 2, 3))]
    driven = {plan: _driven(plan, 0.0, rng) for plan in plans}
    return {plan: trip for plan, trip in driven.items() if trip.terminated}


# --- Driving -------------------------------------------------------------------------------------------------------------


@functools.cache
def _environment() -> Any:
    import mo_gymnasium

    return mo_gymnasium.make("minecart-deterministic-v0").unwrapped  # pyright: ignore[reportPrivateImportUsage]


def _driven(plan: Plan, noise: float, rng: np.random.Generator) -> Trip:
    """An episode of a driver who follows a plan, and goes on with it from wherever a mistake took it."""
    env = _environment()
    seen, done, paid, end = [env.reset()[0]], [], [], False
    dug = 0
    while not end and len(done) < LIMIT:
        action = int(rng.integers(6)) if rng.random() < noise else _choice(env, plan, dug)
        held = env.cart.content.sum()
        obs, phi, end, _, _ = env.step(action)
        dug += action == DIG and env.cart.content.sum() > held
        seen.append(obs)
        done.append(action)
        paid.append(phi)
    return Trip(np.array(seen, np.float32), np.array(done, np.int64), np.array(paid, np.float32), bool(end))


def _choice(env: Any, plan: Plan, dug: int) -> int:
    """What to do next: stop at the mine, dig, or drive to the mine or home."""
    position, full = env.cart.pos, env.cart.content.sum() >= env.capacity - 1e-6
    if plan.mine < 0:
        return _steered(env, np.zeros(2) if env.cart.departed else np.ones(2), plan.speed)
    if dug >= plan.digs or full:
        return _steered(env, np.zeros(2), plan.speed)
    mine = env.mines[plan.mine].pos
    if np.hypot(*(mine - position)) > 0.12:
        return _steered(env, mine, plan.speed)
    return BRAKE if env.cart.speed > 1e-3 else DIG


def _steered(env: Any, goal: np.ndarray, speed: int) -> int:
    """Turn to the goal, 40 degrees at a time; then accelerate or let the cart roll."""
    way = goal - env.cart.pos
    wrong = (math.degrees(math.atan2(way[1], way[0])) - env.cart.angle + 180) % 360 - 180
    if abs(wrong) > 20:
        return RIGHT if wrong > 0 else LEFT
    return FASTER if env.cart.speed < 0.03 * speed - 1e-3 else NOTHING


def _logged(seen: list[Trip], who: list[str]) -> Driven:
    terminated = [trip.terminated for trip in seen]
    demos = Demonstrations.from_lists(
        [trip.obs for trip in seen],
        [trip.action for trip in seen],
        who,
        terminated=terminated,
        truncated=[not ended for ended in terminated],
        num_actions=6,
        names=NAMES,
    )
    return Driven(demos, np.concatenate([trip.phi for trip in seen]))
