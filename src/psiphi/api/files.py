"""Model files: one kind of directory for models and policies, written by everything that trains. Reading one runs no code from it.

The manifest says which algorithm it was, its config, whom it knows and, where it was trained in a world, the run. A *model* (itd, psiphi)
has successor features, preferences and rewards; a *policy* (all others) has a network per demonstrator, or one.
"""

import dataclasses
import math
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from psiphi import checkpoint, gpi, lens, limits
from psiphi import model as models
from psiphi.agents import ALGORITHMS, itd, psiphi
from psiphi.agents.itd import ITDConfig
from psiphi.api.answers import Form
from psiphi.api.coverage import Coverage
from psiphi.api.known import Known
from psiphi.api.verdict import Verdict
from psiphi.configs import Count, Positive, Seed, Weight, Within, from_json
from psiphi.cumulants import Changes, Counted, Cumulants, Ends, FeatureFunction, Given
from psiphi.demos.discretiser import Discretiser
from psiphi.errors import UserError
from psiphi.model import Model
from psiphi.nets import Committee
from psiphi.types import EnvSpec, Kind

KIND, VERSION = "psiphi model", 3
"""The version is raised when the meaning of a manifest changes."""

OLD_KIND, OLD_VERSIONS = "psiphi api model", (1, 2)
"""What psiphi.ITD and psiphi.PsiPhi wrote before 0.2; it is still read."""

DIRECTORY = "model"
"""Where a run directory keeps its model."""


@dataclasses.dataclass(frozen=True)
class GivenShape:
    """Of cumulants that are not learned, what is no array."""

    size: int
    kind: Literal["changes", "given"]
    columns: int = 0
    levels: tuple[int, ...] = ()
    ends: Ends | None = None
    counted: Counted = ()


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
    lensed: bool = True
    """Whether the networks see through a lens; off: they read observations as they are."""
    likeness_least: tuple[tuple[float, ...], ...] = ()
    likeness_most: tuple[tuple[float, ...], ...] = ()
    columns: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    kind: Kind | None = None
    """What an observation is; None in files of before models said so."""


@dataclasses.dataclass(frozen=True)
class DescribedPolicy:
    """What a manifest says of a policy besides its config and its agents' ids."""

    obs_shape: tuple[Count, ...]
    obs_dtype: str
    standardised: bool
    num_actions: Annotated[int, Within(1, limits.MOST_ACTIONS)]
    first_action: int
    seed: Seed
    lensed: bool
    kind: Kind | None = None
    """As of a model."""


def _glass(described: Described | DescribedPolicy) -> lens.Lens:
    """The lens of a file, whose numbers are yet to be read. Before files said what observations are, their size decided it."""
    shape = described.obs_shape
    cells = len(shape) == 3 or (len(shape) == 2 and described.obs_dtype == "uint8" and min(shape) > 16)
    before: Kind = "vector" if not cells else "picture" if shape[0] > 16 or min(shape[1:]) > 16 else "board"
    return lens.blank(shape, described.obs_dtype, described.standardised, described.kind or before)


def _plain(described: Described | DescribedPolicy) -> EnvSpec:
    """The observations as the world gives them."""
    return EnvSpec(described.obs_shape, np.dtype(described.obs_dtype), described.num_actions, kind=_glass(described).kind)


def save(
    path: Path,
    algorithm: str,
    known: Known,
    config: Any,
    seed: int,
    task: np.ndarray | None,
    *,
    run: dict[str, Any] | None = None,
    policies: Any = None,
) -> None:
    """Write a model directory; `run` is the run that made it, `policies` are of learners on its rewards, one per demonstrator."""
    least, most = ((), ()) if known.likeness_range is None else (_rows(table) for table in known.likeness_range)
    description = Described(
        obs_shape=known.lens.shape,
        obs_dtype=known.lens.dtype.name,
        standardised=known.lens.standardise,
        kind=known.lens.kind,
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
        lensed=lensed(known.model),
        likeness_least=least,
        likeness_most=most,
        columns=known.columns,
        action_names=known.action_names,
    )
    meta = {
        **_head(algorithm, known.agents, config, run),
        "model": dataclasses.asdict(description),
        "verdict": None if known.verdict is None else known.verdict.to_json(),
        "discretiser": None if known.discretiser is None else known.discretiser.to_dict(),
    }
    task_array = np.zeros(known.model.w.shape[1], np.float32) if task is None else np.asarray(task, np.float32)
    further = {} if policies is None else {"policies": policies}
    checkpoint.save(path, {"model": known.model, "task": task_array, **further}, meta=meta)


class Policies(typing.NamedTuple):
    """Trained policies: one network, or one for each demonstrator, stacked; and how they see."""

    net: Any
    lens: lens.Lens | None
    spec: EnvSpec
    first_action: int
    agents: tuple[Any, ...]


def save_policy(path: Path, algorithm: str, policy: Policies, config: Any, seed: int, run: dict[str, Any] | None) -> None:
    """Write the directory of a policy."""
    glass = policy.lens
    description = DescribedPolicy(
        obs_shape=tuple(policy.spec.obs_shape),
        obs_dtype=np.dtype(policy.spec.obs_dtype).name,
        standardised=glass is not None and glass.standardise,
        kind=(policy.spec.kind or "vector") if glass is None else glass.kind,
        num_actions=policy.spec.num_actions,
        first_action=policy.first_action,
        seed=seed,
        lensed=glass is not None,
    )
    numbers = {} if glass is None else {"mean": glass.mean, "scale": glass.scale}
    meta = {**_head(algorithm, policy.agents, config, run), "policy": dataclasses.asdict(description)}
    checkpoint.save(path, {"net": policy.net, **numbers}, meta=meta)


def _head(algorithm: str, agents: tuple[Any, ...], config: Any, run: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "kind": KIND,
        "version": VERSION,
        "algorithm": algorithm,
        "agents": list(agents),
        "config": dataclasses.asdict(config),
        "run": run,
    }


def lensed(model: Model) -> bool:
    """Whether a model's networks see through a lens."""
    net = model.net.member(0) if isinstance(model.net, Committee) else model.net
    return isinstance(net.torso, lens.Seeing)


def _rows(table: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, row)) for row in table)


class Loaded(typing.NamedTuple):
    """What a model directory holds: a model, policies, or both."""

    algorithm: str
    known: Known | None
    config: Any
    seed: int
    task: np.ndarray | None
    policies: Policies | None = None
    run: dict[str, Any] | None = None
    """The run that made it, as its file says; None: it was not trained in a world."""

    @property
    def agents(self) -> tuple[Any, ...]:
        return self.known.agents if self.known is not None else self.policies.agents if self.policies is not None else ()


def directory_of(path: Path) -> Path:
    """A model directory, or the one inside a run directory."""
    directory = path / DIRECTORY if (path / DIRECTORY).is_dir() else path
    if not directory.is_dir():
        raise UserError(f"{path} {'is a file' if path.exists() else 'does not exist'}, expected the directory of a trained model.")
    return directory


def read(path: Path, features: FeatureFunction | None = None) -> Loaded:
    """Read a model directory (or the one inside a run directory) and check all of it; a function that gives its cumulants is no part."""
    path = directory_of(path)
    meta = checkpoint.read_meta(path)
    _check_kind(path, meta)
    algorithm = meta.get("algorithm")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise UserError(f"{path} is damaged: its algorithm is {algorithm!r}, expected one of {', '.join(ALGORITHMS)}.")
    config = from_json(ALGORITHMS[algorithm].config, meta.get("config"), f"{path}: config")
    run = meta.get("run")
    if run is not None and not (isinstance(run, dict) and isinstance(run.get("env"), str)):
        raise UserError(f"{path} is damaged: its manifest does not say in which world it was trained.")
    if "policy" in meta:
        return _read_policy(path, meta, algorithm, config, run)
    described = from_json(Described, meta.get("model"), f"{path}: model")
    agents = _agents(path, meta.get("agents"), described)
    inner = config.itd if hasattr(config, "itd") else config
    glass = _glass(described)
    model = _like(inner, glass, described, len(agents), features)
    if isinstance(config, psiphi.PsiPhiConfig) and psiphi.trust(config) and agents:
        number: Any = jax.ShapeDtypeStruct((), jnp.float32)
        model = model._replace(trust=gpi.Trust(number, number))
    like = {"model": model, "task": np.zeros(model.w.shape[1], np.float32)}
    spec = _plain(described)
    seen = glass.spec(described.num_actions) if described.lensed else spec
    both = not ALGORITHMS[algorithm].successor_features
    if both:
        like |= {"policies": jax.eval_shape(lambda key: ALGORITHMS[algorithm].net(config, seen, len(agents), key), jax.random.key(0))[1]}
    arrays = checkpoint.load(path, like)
    judged, cut = meta.get("verdict"), meta.get("discretiser")
    known = _known(models.mended(arrays["model"]), glass, described, agents)
    known = dataclasses.replace(
        known,
        verdict=None if judged is None else Verdict.from_json(judged, f"{path}: verdict"),
        discretiser=None if cut is None else Discretiser.from_dict(cut, f"{path}: discretiser"),
    )
    if known.discretiser is not None and known.discretiser.num_actions != known.num_actions:
        raise UserError(f"{path} is damaged: its discretiser has {known.discretiser.num_actions} actions, expected {known.num_actions}.")
    glass = known.lens if described.lensed else None
    policies = Policies(arrays["policies"], glass, spec, described.first_action, agents) if both else None
    return Loaded(algorithm, known, config, described.seed, arrays["task"] if described.has_task else None, policies, run)


def _check_kind(path: Path, meta: dict[str, Any]) -> None:
    """Refuse what is no model, or one that cannot be read any more, and say what to do."""
    kind, version = meta.get("kind"), meta.get("version")
    if kind == OLD_KIND and version in OLD_VERSIONS:
        return
    if kind in (KIND, "psiphi policy") and version is None:
        raise UserError(f"{path} was trained by psiphi 0.1, whose models cannot be read any more; train it again with this version.")
    if kind not in (KIND, OLD_KIND):
        raise UserError(f"{path} is a checkpoint but not a trained model; a training leaves one in its run directory when it is done.")
    if version != VERSION:
        raise UserError(f"{path} is a model of version {version!r}, but this psiphi reads version {VERSION}; update psiphi.")


def _read_policy(path: Path, meta: dict[str, Any], algorithm: str, config: Any, run: dict[str, Any] | None) -> Loaded:
    described = from_json(DescribedPolicy, meta["policy"], f"{path}: policy")
    _check_observations(path, described)
    ids = meta.get("agents")
    agents = _ids(path, ids) if ids else ()
    glass = _glass(described) if described.lensed else None
    plain = _plain(described)
    seen = plain if glass is None else glass.spec(described.num_actions)
    like: dict[str, Any] = {"net": jax.eval_shape(lambda key: ALGORITHMS[algorithm].net(config, seen, len(agents), key), jax.random.key(0))}
    like |= {} if glass is None else {"mean": glass.mean, "scale": glass.scale}
    arrays = checkpoint.load(path, like)
    if glass is not None:
        glass = dataclasses.replace(glass, mean=np.asarray(arrays["mean"]), scale=np.asarray(arrays["scale"]))
    policies = Policies(arrays["net"], glass, plain, described.first_action, agents)
    return Loaded(algorithm, None, config, described.seed, None, policies, run)


def given_shape(given: Cumulants | None) -> GivenShape | None:
    """What a file says of cumulants that are not learned."""
    if given is None:
        return None
    if isinstance(given, Given):
        return GivenShape(given.size, "given")
    return GivenShape(given.size, "changes", given.mean.shape[0], given.levels, given.ends, given.counted)


def _blank(shape: GivenShape | None, features: FeatureFunction | None) -> Cumulants | None:
    """Cumulants whose numbers are yet to be read."""
    if shape is None:
        return None
    if shape.kind == "given":
        return Given(jnp.zeros(shape.size), features, False)
    return Changes(jnp.zeros(shape.columns), jnp.ones(shape.columns), jnp.zeros(shape.size), shape.levels, shape.ends, shape.counted)


def _like(config: ITDConfig, glass: lens.Lens, described: Described, agents: int, features: FeatureFunction | None) -> Any:
    """The shapes of the arrays of such a model, from tracing how it is made."""

    def made(key: jax.Array) -> Model:
        heads = agents + described.ego
        given = _blank(described.given, features)

        def net(key: jax.Array) -> Any:
            if not described.lensed:
                return itd.initial_net(config, _plain(described), heads, key, given)
            return glass.on(itd.initial_net(config, glass.spec(described.num_actions), heads, key, given))

        whole = Committee(jax.vmap(net)(jax.random.split(key, described.members))) if described.members else net(key)
        return Model(whole, jnp.zeros(whole.w.shape), jnp.ones(agents))

    return jax.eval_shape(made, jax.random.key(0))


def _known(model: Model, glass: lens.Lens, described: Described, agents: tuple[Any, ...]) -> Known:
    torso: Any = model.net.member(0).torso if isinstance(model.net, Committee) else model.net.torso
    read = dataclasses.replace(glass, mean=np.asarray(torso.mean), scale=np.asarray(torso.scale)) if described.lensed else glass
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
        columns=described.columns,
        action_names=described.action_names,
    )


def _agents(path: Path, agents: Any, described: Described) -> tuple[Any, ...]:
    """The ids, and as many as everything else says; an ego may have watched no agent."""
    ids = () if agents == [] and described.ego else _ids(path, agents)
    optional = [len(column) for column in (described.caution, described.lapse, described.forms) if column]
    tables = [described.likeness, *((described.likeness_least, described.likeness_most) if described.likeness_least else ())]
    sizes = {len(ids), len(described.coverage), *optional, *(size for table in tables for size in (len(table), *map(len, table)))}
    named = len(described.action_names) in (0, described.num_actions) and len(described.columns) in (0, math.prod(described.obs_shape))
    if len(sizes) != 1 or described.beta <= 0 or not named:
        raise UserError(f"{path} is damaged: what its manifest says of agents, actions and observations does not fit together.")
    _check_observations(path, described)
    return ids


def _ids(path: Path, agents: Any) -> tuple[Any, ...]:
    """All strings or all integers, and no two alike."""
    fine = isinstance(agents, list) and agents and (all(type(a) is str for a in agents) or all(type(a) is int for a in agents))
    if not fine or len(set(agents)) != len(agents):
        raise UserError(f"{path} is damaged: its agents are not different ids, all strings or all integers.")
    limits.check_most(f"{path} is damaged: too many agents", len(agents), limits.MOST_AGENTS)
    return tuple(agents)


def _check_observations(path: Path, described: Described | DescribedPolicy) -> None:
    if described.num_actions < 1 or min(described.obs_shape, default=0) < 1:
        raise UserError(f"{path} is damaged: what its manifest says of agents, actions and observations does not fit together.")
    limits.check_most(f"{path} is damaged: too large observations, in entries", math.prod(described.obs_shape), limits.MOST_ENTRIES)
    if described.obs_dtype not in checkpoint.DTYPES:
        raise UserError(f"{path} is damaged: observations of type {described.obs_dtype!r} are none that psiphi knows.")
