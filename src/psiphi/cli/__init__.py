"""The command line: every command is a frozen dataclass whose fields are its flags.

JAX is loaded only by the command that needs it, so that `--help` answers at once.
"""

import contextlib
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

import tyro

import psiphi
from psiphi import printable
from psiphi.arguments import parsed
from psiphi.cli import ask
from psiphi.configs import Count, Seed, Weight, Within
from psiphi.errors import UserError
from psiphi.experiments import paper

# --- Commands ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Demo:
    """Watch the method work: demonstrations, inverse TD learning, inferred wants, four new tasks, pictures. About three minutes."""

    out: Path = Path("runs/demo")
    """Where the model and the pictures go; what is there is used again."""
    seed: Seed = 0
    """Decides everything random."""
    quick: bool = False
    """Only see that everything runs: seconds instead of minutes, and poor numbers."""


def demo(config: Demo) -> None:
    from psiphi import disk
    from psiphi.experiments import demo

    disk.check_directory(config.out)
    demo.demo(config.out, seed=config.seed, quick=config.quick)


WHAT = f"What: {', '.join(paper.EXPERIMENTS)}, all of them (all), or a Python file of your own that defines EXPERIMENT."


@dataclass(frozen=True)
class Reproduce:
    """Reproduce a table or figure: train and measure what is missing, then draw the report. Interrupted, the same command continues."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(help=WHAT)]
    seeds: Count = 1
    """How many seeds."""
    first_seed: Seed = 0
    """The first of them."""
    out: Path = Path("results")
    """The cells go to OUT/NAME/cells.jsonl, the report to OUT/NAME/README.md."""
    methods: str = ""
    """Only these, separated by commas; all if empty."""
    envs: Annotated[str, tyro.conf.arg(aliases=("--env",))] = ""
    """Only these worlds, separated by commas; all if empty. Of table-1, fruitbot is table-1-fruitbot."""
    panel: str = ""
    """Of figure-3, only these panels: single-task, adversarial, multi-task, or fruitbot, which is figure-3-fruitbot."""
    film: bool = False
    """Of figure-3, also train PsiPhi-learning with the first seed and write an episode of it as OUT/figure-3/PANEL.gif."""
    jobs: Annotated[int, Within(1, 1_024)] = 1
    """Trainings side by side, each in a process of its own with a single thread; as many as there are cores is fastest. On SLURM, jobs."""
    on: Literal["local", "ray", "slurm"] = "local"
    """Where the trainings are run: in processes of this machine, on a Ray cluster, or as jobs of SLURM."""
    checkpoint_every_s: Weight = 30.0
    """Seconds between two checkpoints of a training: so much is done again after it was killed."""
    keep_models: bool = False
    """Of learning curves, keep what was trained: OUT/NAME/models/WORLD-METHOD-SEED, for psiphi evaluate, adapt and watch."""
    address: str = ""
    """Of the Ray cluster: HOST:PORT, ray://HOST:PORT, or auto for the one of this machine; empty: one of --jobs cores is started."""
    slurm: str = ""
    """Parameters of the jobs, such as partition=cpu,timeout_min=600."""
    repetitions: Count = 256
    """Repetitions of few-shot transfer per task; an eighth of it at 100 shots."""
    updates: Count | None = None
    """Train for fewer updates, to try things out."""
    episodes: Count | None = None
    """Record fewer demonstrated episodes, to try things out."""
    steps: Count | None = None
    """Give the learners that act fewer environment steps, to try things out."""
    dry_run: bool = False
    """Run nothing: list every training with its settings, what is missing and what it cost so far."""
    json: bool = False
    """With --dry-run, print one JSON list instead of a table; it has every setting."""


def reproduce(config: Reproduce) -> None:
    from psiphi.experiments import clusters
    from psiphi.experiments.reproduce import Effort, film, forecast, reproduce

    effort = Effort(updates=config.updates, episodes=config.episodes, repetitions=config.repetitions, steps=config.steps)
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    lists = (config.methods, config.envs, config.panel)
    methods, envs, panels = ([name.strip() for name in names.split(",") if name.strip()] for names in lists)
    if config.name == "figure-3" and "fruitbot" in panels:
        if panels != ["fruitbot"]:
            raise UserError(f"--panel is {config.panel!r}, expected fruitbot by itself: it has other methods than the others.")
        config, panels = replace(config, name="figure-3-fruitbot"), []
    if config.name == "table-1" and "fruitbot" in envs:
        if envs != ["fruitbot"]:
            raise UserError(f"--env is {config.envs!r}, expected fruitbot by itself: it has other methods than the others.")
        config, envs = replace(config, name="table-1-fruitbot"), []
    if not config.name.startswith("figure-3") and (panels or config.film):
        raise UserError(f"{config.name} has no panels to choose from and no film; --panel and --film are for figure-3.")
    envs += [f"highway-{panel}" for panel in panels]
    names = list(paper.EXPERIMENTS) if config.name == "all" else [config.name]
    if config.dry_run:
        ask.print_forecast(forecast(names, config.out, seeds, methods=methods, envs=envs, effort=effort), config.json)
        return
    runner = clusters.runner(config.on, jobs=config.jobs, address=config.address, slurm=config.slurm)
    for name in names:
        directory = reproduce(
            name,
            config.out,
            seeds,
            methods=methods,
            envs=envs,
            effort=effort,
            jobs=config.jobs,
            runner=runner,
            checkpoint_every_s=config.checkpoint_every_s,
            keep_models=config.keep_models,
        )
        print(printable.sentence(directory / "README.md"))
        for path in film(name, directory, config.first_seed, envs, effort) if config.film else ():
            print(path)


@dataclass(frozen=True)
class Report:
    """Draw the report of a directory of cells again, from its files alone; with -o, one page of any set of runs and results."""

    directories: tyro.conf.Positional[tuple[Path, ...]]
    """Where cells.jsonl is, such as results/table-2. With -o also run directories, and directories of these."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """The page, an HTML file with everything in it; needs psiphi[report]."""
    experiment: Path | None = None
    """The file that defines the experiment, where it is one of your own."""


def report(config: Report) -> None:
    if config.out is not None:
        from psiphi import pages

        if not config.directories:
            raise UserError("There is nothing to report, expected directories of runs or results.")
        print(printable.sentence(pages.write(config.directories, config.out)))
        return
    from psiphi.report import render

    if len(config.directories) != 1:
        raise UserError(f"{len(config.directories)} directories are given, expected one, or a page of several with -o report.html.")
    (directory,) = config.directories
    if config.experiment is None:
        print(printable.sentence(render(directory)))
        return
    from psiphi.experiments.reproduce import find

    print(printable.sentence(render(directory, find(str(config.experiment)))))


def _train(arguments: Sequence[str]) -> None:
    from psiphi.cli.train import train

    train(arguments)


def _tune(arguments: Sequence[str]) -> None:
    from psiphi.cli.tune import tune

    tune(arguments)


def _demos(arguments: Sequence[str]) -> None:
    from psiphi.demos import commands

    commands.run(list(arguments))


def _infer(arguments: Sequence[str]) -> None:
    from psiphi.experiments import infer

    infer.run(arguments)


class Command(NamedTuple):
    """A command: what the help says of it, and what it does with the words that follow, or with the flags they are."""

    words: str
    run: Callable[[Any], None]
    flags: type | None = None
    """A frozen dataclass whose fields are the flags; None: it reads the words itself."""


COMMANDS: dict[str, Command] = {
    "demo": Command("watch the method work, with pictures: about three minutes", demo, Demo),
    "train": Command("train any algorithm in any world: psiphi train psiphi --env highway-multi-task", _train),
    "tune": Command("search an algorithm's settings: psiphi tune dqn --env highway-multi-task --trials 32", _tune),
    "demos": Command("look at, check, convert and record demonstrations", _demos),
    "infer": Command("what does each agent want? From a file of your own to tables and a picture", _infer),
    "evaluate": Command("judge a trained model or policy, in its world or beside logs", ask.evaluate, ask.Evaluate),
    "adapt": Command("re-target a trained model to a new task, from rewards alone", ask.adapt, ask.Adapt),
    "explore": Command("a page to see what the agents want, with sliders over preferences", ask.explore, ask.Explore),
    "watch": Command("a moving picture of a trained policy", ask.watch, ask.Watch),
    "worlds": Command("list the worlds", ask.list_worlds, ask.Worlds),
    "algorithms": Command("list the algorithms", ask.list_algorithms, ask.Algorithms),
    "reproduce": Command(f"a table or figure of the paper: {', '.join(paper.EXPERIMENTS)}", reproduce, Reproduce),
    "report": Command(
        "draw the report of a reproduction again, or one page of any runs: psiphi report runs -o report.html", report, Report
    ),
}

HELP = f"""usage: psiphi COMMAND [OPTIONS]

PsiPhi-learning: infer what demonstrators want, without rewards, and reuse their behaviour on new tasks.

{chr(10).join(f"  {name:<11} {command.words}" for name, command in COMMANDS.items())}

psiphi COMMAND --help says more; psiphi --version says which."""


# --- From arguments to a command -----------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: 0, 2 with one sentence for what the user can put right, 128 + signal when interrupted."""
    try:
        with _terminable():
            run(list(sys.argv[1:] if arguments is None else arguments))
    except UserError as error:
        print(f"psiphi: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as error:
        print("psiphi: interrupted; the same command continues where it can.", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 130))
    except BrokenPipeError:  # whoever read our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (OSError, MemoryError, RuntimeError) as error:
        print(f"psiphi: {_of_the_machine(error)}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)


def _of_the_machine(error: OSError | MemoryError | RuntimeError) -> str:
    """One sentence for a disk or a memory that is full, wherever that was noticed; anything else is a mistake of ours and is raised."""
    if isinstance(error, OSError) and error.errno is not None:
        return printable.sentence(f"{error.filename or 'A file'} cannot be read or written: {error.strerror}.")
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return "There is not enough memory for this, expected a smaller file, batch, replay or network."
    raise error


def run(arguments: list[str]) -> None:
    """The command that the arguments name."""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if name in ("-h", "--help"):
        print(HELP)
    elif name == "--version":
        print(f"psiphi {psiphi.__version__}")
    elif name in COMMANDS:
        command = COMMANDS[name]
        given = rest if command.flags is None else parsed(command.flags, rest, f"psiphi {name}")
        _prepare_jax()
        command.run(given)
    else:
        raise UserError(f"{name!r} is not a command; expected one of {', '.join(COMMANDS)}, see psiphi --help.")


class _Terminated(KeyboardInterrupt):
    exit_code = 128 + signal.SIGTERM


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that workers are ended and files closed."""

    def stop(_signum: int, _frame: Any) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _prepare_jax() -> None:
    """Before JAX is loaded: keep compiled programs between commands, by machine, as they may use instructions another one lacks."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(caches / "psiphi" / "jax" / (platform.node() or "here")))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
