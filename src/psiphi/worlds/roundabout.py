"""Roundabout: enter, drive around and leave at an exit, among others who leave at the first or second. A task is an exit."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from psiphi import model as models
from psiphi.agents.bc import BCConfig
from psiphi.agents.guided import GuidedConfig
from psiphi.envs import roundabout
from psiphi.envs.roundabout import EXITS, RoundaboutConfig
from psiphi.envs.traffic_gym import TrafficEnv
from psiphi.errors import UserError
from psiphi.model import Model
from psiphi.types import Demonstration, Env, Metrics
from psiphi.worlds import traffic
from psiphi.worlds.world import OWN, Recorded, World

REFERENCE = 44.1
"""What IDM earns on the way to the third exit: the mean of 512 episodes with key 1000."""
CONTINUOUS_REFERENCE = 44.7
"""The same among others who drive by continuous commands (`same_actions` off)."""


def task_name(config: RoundaboutConfig, task: str) -> str:
    """An exit by its name, exr, nxr, wxr or sxr; the config's own without one."""
    exit = config.ego_exit if task in (OWN, "own") else task
    if exit not in EXITS:
        raise UserError(f"{task!r} is not a task of Roundabout; expected an exit, one of {', '.join(EXITS)}.")
    return exit


def toward(config: RoundaboutConfig, k: Array | int, *, others: RoundaboutConfig | None = None) -> Env:
    """The world in which the ego must leave where demonstrator k does: the same traffic, another route, another reward.

    With `others`, that is the traffic, and the ego must leave at exit k of `config`.
    """
    return roundabout.make(others or config, jnp.array([EXITS.index(exit) for exit in config.exits])[k])


def _env(config: RoundaboutConfig, task: str) -> Env:
    return roundabout.make(replace(config, ego_exit=task_name(config, task)))


def _figures(config: RoundaboutConfig, task: str, got: Mapping[str, Array]) -> Metrics:
    known = {RoundaboutConfig(): REFERENCE, RoundaboutConfig(same_actions=False): CONTINUOUS_REFERENCE}
    return traffic.figures(known.get(replace(config, ego_exit=task_name(config, task))), got)


def record(config: RoundaboutConfig, demonstrators: tuple[str, ...], episodes: int, seed: int, split: str = "train") -> Recorded:
    """So many episodes of each demonstrator: IDM in the ego's place, on its way to that one's exit, by the ego's actions."""
    exits = tuple(task_name(config, name) for name in demonstrators)
    goals = replace(config, exits=exits, exit_weights=(1.0,) * len(exits))
    key = traffic.recording_key(seed, split)
    shown = [jax.device_get(_driven(goals, config, jnp.asarray(k), jax.random.fold_in(key, k), episodes)) for k in range(len(exits))]
    return traffic.side_by_side(shown, episodes, config.max_steps)


@functools.partial(jax.jit, static_argnames=("goals", "config", "episodes"))
def _driven(goals: RoundaboutConfig, config: RoundaboutConfig, k: Array, key: Array, episodes: int) -> tuple[Array, Demonstration]:
    expert = functools.partial(roundabout.expert, config)
    arrived = lambda reached: reached.extras["arrived"]  # noqa: E731
    return traffic.driven(toward(goals, k, others=config), expert, arrived, key, episodes, config.max_steps)


def _watched(config: RoundaboutConfig) -> tuple[str, ...]:
    if config.demonstrator == "car":
        return tuple(f"car {k + 1}" for k in range(roundabout.num_demonstrators(config)))
    return config.exits


def _drawn(config: RoundaboutConfig, task: str) -> TrafficEnv:
    made = replace(config, ego_exit=task_name(config, task))
    return TrafficEnv("Roundabout", made, roundabout.ROAD, roundabout.CLIP, "rgb_array")


def expert_returns(config: RoundaboutConfig, key: Array, episodes: int) -> dict[str, Any]:
    """What IDM earns in the ego's place."""
    return traffic.expert_returns(roundabout.make(config), functools.partial(roundabout.expert, config), key, episodes, config.max_steps)


def _starc(config: RoundaboutConfig, demonstrators: tuple[str, ...], model: Model, key: Array, gamma: float) -> list[float]:
    exits = tuple(task_name(config, name) for name in demonstrators)
    return [float(_starc_of(replace(config, ego_exit=exit), model, jnp.asarray(k), key, gamma)) for k, exit in enumerate(exits)]


@functools.partial(jax.jit, static_argnames=("config", "gamma"))
def _starc_of(config: RoundaboutConfig, model: Model, k: Array, key: Array, gamma: float) -> Array:
    inferred = lambda *step: jnp.take(models.rewards(model, *step), k, axis=-1)  # noqa: E731
    return traffic.starc(roundabout.make(config), functools.partial(roundabout.expert, config), inferred, key, gamma, config.max_steps)


def _psiphi() -> dict[str, Any]:
    """Three-step returns, and recorded demonstrators who are studied before the first step and followed at first.

    No demonstrator shows how to leave at the third exit, so it must be found. The ego goes on following one of them for a second and a half
    now and then. Its newest network acts, by one member of its ensemble: by the moving average and the most pessimistic member it tries so
    little that it drives round and round. Whom it follows are clones that cannot tell the arms apart, so that leaving carries over from one
    to another. Preferences that follow rewards slowly, and a clip that does not bite at every update, let its values settle.
    """
    fields = traffic.presets(reward_offset=0.0, psiphi_updates=2)["psiphi"]()
    agent = replace(
        fields["agent"], itd=replace(fields["agent"].itd, torso="ring-norm", clip=100.0), n_step=3, follow=1.0, followed=0.4, follow_on=0.2,
        stretch=16, guide="ring-blind", act_by_newest=True, act_by_member=True, task_memory=0.999, task_ridge=0.1,
    )  # fmt: skip
    return fields | {"agent": agent, "demos": "recorded", "episodes": 100, "study": 500, "prefill_steps": 256, "steps": 64_000}


def _guided() -> dict[str, Any]:
    """A DQN with PsiPhi-learning's torso, steps, updates and clones. It follows them less, and studies nothing before its first step: that
    was better on two tuning seeds."""
    like, fields = _psiphi(), traffic.presets(reward_offset=0.0, psiphi_updates=2)["guided-dqn"]()
    inner, shared = like["agent"].itd, like["agent"]
    clone = BCConfig(
        torso=shared.guide, torso_hidden=inner.torso_hidden, head_hidden=inner.psi_hidden, learning_rate=inner.learning_rate,
        clip=inner.clip, batch=inner.batch, ema=0.0, mirror=False,
    )  # fmt: skip
    agent = GuidedConfig(
        dqn=replace(fields["agent"].dqn, torso=inner.torso), clone=clone, follow=1.0, followed=0.25, follow_on=0.1, stretch=shared.stretch
    )
    return like | {"agent": agent, "study": 0, "prefill_steps": fields["prefill_steps"]}


ROUNDABOUT = World(
    name="roundabout",
    words="Roundabout, where the ego must leave at the third exit and the others leave at the first or second",
    config=RoundaboutConfig(),
    env=_env,
    tasks=lambda config: (config.ego_exit, *(exit for exit in EXITS if exit != config.ego_exit)),
    task=task_name,
    demonstrators=lambda config: config.exits,
    wants=task_name,
    record=record,
    watched=_watched,
    figures=_figures,
    longest=lambda config: config.max_steps,
    presets=traffic.presets(reward_offset=0.0, psiphi_updates=2) | {"psiphi": _psiphi, "guided-dqn": _guided},
    drawn=_drawn,
    starc=_starc,
)
