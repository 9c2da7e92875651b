"""Highway: drive among others at a speed and in a lane of one's own; the paper's three scenarios."""

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from psiphi.envs import highway
from psiphi.envs.highway import Goal, HighwayConfig
from psiphi.envs.traffic import roads
from psiphi.envs.traffic_gym import TrafficEnv
from psiphi.errors import UserError
from psiphi.types import Demonstration, Env, Metrics
from psiphi.worlds import traffic
from psiphi.worlds.world import OWN, Recorded, World

REFERENCE = {"single-task": 60.3, "adversarial": 65.1, "multi-task": 70.7}
"""What IDM earns in the ego's place on the scenario's own task: the mean of 512 episodes with key 1000."""
CONTINUOUS_REFERENCE = {"single-task": 59.8, "adversarial": 65.1, "multi-task": 71.7}
"""The same among others who drive by continuous commands (`same_actions` off)."""

SCENARIOS = {name: make() for name, make in highway.SCENARIOS.items()}


# --- Tasks ---------------------------------------------------------------------------------------------------------------


def goal_of(config: HighwayConfig, task: str) -> Goal:
    """A task by its name: the config's own, or a speed and a lane such as speed=26,lane=1."""
    if task in (OWN, "own"):
        return config.ego
    found = re.fullmatch(r"speed=(\d+(?:\.\d+)?),lane=(\d+)", task)
    if not found:
        raise UserError(f"{task!r} is not a task of Highway; expected own, or a speed in m/s and a lane from 0, such as speed=26,lane=1.")
    speed = float(found[1])
    return replace(config.ego, speed=(speed, speed), lane=int(found[2]))


def task_name(config: HighwayConfig, task: str) -> str:
    wish = goal_of(config, task)
    toward(config, task)  # refuses a lane that the road has not
    return "own" if wish == config.ego else f"speed={wish.speed[0]:g},lane={wish.lane}"


def toward(config: HighwayConfig, task: str) -> HighwayConfig:
    """The world in which the ego is paid for a task."""
    return replace(config, ego=goal_of(config, task))


def tasks(config: HighwayConfig) -> tuple[str, ...]:
    return ("own", *dict.fromkeys(f"speed={speed},lane={lane}" for lane in range(config.lanes) for speed in (22, 26, 30)))


def _env(config: HighwayConfig, task: str) -> Env:
    return highway.make(toward(config, task))


def _figures(config: HighwayConfig, task: str, got: Mapping[str, Array]) -> Metrics:
    """Whoever does not drive to the time limit has crashed or left the road."""
    known = {made: REFERENCE[name] for name, made in SCENARIOS.items()}
    known |= {replace(made, same_actions=False): CONTINUOUS_REFERENCE[name] for name, made in SCENARIOS.items()}
    failed = jnp.mean(got["lengths"] < config.max_steps)
    return {**traffic.figures(known.get(toward(config, task)), got), "failed": failed}


# --- Demonstrators -------------------------------------------------------------------------------------------------------


def watched(config: HighwayConfig) -> tuple[str, ...]:
    """Who is seen while one drives: a demonstrator is a goal, or a car."""
    if config.demonstrator == "car":
        return tuple(f"car {k + 1}" for k in range(highway.num_demonstrators(config)))
    return tuple(_named(wish, k) for k, wish in enumerate(config.goals))


def _named(wish: Goal, k: int) -> str:
    if wish.parked:
        return "parked"
    if wish.lane is None or wish.speed[0] != wish.speed[1]:
        return f"goal {k + 1}"
    return f"speed={wish.speed[0]:g},lane={wish.lane}"


def _record(config: HighwayConfig, demonstrators: tuple[str, ...], episodes: int, seed: int, split: str) -> Recorded:
    """IDM in the ego's seat, with each demonstrator's goal, by the ego's actions."""
    goals = dict(zip(watched(config), config.goals, strict=False)) if config.demonstrator == "goal" else {}
    shown = []
    for k, name in enumerate(demonstrators):
        wish = goals.get(name) or goal_of(config, name)
        if wish.parked or wish.lane is None:
            raise UserError(f"The demonstrator {name!r} of Highway cannot be recorded: it is parked or wants no lane; watch it online.")
        key = jax.random.fold_in(traffic.recording_key(seed, split), k)
        shown.append(jax.device_get(_driven(replace(config, ego=wish), key, episodes)))
    return traffic.side_by_side(shown, episodes, config.max_steps)


@functools.partial(jax.jit, static_argnames=("config", "episodes"))
def _driven(config: HighwayConfig, key: Array, episodes: int) -> tuple[Array, Demonstration]:
    expert = functools.partial(highway.expert, config)
    return traffic.driven(highway.make(config), expert, lambda reached: reached.discount > 0, key, episodes, config.max_steps)


def _wants(config: HighwayConfig, name: str) -> str:
    return task_name(config, name) if name.startswith("speed=") else OWN


def _drawn(config: HighwayConfig, task: str) -> TrafficEnv:
    made = toward(config, task)
    return TrafficEnv("Highway", made, roads.highway(made.lanes, highway.ROAD_LENGTH), highway.CLIP, "rgb_array")


def expert_returns(config: HighwayConfig, key: Array, episodes: int) -> dict[str, Any]:
    """What IDM earns in the ego's place."""
    return traffic.expert_returns(highway.make(config), functools.partial(highway.expert, config), key, episodes, config.max_steps)


# --- The worlds ----------------------------------------------------------------------------------------------------------

WORDS = {
    "single-task": "Highway, where the others want what the ego wants",
    "adversarial": "Highway among parked cars, who show nothing",
    "multi-task": "Highway, where four kinds of drivers want other speeds and lanes than the ego",
}


def _world(scenario: str) -> World:
    return World(
        name=f"highway-{scenario}",
        words=WORDS[scenario],
        config=SCENARIOS[scenario],
        env=_env,
        tasks=tasks,
        task=task_name,
        demonstrators=watched,
        wants=_wants,
        record=_record,
        watched=watched,
        figures=_figures,
        longest=lambda config: config.max_steps,
        presets=traffic.presets(reward_offset=0.4, psiphi_updates=2),
        drawn=_drawn,
    )


SINGLE_TASK, ADVERSARIAL, MULTI_TASK = (_world(scenario) for scenario in ("single-task", "adversarial", "multi-task"))
