"""`psiphi train ALGORITHM --env WORLD`: any algorithm in any world; every field of the run is a flag."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from psiphi import checkpoint, disk, printable, tracking
from psiphi.arguments import given, parsed
from psiphi.configs import Count, Weight
from psiphi.errors import UserError

Preset = Literal["default", "paper"]


@dataclass(frozen=True)
class Keeping:
    """What a training command says besides the run."""

    out: Path
    """The run directory: config.json, metrics.jsonl, checkpoint/ and, in the end, model/. A run that it holds is continued."""
    preset: Preset = "default"
    """What the other flags start from: what suits the world, or the paper's losses and numbers as printed."""
    config: Path | None = None
    """A JSON file that the other flags start from instead: what --dry-run prints, or what psiphi tune found."""
    dry_run: bool = False
    """Print the run with all its settings as JSON, and do nothing."""
    quiet: bool = False
    """No progress bar."""
    seeds: Count = 1
    """Train the seed and those that follow it, so many in all; each leaves its model in OUT/models."""
    track: tracking.Kind = "none"
    """Show metrics.jsonl in this tool as well, while it is written; each needs its extra, such as psiphi[tensorboard]."""
    checkpoint_every_s: Weight = 30.0
    """Seconds between two checkpoints, besides one at the end and one at an interruption: so much is done again after a crash."""


def train(arguments: Sequence[str]) -> None:
    """The command that the arguments after `psiphi train` name."""
    from psiphi import training
    from psiphi.api import trained

    if not arguments or arguments[0] in ("-h", "--help"):
        print(help_text())
        return
    name, *flags = arguments
    config = parse(name, flags)
    run, keeping = as_run(name, config.run), config.keeping
    if keeping.dry_run:
        print(json.dumps(described(training.completed(run)), indent=2))
        return
    if keeping.seeds > 1:
        if keeping.track != "none":
            raise UserError(f"--track {keeping.track} follows one seed, but --seeds is {keeping.seeds}, expected 1.")
        train_seeds(run, keeping)
        return
    directory = keeping.out / "model"
    with disk.left_alone(keeping.out):
        disk.check_directory(keeping.out)
        checkpoint.check_ours(directory)
        with tracking.following(keeping.track, keeping.out, described(training.completed(run))):
            result = training.train(run, out=keeping.out, progress=not keeping.quiet, checkpoint_every_s=keeping.checkpoint_every_s)
    trained.save(directory, result)
    commands = ("evaluate", "adapt", "watch") if result.algorithm.successor_features else ("evaluate", "watch")
    print(printable.sentence(f"The model is in {directory}; ask it: {', '.join(asked(name, keeping.out, run.env) for name in commands)}"))


def asked(command: str, out: Path, env: str) -> str:
    """The command line that asks a trained model. A world that is the user's own code must be named again: no file may run it."""
    named = f" --env {env}" if ":" in env else ""
    return f"psiphi {command} {out}{named}" + (" --task ..." if command == "adapt" else "")


def train_seeds(run: Any, keeping: Keeping) -> None:
    """Several seeds: in one vmapped program where that is faster, else one after the other."""
    from psiphi import training
    from psiphi.api import trained

    how = {"progress": not keeping.quiet, "checkpoint_every_s": keeping.checkpoint_every_s}
    together = training.is_compiled(run) and run.demos != training.RECORDED
    seeds = range(run.seed, run.seed + keeping.seeds)
    models = [keeping.out / "models" / f"seed-{seed}" for seed in seeds]
    how_many = "one vmapped program trains all" if together else "one is trained after the other"
    why = "which was measured to be faster" if together else "as the world is not compiled, or each seed records demonstrations of its own"
    print(printable.sentence(f"{keeping.seeds} seeds: {how_many}, {why}."))
    with disk.left_alone(keeping.out):
        disk.check_directory(keeping.out)
        for directory in models:
            checkpoint.check_ours(directory)
        if together:
            results = training.one_by_one(training.train(run, out=keeping.out / "seeds", seeds=keeping.seeds, **how))
        else:
            each = [dataclasses.replace(run, seed=seed) for seed in seeds]
            results = [training.train(one, out=keeping.out / f"seed-{one.seed}", **how) for one in each]
    for directory, result in zip(models, results, strict=True):
        trained.save(directory, result)
    print(printable.sentence(f"The models are in {keeping.out / 'models'}; ask one: psiphi evaluate {models[0]}"))


def parse(name: str, flags: Sequence[str]) -> Any:
    """The flags of `psiphi train` as a run and what is kept of it."""
    default, preset = default_run(name, flags)
    out = Path("runs") / f"{name}-{printable.file_name(default.env)}{'' if preset == 'default' else f'-{preset}'}"
    return parsed_run(f"psiphi train {name}", flags, default, Keeping(out, preset))


def default_run(name: str, flags: Sequence[str]) -> tuple[Any, Any]:
    """What the flags that are not given start from, and the preset: `--env` and `--preset`, or `--config`, decide."""
    from psiphi import training

    training.algorithm_of(name)
    env, preset, file = given(flags, "--env", "coingrid"), given(flags, "--preset", "default"), given(flags, "--config", "")
    default = from_file(name, Path(file), flags) if file else training.default_run(name, env, preset)
    if given(flags, "--steps", ""):
        default = dataclasses.replace(default, updates=0, steps=default.steps or 1)
    elif given(flags, "--updates", ""):
        default = dataclasses.replace(default, steps=0, updates=default.updates or 1)
    elif not training.acts(dataclasses.replace(default, demos=given(flags, "--demos", default.demos))) and default.steps:
        default = dataclasses.replace(default, steps=0, updates=training.UPDATES)  # it was to watch others online
    return default, preset


def from_file(name: str, path: Path, flags: Sequence[str]) -> Any:
    """The run that a file describes."""
    from psiphi import training, worlds

    try:
        run = training.run_from_json(disk.read_json(path), str(path))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist, expected a JSON file such as psiphi train --dry-run prints.") from None
    if run.algorithm != name:
        raise UserError(f"{path} is a run of {run.algorithm}, but {name} is asked for.")
    if worlds.find(given(flags, "--env", run.env)).name != run.env:
        raise UserError(f"{path} is a run in {run.env}, but --env is {given(flags, '--env', '')}; expected the same world or no --env.")
    return run


def parsed_run(program: str, flags: Sequence[str], default: Any, keeping: Any) -> Any:
    """The flags as a run, which is `default` where they say nothing, and as what the command says besides, `keeping`."""
    from psiphi import training

    kind = _command(type(default.agent), type(default.world), type(keeping))
    run = kind.run_kind(**{field.name: getattr(default, field.name) for field in dataclasses.fields(training.Run)})
    return parsed(kind.whole, flags, program, default=kind.whole(keeping, run))  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class _Kind:
    run_kind: type
    whole: type


def _command(agent: type, world: type, keeping: type) -> _Kind:
    """The run as flags: what differs between algorithms and worlds is the type of their configs."""
    from psiphi.training import Run

    suppressed = tyro.conf.Suppress
    fields: list[Any] = [
        ("algorithm", suppressed[str]),
        ("env", Annotated[str, tyro.conf.arg(help="A world (psiphi worlds), a Gymnasium id such as CartPole-v1, or module:function.")]),
        ("agent", Annotated[agent, tyro.conf.arg(help="The algorithm's config.")]),
        ("world", suppressed[type(None)] if world is type(None) else Annotated[world, tyro.conf.arg(help="The world's config.")]),
    ]
    run_kind = dataclasses.make_dataclass("Run", [(name, kind) for name, kind in fields], bases=(Run,), frozen=True, kw_only=True)
    whole = dataclasses.make_dataclass(
        "Train",
        [("keeping", Annotated[keeping, tyro.conf.arg(name="")]), ("run", Annotated[run_kind, tyro.conf.arg(name="")])],
        frozen=True,
    )
    return _Kind(run_kind, whole)


def as_run(name: str, flags: Any) -> Any:
    """The flags as a plain `Run`, which is what a run directory and a model remember."""
    from psiphi.training import Run

    if flags.algorithm != name:
        raise UserError(f"The algorithm is {flags.algorithm!r}, expected {name!r}.")
    if len(set(flags.demonstrators)) < len(flags.demonstrators):
        raise UserError(f"The demonstrators are {', '.join(flags.demonstrators)}, expected each of them once.")
    return Run(**{field.name: getattr(flags, field.name) for field in dataclasses.fields(Run)})


def described(run: Any) -> dict[str, Any]:
    """A run as JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(run)))


def help_text() -> str:
    from psiphi.agents import ALGORITHMS

    rows = "\n".join(f"  {name:<9} {algorithm.words}" for name, algorithm in ALGORITHMS.items())
    return f"""usage: psiphi train ALGORITHM --env WORLD [--task T] [--demos FILE|recorded|online|none] [--steps N] [--seed S] [--out DIR]

{rows}

psiphi worlds lists the worlds; any Gymnasium id with discrete actions is one, too. psiphi train ALGORITHM --env WORLD --help lists every
setting as a flag."""
