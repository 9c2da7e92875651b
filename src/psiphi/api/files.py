"""Model files: a directory with a manifest and named arrays, checked before use. Reading one runs no code from it."""

import dataclasses
import math
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from psiphi import checkpoint, limits
from psiphi import model as models
from psiphi.agents import itd
from psiphi.agents.itd import ITDConfig
from psiphi.agents.psiphi import PsiPhiConfig
from psiphi.api import lens
from psiphi.api.answers import Form
from psiphi.api.coverage import Coverage
from psiphi.api.known import Known
from psiphi.api.verdict import Verdict
from psiphi.configs import Count, Positive, Seed, Weight, Within, from_json
from psiphi.cumulants import Changes, Cumulants, Ends, FeatureFunction, Given
from psiphi.errors import UserError
from psiphi.model import Model
from psiphi.nets import Committee

KIND = "psiphi api model"
VERSION = 2
READABLE = 1, 2
"""Raised when the meaning of a manifest changes."""

Algorithm = Literal["itd", "psiphi"]
CONFIGS: dict[str, type] = {"itd": ITDConfig, "psiphi": PsiPhiConfig}


@dataclasses.dataclass(frozen=True)
class GivenShape:
    """Of cumulants that are not learned, what is no array."""

    size: int
    kind: Literal["changes", "given"]
    columns: int = 0
    levels: tuple[int, ...] = ()
    ends: Ends | None = None


@dataclasses.dataclass(frozen=True)
class Described:
    """What a manifest says of a model besides its config and its agents' ids."""

    obs_shape: tuple[Count, ...]
    obs_dtype: str
    standardised: bool
    num_actions: Annotated[int, Within(1, limits.MOST_ACTIONS)]
    first_action: int
    beta: Positive
    temperature: Weight
    ego: bool
    has_task: bool
    seed: Seed
    likeness: tuple[tuple[float, ...], ...]
    coverage: tuple[float, ...]
    actions_seen: float
    gamma: float = 0.9
    form: Form = "wants"
    forms: tuple[Form, ...] = ()
    caution: tuple[float, ...] = ()
    lapse: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    members: int = 0
    """Networks in the committee; 0: there is a single one."""
    given: GivenShape | None = None
    likeness_least: tuple[tuple[float, ...], ...] = ()
    likeness_most: tuple[tuple[float, ...], ...] = ()


def save(path: Path, algorithm: Algorithm, known: Known, config: Any, seed: int, task: np.ndarray | None) -> None:
    """Write a model directory."""
    least, most = ((), ()) if known.likeness_range is None else (_rows(table) for table in known.likeness_range)
    description = Described(
        obs_shape=known.lens.shape,
        obs_dtype=known.lens.dtype.name,
        standardised=known.lens.standardise,
        num_actions=known.num_actions,
        first_action=known.first_action,
        beta=known.beta,
        temperature=known.temperature,
        ego=known.has_ego,
        has_task=task is not None,
        seed=seed,
        likeness=_rows(known.likeness),
        coverage=tuple(known.coverage.share[agent] for agent in known.agents),
        actions_seen=known.coverage.actions,
        gamma=known.gamma,
        form=known.form,
        forms=known.forms,
        caution=known.caution,
        lapse=known.lapse,
        names=known.names,
        members=known.model.net.nets.w.shape[0] if isinstance(known.model.net, Committee) else 0,
        given=given_shape(known.model.net.given),
        likeness_least=least,
        likeness_most=most,
    )
    meta = {
        "kind": KIND,
        "version": VERSION,
        "algorithm": algorithm,
        "agents": list(known.agents),
        "config": dataclasses.asdict(config),
        "model": dataclasses.asdict(description),
        "verdict": None if known.verdict is None else known.verdict.to_json(),
    }
    task_array = np.zeros(known.model.w.shape[1], np.float32) if task is None else np.asarray(task, np.float32)
    checkpoint.save(path, {"model": known.model, "task": task_array}, meta=meta)


def _rows(table: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, row)) for row in table)


class Loaded(typing.NamedTuple):
    """What a model directory holds."""

    algorithm: Algorithm
    known: Known
    config: Any
    seed: int
    task: np.ndarray | None


def read(path: Path, features: FeatureFunction | None = None) -> Loaded:
    """Read a model directory and check all of it; a function that gives its cumulants is no part of it."""
    meta = checkpoint.read_meta(path)
    if meta.get("kind") != KIND:
        raise UserError(f"{path} is a checkpoint but not a model that psiphi.ITD or psiphi.PsiPhi saved.")
    if meta.get("version") not in READABLE:
        raise UserError(f"{path} is a model of version {meta.get('version')!r}, but this psiphi reads versions {READABLE}; update psiphi.")
    algorithm = meta.get("algorithm")
    if algorithm not in list(CONFIGS):
        raise UserError(f"{path} is damaged: its algorithm is {algorithm!r}, but expected was one of {', '.join(CONFIGS)}.")
    described = from_json(Described, meta.get("model"), f"{path}: model")
    config = from_json(CONFIGS[algorithm], meta.get("config"), f"{path}: config")
    agents = _agents(path, meta.get("agents"), described)
    inner = config.itd if isinstance(config, PsiPhiConfig) else config
    glass = lens.blank(described.obs_shape, described.obs_dtype, described.standardised)
    model = _like(inner, glass, described, len(agents), features)
    like = {"model": model, "task": np.zeros(model.w.shape[1], np.float32)}
    arrays = checkpoint.load(path, like)
    judged = meta.get("verdict")
    known = _known(models.mended(arrays["model"]), glass, described, agents)
    known = dataclasses.replace(known, verdict=None if judged is None else Verdict.from_json(judged, f"{path}: verdict"))
    return Loaded(algorithm, known, config, described.seed, arrays["task"] if described.has_task else None)


def given_shape(given: Cumulants | None) -> GivenShape | None:
    """What a file says of cumulants that are not learned."""
    if given is None:
        return None
    if isinstance(given, Given):
        return GivenShape(given.size, "given")
    return GivenShape(given.size, "changes", given.mean.shape[0], given.levels, given.ends)


def _blank(shape: GivenShape | None, features: FeatureFunction | None) -> Cumulants | None:
    """Cumulants whose numbers are yet to be read."""
    if shape is None:
        return None
    if shape.kind == "given":
        return Given(jnp.zeros(shape.size), features, False)
    return Changes(jnp.zeros(shape.columns), jnp.ones(shape.columns), jnp.zeros(shape.size), shape.levels, shape.ends)


def _like(config: ITDConfig, glass: lens.Lens, described: Described, agents: int, features: FeatureFunction | None) -> Any:
    """The shapes of the arrays of such a model, from tracing how it is made."""

    def made(key: jax.Array) -> Model:
        heads = agents + described.ego
        given = _blank(described.given, features)

        def net(key: jax.Array) -> Any:
            return glass.on(itd.initial_net(config, glass.spec(described.num_actions), heads, key, given))

        whole = Committee(jax.vmap(net)(jax.random.split(key, described.members))) if described.members else net(key)
        return Model(whole, jnp.zeros(whole.w.shape), jnp.ones(agents))

    return jax.eval_shape(made, jax.random.key(0))


def _known(model: Model, glass: lens.Lens, described: Described, agents: tuple[Any, ...]) -> Known:
    torso: Any = model.net.member(0).torso if isinstance(model.net, Committee) else model.net.torso
    read = dataclasses.replace(glass, mean=np.asarray(torso.mean), scale=np.asarray(torso.scale))
    covered = Coverage(dict(zip(agents, described.coverage, strict=True)), described.actions_seen, described.num_actions)
    return Known(
        model=model,
        lens=read,
        agents=agents,
        num_actions=described.num_actions,
        beta=described.beta,
        temperature=described.temperature,
        likeness=np.asarray(described.likeness),
        coverage=covered,
        first_action=described.first_action,
        gamma=described.gamma,
        form=described.form,
        forms=described.forms,
        caution=described.caution,
        lapse=described.lapse,
        names=described.names,
        likeness_range=np.asarray([described.likeness_least, described.likeness_most]) if described.likeness_least else None,
    )


def _agents(path: Path, agents: Any, described: Described) -> tuple[Any, ...]:
    """The ids, all strings or all integers and no two alike, and as many as everything else says."""
    fine = isinstance(agents, list) and agents and (all(type(a) is str for a in agents) or all(type(a) is int for a in agents))
    if not fine or len(set(agents)) != len(agents):
        raise UserError(f"{path} is damaged: its agents are not different ids, all strings or all integers.")
    optional = [len(column) for column in (described.caution, described.lapse, described.forms) if column]
    tables = [described.likeness, *((described.likeness_least, described.likeness_most) if described.likeness_least else ())]
    sizes = {len(agents), len(described.coverage), *optional, *(size for table in tables for size in (len(table), *map(len, table)))}
    if len(sizes) != 1 or described.num_actions < 1 or min(described.obs_shape, default=0) < 1 or described.beta <= 0:
        raise UserError(f"{path} is damaged: what its manifest says of agents, actions and observations does not fit together.")
    limits.check_most(f"{path} is damaged: too large observations, in entries", math.prod(described.obs_shape), limits.MOST_ENTRIES)
    limits.check_most(f"{path} is damaged: too many agents", len(agents), limits.MOST_AGENTS)
    if described.obs_dtype not in checkpoint.DTYPES:
        raise UserError(f"{path} is damaged: observations of type {described.obs_dtype!r} are none that psiphi knows.")
    return tuple(agents)
