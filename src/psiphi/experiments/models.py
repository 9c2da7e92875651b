"""Trained models as directories: written by `psiphi train`, asked by `psiphi evaluate` and `psiphi adapt`.

A model directory is a checkpoint whose manifest also says in which setting it was trained, so that it can be rebuilt from nothing else.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi import checkpoint
from psiphi.agents import itd, psiphi
from psiphi.configs import from_json
from psiphi.envs import coingrid
from psiphi.envs.coingrid import CoinGridConfig
from psiphi.errors import UserError
from psiphi.experiments import coingrid as experiment
from psiphi.experiments import paper
from psiphi.experiments.coingrid import Setting, Trained
from psiphi.loops.few_shot import FewShotConfig, Shots, few_shot
from psiphi.model import Model, mended
from psiphi.types import Demonstration, Demos

DIRECTORY = "model"
"""Where a run directory keeps its model."""

RED_AND_GREEN = (1.0, 1.0, 0.0)
"""The ego's task in the paper: its table 2 adapts from there."""


# --- Settings by name ----------------------------------------------------------------------------------------------------


def preset(name: Literal["default", "paper"], algorithm: Literal["itd", "psiphi"]) -> Setting:
    """The default, or the paper's losses and numbers as printed; with `psiphi` the ego has a task of its own."""
    ego_task = RED_AND_GREEN if algorithm == "psiphi" else None
    if name == "default":
        return Setting(ego_task=ego_task, ego=psiphi.PsiPhiConfig() if ego_task else None)
    return Setting(
        itd=itd.paper(),
        ego_task=ego_task,
        ego=psiphi.paper() if ego_task else None,
        few_shot=FewShotConfig(inference="least-squares", kappa=0.0, temperature=0.0),
    )


def variant(name: str) -> paper.Variant:
    """An environment by the name it has on the command line."""
    if name not in paper.VARIANTS:
        raise UserError(f"{name!r} is not an environment; expected was one of {', '.join(paper.VARIANTS)}.")
    return paper.VARIANTS[name]


def changed(value: Any, changes: Mapping[str, Any]) -> Any:
    """A config with some fields replaced, by dotted names such as ``itd.beta``."""
    for name, new in changes.items():
        value = _replaced(value, name.split("."), new)
    return value


def _replaced(value: Any, path: list[str], new: Any) -> Any:
    first, *rest = path
    return dataclasses.replace(value, **{first: _replaced(getattr(value, first), rest, new) if rest else new})


def described(setting: Setting) -> dict[str, Any]:
    """A setting as JSON values. What the ego's config says of ITD is left out, as the setting's own part counts."""
    description = dataclasses.asdict(setting)
    if description["ego"]:
        del description["ego"]["itd"]
    return description


# --- On disk -------------------------------------------------------------------------------------------------------------


class Loaded(NamedTuple):
    """A model and where it comes from."""

    model: Model
    setting: Setting
    env: str
    seed: int


def save(directory: Path, trained: Trained, setting: Setting, env: str, seed: int) -> None:
    """Write a model directory, in place of one that is there."""
    meta = {
        "kind": "psiphi model",
        "env": env,
        "seed": seed,
        "setting": described(setting),
        "env_steps": trained.env_steps,
        "wall_s": round(trained.wall_s, 3),
    }
    checkpoint.save(directory, trained.model, meta=meta)


def directory_of(path: Path) -> Path:
    """A model directory, or the one inside a run directory."""
    directory = path / DIRECTORY if (path / DIRECTORY).is_dir() else path
    if not directory.is_dir():
        raise UserError(f"{path} {'is a file' if path.exists() else 'does not exist'}; expected was the directory of a trained model.")
    return directory


def kind_of(path: Path) -> Any:
    """What a directory says it holds."""
    return checkpoint.read_meta(directory_of(path)).get("kind")


def load(path: Path) -> Loaded:
    """Read a model directory, or the one inside a run directory."""
    directory = directory_of(path)
    meta = checkpoint.read_meta(directory)
    if meta.get("kind") != "psiphi model":
        raise UserError(
            f"{directory} is a checkpoint but not a trained model; `psiphi train` leaves one in its run directory when it is done."
        )
    env, seed = meta.get("env"), meta.get("seed")
    if not isinstance(env, str) or not isinstance(seed, int):
        raise UserError(f"{directory} is damaged: its manifest does not say which environment and seed the model comes from.")
    variant(env)
    setting = from_json(Setting, with_run_facts(meta.get("setting"), "itd"), f"{directory}: setting")
    return Loaded(mended(checkpoint.load(directory, like(setting))), setting, env, seed)


def with_run_facts(written: Any, where: str) -> Any:
    """A setting out of a file. Earlier versions kept `updates` and `num_envs` in the agent's config, which stands at the dotted `where`."""
    inner = written
    for part in where.split("."):
        inner = inner.get(part) if isinstance(inner, dict) else None
    if not isinstance(written, dict) or not isinstance(inner, dict):
        return written
    return {name: inner[name] for name in ("updates", "num_envs") if name in inner} | written


def like(setting: Setting) -> Any:
    """The shapes of a model that was trained in this setting, from tracing how it is made."""
    agents = len(setting.demonstrators)
    spec = coingrid.spec(setting.world)
    agent = experiment.make_agent(setting, spec)

    def made(key: Array, demos: Demos) -> Model:
        return experiment.to_model(setting.itd, agent.init(key, demos), demos, agents)

    def blank(*shape: int) -> Demos:
        obs, action = jnp.zeros((*shape, *spec.obs_shape), spec.obs_dtype), jnp.zeros(shape, jnp.int32)
        return Demos(Demonstration(obs, action, jnp.zeros(shape), obs, action), jnp.ones(agents, jnp.int32))

    return jax.eval_shape(made, jax.random.key(0), jax.eval_shape(lambda: blank(agents, 1)))


# --- What a model can be asked -------------------------------------------------------------------------------------------


def evaluate(setting: Setting, model: Model, seed: int, episodes: int = 500) -> dict[str, Any]:
    """All that judges a model against the truth; the seed draws held-out demonstrations, random steps and boards."""
    phi_key, planner_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 3))
    accuracy = experiment.held_out_accuracy(setting, model, seed, episodes)
    return {
        "demonstrators": [coingrid.task_name(weights) for weights in setting.demonstrators],
        "accuracy": accuracy["accuracy"],
        "ceiling_accuracy": accuracy["ceiling"],
        **experiment.explained(setting, model, phi_key),
        "planner_return": experiment.planned_on_inferred(setting, model, planner_key),
        "preferences": np.asarray(model.w).tolist(),
        "units": np.asarray(model.units).tolist(),
    }


def task(name: str) -> tuple[float, float, float]:
    """A task as the user gives it: a name such as R-G, or three weights such as 1,-1,0."""
    if "," not in name:
        return coingrid.task_weights(name)
    try:
        red, green, yellow = (float(part) for part in name.split(","))
    except ValueError as error:
        raise UserError(f"{name!r} is not a task; expected were three numbers for red, green and yellow, or a name such as R-G.") from error
    if not all(map(math.isfinite, (red, green, yellow))):
        raise UserError(f"{name!r} is not a task: its weights must be finite numbers.")
    return red, green, yellow


class Adaptation(NamedTuple):
    """How one model did on one new task, in each of N repetitions."""

    first: np.ndarray
    """Return of the first episode."""
    after: np.ndarray
    """Return of an episode after the last of k."""
    w: np.ndarray
    """The preferences inferred, ``[N, d]``."""


def adapt(setting: Setting, model: Model, weights: tuple[float, float, float], key: Array, *, shots: int, repetitions: int) -> Adaptation:
    """Meet a new task `repetitions` times over, each time from scratch."""
    if shots < 1 or repetitions < 1:
        raise UserError(f"Adapting needs at least 1 shot and 1 repetition, but found {shots} and {repetitions}.")
    got = _adapted(setting.world, setting.few_shot, model, jnp.asarray(weights), key, shots=shots, repetitions=repetitions)
    return Adaptation(*map(np.asarray, got))


@functools.partial(jax.jit, static_argnames=("world", "config", "shots", "repetitions"))
def _adapted(
    world: CoinGridConfig, config: FewShotConfig, model: Model, weights: Array, key: Array, *, shots: int, repetitions: int
) -> Shots:
    """Compiled once for all tasks."""
    return few_shot(coingrid.make(world, weights), model, config, key, shots=shots, repetitions=repetitions, max_steps=world.max_steps)
