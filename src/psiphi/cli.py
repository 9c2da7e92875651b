"""The command line: every command is a frozen dataclass whose fields are its flags.

JAX is loaded only by the command that needs it, so that `--help` answers at once.
"""

import contextlib
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import tyro

import psiphi
from psiphi import printable
from psiphi.arguments import parsed
from psiphi.configs import Count, Seed, Within
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


@dataclass(frozen=True)
class Evaluate:
    """Judge a trained model (held-out accuracy, what phi explains of the true rewards, what a planner earns on them) or a policy."""

    model: tyro.conf.Positional[Path]
    """The directory of a model or a policy, or the run directory it is in."""
    seed: Seed | None = None
    """Draws the held-out demonstrations and boards; the seed of the training if not given."""
    episodes: Count = 500
    """Held-out demonstrated episodes per demonstrator; of a policy: episodes played."""
    json: bool = False
    """Print one JSON object instead of tables."""


def evaluate(config: Evaluate) -> None:
    from psiphi.experiments import baselines, models

    if models.kind_of(config.model) == baselines.KIND:
        _evaluate_policy(config)
        return
    loaded = models.load(config.model)
    seed = loaded.seed if config.seed is None else config.seed
    found = models.evaluate(loaded.setting, loaded.model, seed, config.episodes)
    if config.json:
        print(json.dumps({"env": loaded.env, "seed": seed, **found}))
        return
    console = _console()
    for table in _evaluation_tables(found):
        console.print(table)


def _evaluate_policy(config: Evaluate) -> None:
    from psiphi.experiments import baselines

    policy = baselines.load(config.model)
    seed = policy.seed if config.seed is None else config.seed
    found = baselines.evaluate(policy, seed, config.episodes)
    if config.json:
        print(json.dumps({"env": policy.env, "seed": seed, **found}))
    else:
        _console().print(_policy_table(found))


@dataclass(frozen=True)
class Adapt:
    """Re-target a trained model to a new task: infer its preferences from the rewards of k episodes, without training."""

    model: tyro.conf.Positional[Path]
    """A model directory, or the run directory it is in."""
    task: str
    """The new task: signed colours such as R-G or Y-0.5R, or weights of red, green and yellow such as 1,-1,0."""
    shots: Count = 1
    """Episodes of adaptation, k."""
    repetitions: Count = 256
    """How often to start over, to average."""
    seed: Seed = 0
    """Draws the worlds."""
    gif: Path | None = None
    """Where to put a moving picture of the agent after adapting."""
    json: bool = False
    """Print one JSON object instead of a table."""


def adapt(config: Adapt) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from psiphi import disk
    from psiphi.envs import coingrid
    from psiphi.experiments import models, pictures

    weights = models.task(config.task)
    if config.gif:
        disk.check_file(config.gif)
    model, setting, *_ = models.load(config.model)
    adapt_key, *board_keys = jax.random.split(jax.random.key(config.seed), 4)
    got = models.adapt(setting, model, weights, adapt_key, shots=config.shots, repetitions=config.repetitions)
    returns = {"0": got.first, str(config.shots): got.after}
    normalised = {shots: float(np.mean(coingrid.normalise(setting.world, weights, jnp.asarray(x)))) for shots, x in returns.items()}
    found = {
        "task": coingrid.task_name(weights),
        "w": np.mean(got.w, axis=0).tolist(),
        "return": {shots: float(np.mean(x)) for shots, x in returns.items()},
        "normalised_return": normalised,
    }
    if config.gif:
        episodes = [pictures.play(setting, model, weights, got.w[0], key) for key in board_keys]
        pictures.write_gif(config.gif, [pictures.Strip(found["task"], f"after {config.shots} episodes", episodes)], pixels=40)
    if config.json:
        print(json.dumps(found))
    else:
        _console().print(_adaptation_table(found, config))
        if config.gif:
            print(f"{config.gif} shows it at work.")


@dataclass(frozen=True)
class Reproduce:
    """Reproduce a table or figure: train and measure what is missing, then draw the report. Interrupted, the same command continues."""

    name: tyro.conf.Positional[str]
    """What: table-1, table-2, figure-3, figure-coingrid, figure-imitation, figure-sensitivity, itd-coingrid, ablation or
    figure-cumulants."""
    seeds: Count = 1
    """How many seeds."""
    first_seed: Seed = 0
    """The first of them."""
    out: Path = Path("results")
    """The cells go to OUT/NAME/cells.jsonl, the report to OUT/NAME/README.md."""
    methods: str = ""
    """Only these, separated by commas; all if empty."""
    envs: Annotated[str, tyro.conf.arg(aliases=("--env",))] = ""
    """Only these worlds, separated by commas; all if empty."""
    panel: str = ""
    """Of figure-3, only these panels: single-task, adversarial, multi-task."""
    film: bool = False
    """Of figure-3, also train PsiPhi-learning with the first seed and write an episode of it as OUT/figure-3/PANEL.gif."""
    jobs: Annotated[int, Within(1, 1_024)] = 1
    """Trainings side by side, each in a process of its own with a single thread; as many as there are cores is fastest."""
    repetitions: Count = 256
    """Repetitions of few-shot transfer per task; an eighth of it at 100 shots."""
    updates: Count | None = None
    """Train for fewer updates, to try things out."""
    episodes: Count | None = None
    """Record fewer demonstrated episodes, to try things out."""
    steps: Count | None = None
    """Give the learners that act fewer environment steps, to try things out."""


def reproduce(config: Reproduce) -> None:
    from psiphi.experiments.reproduce import Effort, film, reproduce

    effort = Effort(updates=config.updates, episodes=config.episodes, repetitions=config.repetitions, steps=config.steps)
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    lists = (config.methods, config.envs, config.panel)
    methods, envs, panels = ([name.strip() for name in names.split(",") if name.strip()] for names in lists)
    if config.name != "figure-3" and (panels or config.film):
        raise UserError(f"{config.name} has no panels to choose from and no film; --panel and --film are for figure-3.")
    envs += [f"highway-{panel}" for panel in panels]
    directory = reproduce(config.name, config.out, seeds, methods=methods, envs=envs, effort=effort, jobs=config.jobs)
    print(printable.sentence(directory / "README.md"))
    for path in film(config.name, directory, config.first_seed, envs, effort) if config.film else ():
        print(path)


@dataclass(frozen=True)
class Report:
    """Draw the report of a directory of cells again, from its files alone."""

    directory: tyro.conf.Positional[Path]
    """Where cells.jsonl is, such as results/table-2."""


def report(config: Report) -> None:
    from psiphi.report import render

    print(printable.sentence(render(config.directory)))


def train(arguments: Sequence[str]) -> None:
    """Train a model on demonstrations (`psiphi train itd`, algorithm 1; `psiphi train psiphi`, algorithm 2) or one of the baselines."""
    algorithm = arguments[0] if arguments else ""
    if algorithm in ("-h", "--help"):
        print(TRAIN_HELP)
        return
    if algorithm not in ALGORITHMS:
        expected = ", ".join(ALGORITHMS)
        raise UserError(f"psiphi train was given {algorithm or 'nothing'!r}; expected was one of {expected}, see psiphi train --help.")
    from psiphi.experiments import train

    # These two decide what the other flags are when they are not given, so they are looked at first.
    preset, env = _given(arguments, "--preset", "default"), _given(arguments, "--env", "coingrid")
    if preset not in ("default", "paper"):
        raise UserError(f"The preset is {preset!r}; expected was default or paper.")
    default = train.defaults(algorithm, preset, env)
    config = parsed(type(default), arguments[1:], f"psiphi train {algorithm}", default=default)
    directory = train.train(config)
    if algorithm in train.BASELINES:
        print(printable.sentence(f"The policy is in {directory}; ask it: psiphi evaluate {directory}"))
    else:
        print(printable.sentence(f"The model is in {directory}; ask it: psiphi evaluate {directory}, psiphi adapt {directory} --task R-G"))


ALGORITHMS = ("itd", "psiphi", "dqn", "bc", "sqil", "gail", "ppo")

TRAIN_HELP = f"""usage: psiphi train {{{",".join(ALGORITHMS)}}} [OPTIONS]

  itd       inverse temporal-difference learning (algorithm 1): what do the demonstrators want? No rewards.
  psiphi    PsiPhi-learning (algorithm 2): ITD, and a task of one's own with rewards.

  dqn       deep Q-learning on a task, or on a reward that was inferred (--reward-from RUN --demonstrator 0); DQN+BC-aux
  bc        behaviour cloning, a policy per demonstrator
  sqil      soft Q imitation learning, a policy
  gail      generative adversarial imitation learning, a policy
  ppo       proximal policy optimisation on a task or on an inferred reward; PPO+BC-aux

psiphi train itd --help lists every setting as a flag."""

COMMANDS: dict[str, tuple[type, Callable[[Any], None]]] = {
    "demo": (Demo, demo),
    "evaluate": (Evaluate, evaluate),
    "adapt": (Adapt, adapt),
    "reproduce": (Reproduce, reproduce),
    "report": (Report, report),
}

HELP = f"""usage: psiphi COMMAND [OPTIONS]

PsiPhi-learning: what demonstrators want, learned without rewards, and put to use on tasks nobody demonstrated.

  demo        watch the method work, with pictures: about three minutes
  train       train a model on demonstrations (psiphi train itd, psiphi train psiphi) or a baseline (dqn, bc, sqil, gail, ppo)
  demos       look at, check, convert and record demonstrations
  infer       what does each agent want? From a file of your own to tables and a picture
  evaluate    judge a trained model or policy
  adapt       re-target a trained model to a new task, from the rewards of a few episodes
  reproduce   a table or figure of the paper: {", ".join(paper.EXPERIMENTS)}
  report      draw the report of a reproduction again

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
    elif name == "train":
        _prepare_jax()
        train(rest)
    elif name == "demos":
        from psiphi.demos import commands

        _prepare_jax()
        commands.run(rest)
    elif name == "infer":
        from psiphi.experiments import infer

        _prepare_jax()
        infer.run(rest)
    elif name in COMMANDS:
        kind, command = COMMANDS[name]
        config = parsed(kind, rest, f"psiphi {name}")
        _prepare_jax()
        command(config)
    else:
        raise UserError(f"{name!r} is not a command; expected was train, demos, infer, {', '.join(COMMANDS)}, see psiphi --help.")


def _given(arguments: Sequence[str], flag: str, default: str) -> str:
    """The value of a flag, looked at before all are parsed."""
    for here, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if here == flag:
            return following
        if here.startswith(f"{flag}="):
            return here.removeprefix(f"{flag}=")
    return default


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


# --- Words and tables ----------------------------------------------------------------------------------------------------


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False)


def _evaluation_tables(found: dict[str, Any]) -> list[Any]:
    from rich.table import Table

    names = [f"{k + 1} (wants {name})" for k, name in enumerate(found["demonstrators"])]
    judged = Table(title="What was inferred", title_justify="left")
    for heading in ("demonstrator", "r² of its reward on φ", "correlation of φ·w with it", "planner's return on φ·w"):
        judged.add_column(heading, justify="left" if heading == "demonstrator" else "right")
    columns = found["r2"], found["reward_correlation"], found["planner_return"]
    for name, *row in zip(names, *columns, strict=True):
        judged.add_row(name, *(f"{value:.2f}" for value in row))
    judged.caption = f"held-out accuracy {found['accuracy']:.3f}, at most {found['ceiling_accuracy']:.3f} is possible"
    judged.caption_justify = "left"
    return [judged, _numbers("Preferences w", "head", _heads(names, found["preferences"]), found["preferences"], "φ{}"), _colours(found)]


def _heads(names: list[str], preferences: list[list[float]]) -> list[str]:
    return names + ["ego"] * (len(preferences) - len(names))


def _colours(found: dict[str, Any]) -> Any:
    from psiphi.envs.coingrid import COLOURS

    names = [f"φ{i + 1}" for i in range(len(found["cumulants"]))]
    return _numbers("Correlation of the cumulants with stepping on a coin", "cumulant", names, found["cumulants"], COLOURS)


def _numbers(title: str, corner: str, names: Sequence[str], rows: Sequence[Sequence[float]], headings: str | Sequence[str]) -> Any:
    from rich.table import Table

    table = Table(corner, title=title, title_justify="left")
    for i in range(len(rows[0])):
        table.add_column(headings.format(i + 1) if isinstance(headings, str) else headings[i], justify="right")
    for name, row in zip(names, rows, strict=True):
        table.add_row(name, *(f"{value:+.2f}" for value in row))
    return table


def _policy_table(found: dict[str, Any]) -> Any:
    from rich.table import Table

    title = f"{found['algorithm']}, mean of {found['episodes']} episodes"
    table = Table("task", "return", "normalised", title=title, title_justify="left")
    for task, row in found["tasks"].items():
        table.add_row(task, f"{row['return']:+.2f}", f"{row['normalised_return']:+.2f}")
    return table


def _adaptation_table(found: dict[str, Any], config: Adapt) -> Any:
    from rich.table import Table

    table = Table("", "return", "normalised", title=f"Task {found['task']}, mean of {config.repetitions} repetitions", title_justify="left")
    for shots, value in found["return"].items():
        name = "first episode (0-shot)" if shots == "0" else f"after {shots} episode{'s' if shots != '1' else ''} ({shots}-shot)"
        table.add_row(name, f"{value:+.2f}", f"{found['normalised_return'][shots]:+.2f}")
    table.caption = f"inferred w: {', '.join(f'{value:+.2f}' for value in found['w'])}"
    table.caption_justify = "left"
    return table
