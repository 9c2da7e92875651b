"""`psiphi train`: the settings as flags, and a run that leaves a model."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from psiphi import checkpoint, disk
from psiphi.agents.bc import BCConfig
from psiphi.agents.dqn import DQNConfig
from psiphi.agents.gail import GAILConfig
from psiphi.agents.itd import ITDConfig
from psiphi.agents.ppo import PPOConfig
from psiphi.agents.psiphi import PsiPhiConfig
from psiphi.agents.sqil import SQILConfig
from psiphi.configs import Count, Seed, Weight
from psiphi.errors import UserError
from psiphi.experiments import baselines, models
from psiphi.experiments import coingrid as experiment
from psiphi.experiments.baselines import LEARNERS
from psiphi.experiments.coingrid import Setting

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
class DQNSetting(baselines.Setting):
    """Deep Q-learning."""

    agent: DQNConfig = dataclasses.field(default_factory=LEARNERS["dqn"].default)
    """The algorithm."""
    updates_per_rollout: Count = baselines.default("dqn").updates_per_rollout
    """Updates after each step in all environments."""
    updates: tyro.conf.Suppress[int] = 4_000


@dataclasses.dataclass(frozen=True)
class BCSetting(baselines.Setting):
    """Behaviour cloning: nobody pays it and it takes no steps."""

    agent: BCConfig = dataclasses.field(default_factory=LEARNERS["bc"].default)
    """The algorithm."""
    task: tyro.conf.Suppress[str] = "R+G"
    steps: tyro.conf.Suppress[int] = 50_000
    num_envs: tyro.conf.Suppress[int] = 8
    updates_per_rollout: tyro.conf.Suppress[int] = 1
    prefill_steps: tyro.conf.Suppress[int] = 0
    reward_from: tyro.conf.Suppress[str | None] = None
    demonstrator: tyro.conf.Suppress[int] = 0
    init_from: tyro.conf.Suppress[str | None] = None


@dataclasses.dataclass(frozen=True)
class SQILSetting(baselines.Setting):
    """Soft Q imitation learning."""

    agent: SQILConfig = dataclasses.field(default_factory=LEARNERS["sqil"].default)
    """The algorithm."""
    updates: tyro.conf.Suppress[int] = 4_000


@dataclasses.dataclass(frozen=True)
class GAILSetting(baselines.Setting):
    """Generative adversarial imitation learning."""

    agent: GAILConfig = dataclasses.field(default_factory=LEARNERS["gail"].default)
    """The algorithm."""
    num_envs: Count = baselines.default("gail").num_envs
    """Environments side by side."""
    updates: tyro.conf.Suppress[int] = 4_000


@dataclasses.dataclass(frozen=True)
class PPOSetting(baselines.Setting):
    """Proximal policy optimisation."""

    agent: PPOConfig = dataclasses.field(default_factory=LEARNERS["ppo"].default)
    """The algorithm."""
    num_envs: Count = baselines.default("ppo").num_envs
    """Environments side by side."""
    updates: tyro.conf.Suppress[int] = 4_000


SETTINGS = {"dqn": DQNSetting, "bc": BCSetting, "sqil": SQILSetting, "gail": GAILSetting, "ppo": PPOSetting}


@dataclasses.dataclass(frozen=True)
class Run:
    """What a training run is besides its setting."""

    out: Path
    """The run directory: config.json, metrics.jsonl, checkpoint/ and, in the end, model/. A run that it holds is continued."""
    env: str = "coingrid"
    """Where to train: coingrid (a fresh layout in every episode) or coingrid-25 (the authors' 25 layouts)."""
    seed: Seed = 0
    """Decides the demonstrations, the worlds and everything random."""
    quiet: bool = False
    """No progress bar."""
    checkpoint_every_s: Weight = 30.0
    """Seconds between two checkpoints, besides one at the end and one at an interruption: so much is done again after a crash."""


@dataclasses.dataclass(frozen=True)
class ModelRun(Run):
    """The same for ITD and PsiPhi-learning."""

    preset: Preset = "default"
    """What the other flags start from: what works best, or the paper's losses and numbers as printed."""


@dataclasses.dataclass(frozen=True)
class TrainITD:
    """Inverse temporal-difference learning (algorithm 1): what do the demonstrators want? No rewards."""

    run: Annotated[ModelRun, tyro.conf.arg(name="")]
    setting: Annotated[ITDSetting, tyro.conf.arg(name="")]


@dataclasses.dataclass(frozen=True)
class TrainPsiPhi:
    """PsiPhi-learning (algorithm 2): ITD, and a task of one's own with rewards."""

    run: Annotated[ModelRun, tyro.conf.arg(name="")]
    setting: Annotated[PsiPhiSetting, tyro.conf.arg(name="")]


def _command(setting: type, words: str) -> type:
    """`psiphi train` for one baseline: what differs is the type of its setting."""
    fields = [("run", Annotated[Run, tyro.conf.arg(name="")]), ("setting", Annotated[setting, tyro.conf.arg(name="")])]
    made = dataclasses.make_dataclass(f"Train{setting.__name__.removesuffix('Setting')}", fields, frozen=True)
    made.__doc__ = words
    return made


BASELINES: dict[str, type] = {
    "dqn": _command(DQNSetting, "Deep Q-learning on a task or on an inferred reward; with --agent.bc-weight, DQN+BC-aux."),
    "bc": _command(BCSetting, "Behaviour cloning: one policy per demonstrator. Offline."),
    "sqil": _command(SQILSetting, "Soft Q imitation learning: one policy, of one demonstrator (--agent.demonstrator) or of all."),
    "gail": _command(GAILSetting, "Generative adversarial imitation learning with PPO: one policy, of one demonstrator or of all."),
    "ppo": _command(PPOSetting, "Proximal policy optimisation on a task or on an inferred reward; with --agent.bc-weight, PPO+BC-aux."),
}

ALGORITHMS = ("itd", "psiphi", *BASELINES)


def defaults(algorithm: str, preset: Preset, env: str) -> Any:
    """What the flags say when they are not given: the preset in the environment."""
    out = Path("runs") / f"{algorithm}-{env}{'' if preset == 'default' else f'-{preset}'}"
    changes = models.variant(env).changes
    if algorithm in BASELINES:
        if preset != "default":
            raise UserError(f"{algorithm} has no preset {preset!r}; itd and psiphi have.")
        return BASELINES[algorithm](Run(out=out, env=env), models.changed(SETTINGS[algorithm](), changes))
    run = ModelRun(out=out, env=env, preset=preset)
    setting = models.changed(models.preset(preset, "itd" if algorithm == "itd" else "psiphi"), changes)
    if algorithm == "itd":
        return TrainITD(run, _as(ITDSetting, setting))
    return TrainPsiPhi(run, _as(PsiPhiSetting, setting, ego=_as(Ego, setting.ego)))


def _as(kind: type, value: Any, **changes: Any) -> Any:
    """The same fields, apart from the changes, in a subclass or in its parent."""
    return kind(**{field.name: getattr(value, field.name) for field in dataclasses.fields(kind)} | changes)


def train(config: Any) -> Path:
    """Train, or continue, and leave the model or the policy in the run directory."""
    disk.check_directory(config.run.out)
    checkpoint.check_ours(config.run.out / models.DIRECTORY)
    if isinstance(config, TrainITD | TrainPsiPhi):
        return _train_model(config)
    run, setting = config.run, _as(baselines.Setting, config.setting)
    trained = baselines.train(setting, run.seed, out=run.out, progress=not run.quiet, checkpoint_every_s=run.checkpoint_every_s)
    baselines.save(run.out / models.DIRECTORY, trained, setting, run.env, run.seed)
    return run.out / models.DIRECTORY


def _train_model(config: TrainITD | TrainPsiPhi) -> Path:
    ego = config.setting.ego
    setting = _as(Setting, config.setting, ego=_as(PsiPhiConfig, ego) if ego else None)
    run = config.run
    trained = experiment.train(setting, run.seed, out=run.out, progress=not run.quiet, checkpoint_every_s=run.checkpoint_every_s)
    models.save(run.out / models.DIRECTORY, trained, setting, run.env, run.seed)
    return run.out / models.DIRECTORY
