"""`psiphi train`: the settings as flags, and a run that leaves a model."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from psiphi.agents.itd import ITDConfig
from psiphi.agents.psiphi import PsiPhiConfig
from psiphi.experiments import coingrid as experiment
from psiphi.experiments import models
from psiphi.experiments.coingrid import Setting

Algorithm = Literal["itd", "psiphi"]
Preset = Literal["default", "paper"]
Weights = tuple[float, float, float]


@dataclasses.dataclass(frozen=True)
class ITDSetting(Setting):
    """A setting without an ego: what ITD has no use for is not a flag."""

    ego_task: tyro.conf.Suppress[Weights | None] = None
    ego: tyro.conf.Suppress[PsiPhiConfig | None] = None


@dataclasses.dataclass(frozen=True)
class Ego(PsiPhiConfig):
    """The ego's part; ITD's is the setting's."""

    itd: tyro.conf.Suppress[ITDConfig] = dataclasses.field(default_factory=ITDConfig)


@dataclasses.dataclass(frozen=True)
class PsiPhiSetting(Setting):
    """A setting whose ego has a task of its own."""

    ego_task: Weights = models.RED_AND_GREEN  # pyright: ignore[reportIncompatibleVariableOverride]
    """The ego's own task while it trains: a weight per colour."""
    ego: Ego = dataclasses.field(default_factory=Ego)  # pyright: ignore[reportIncompatibleVariableOverride]
    """The ego's part of the learner."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What a training run is besides its setting."""

    out: Path
    """The run directory: config.json, metrics.jsonl, checkpoint/ and, in the end, model/. A run that it holds is continued."""
    env: str = "coingrid"
    """Where to train: coingrid (a fresh layout in every episode) or coingrid-25 (the authors' 25 layouts)."""
    preset: Preset = "default"
    """What the other flags start from: what works best, or the paper's losses and numbers as printed."""
    seed: int = 0
    """Decides the demonstrations, the worlds and everything random."""
    updates: int | None = None
    """Short for --itd.updates."""
    quiet: bool = False
    """No progress bar."""


@dataclasses.dataclass(frozen=True)
class TrainITD:
    """Inverse temporal-difference learning (algorithm 1): what do the demonstrators want? No rewards."""

    run: Annotated[Run, tyro.conf.arg(name="")]
    setting: Annotated[ITDSetting, tyro.conf.arg(name="")]


@dataclasses.dataclass(frozen=True)
class TrainPsiPhi:
    """PsiPhi-learning (algorithm 2): ITD, and a task of one's own with rewards."""

    run: Annotated[Run, tyro.conf.arg(name="")]
    setting: Annotated[PsiPhiSetting, tyro.conf.arg(name="")]


def defaults(algorithm: Algorithm, preset: Preset, env: str) -> TrainITD | TrainPsiPhi:
    """What the flags say when they are not given: the preset in the environment."""
    setting = models.changed(models.preset(preset, algorithm), models.variant(env).changes)
    run = Run(out=Path("runs") / f"{algorithm}-{env}{'' if preset == 'default' else f'-{preset}'}", env=env, preset=preset)
    if algorithm == "itd":
        return TrainITD(run, _as(ITDSetting, setting))
    return TrainPsiPhi(run, _as(PsiPhiSetting, setting, ego=_as(Ego, setting.ego)))


def _as(kind: type, value: Any, **changes: Any) -> Any:
    """The same fields, apart from the changes, in a subclass or in its parent."""
    return kind(**{field.name: getattr(value, field.name) for field in dataclasses.fields(kind)} | changes)


def train(config: TrainITD | TrainPsiPhi) -> Path:
    """Train, or continue, and leave the model in the run directory."""
    ego = config.setting.ego
    setting = _as(Setting, config.setting, ego=_as(PsiPhiConfig, ego) if ego else None)
    run = config.run
    if run.updates is not None:
        setting = models.changed(setting, {"itd.updates": run.updates})
    trained = experiment.train(setting, run.seed, out=run.out, progress=not run.quiet)
    models.save(run.out / models.DIRECTORY, trained, setting, run.env, run.seed)
    return run.out / models.DIRECTORY
