"""Reproduce a table or figure: train what is missing, measure it, add the cells to a file, draw the report.

The unit of work is one training: a method in a variant with a seed. It yields many cells, which are added together. Units that a
file already has are skipped, so an interrupted reproduction continues when the same command is given again. While a unit is at work, it is
put down in a directory of its own; a unit that was killed continues inside of its training.
"""

import contextlib
import functools
import hashlib
import importlib.util
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax

from psiphi import disk, films, playing, printable, report, training
from psiphi.errors import UserError
from psiphi.experiments import cells, imitation, ledger, measures, paper, runs
from psiphi.experiments.cells import Cell
from psiphi.experiments.measures import Unit, Where
from psiphi.experiments.paper import Experiment, Figure
from psiphi.experiments.runs import Effort
from psiphi.loops.runs import BusyError

# --- From data to runs ---------------------------------------------------------------------------------------------------


def find(name: str) -> Experiment:
    """An experiment by its name, or out of a file of the user's that defines EXPERIMENT."""
    if name.endswith(".py"):
        return _own(Path(name))
    there = paper.EXPERIMENTS | paper.WITH_EXTRAS
    if name not in there:
        known = ", ".join(there)
        raise UserError(f"{name!r} is not something to reproduce; expected one of {known}, or a Python file that defines EXPERIMENT.")
    return there[name]


def _own(path: Path) -> Experiment:
    """The experiment that a file of the user's defines; the file is run."""
    if not path.is_file():
        raise UserError(f"{path} does not exist, expected a Python file that defines EXPERIMENT.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file does
        raise UserError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    found = getattr(module, "EXPERIMENT", None)
    if not isinstance(found, Experiment):
        raise UserError(f"{path} defines no EXPERIMENT, expected a psiphi.experiments.paper.Experiment of that name.")
    if found.name in paper.EXPERIMENTS:
        raise UserError(f"{path} calls its experiment {found.name!r}, which is one of psiphi's own; expected another name.")
    return replace(found, source=str(path.absolute()))


def config_of(what: Experiment, unit: Unit, effort: Effort) -> dict[str, Any]:
    """All that a unit's numbers depend on besides the seed and the program, as JSON values."""
    method = unit.method
    if method.how == "predict":
        setting = imitation.setting_of(method.algorithm, {**unit.variant.changes, **method.changes}, effort.updates, effort.episodes)
        return {**asdict(setting), "saw": imitation.saw(setting)}
    if method.algorithm in ("idm", "script"):
        return {"algorithm": method.algorithm, "saw": ["none: it is who demonstrates", "none", "none"]}
    run = training.completed(runs.run_of(what, unit.variant, method, effort))
    config = runs.described(run)
    if unit.variant.moved:
        config["moved"] = dict(unit.variant.moved)
    if method.how == "model" or (method.how == "goals" and method.few_shot):
        return {**config, "few_shot": asdict(runs.few_shot_of(method)), "repetitions": effort.repetitions}
    if method.how == "goals":
        return {**config, "on the goals": dict(method.learner)}
    if method.how == "adapt":
        config["saw"] = [config["saw"][0], f"{run.steps:,}; then those of the task", "those of the task"]
    if method.learner:
        learner = dict(method.learner) | ({} if effort.steps is None else {"steps": effort.steps})
        config |= {"learner": learner, "saw": [config["saw"][0], *_learners_saw(run.steps, learner["steps"])]}
    return config


def _learners_saw(together: int, after: int) -> list[str]:
    """Steps and rewards, in words, of learners on what ITD inferred: while it does, for so many steps each, or after it has."""
    steps = f"{together:,} for each reward, which ITD sees" if together else f"{after:,} for each reward, beside ITD's random ones"
    return [steps, "what ITD inferred"]


def units(what: Experiment, seeds: Sequence[int], only: Sequence[str] = (), envs: Sequence[str] = ()) -> list[Unit]:
    """All units, or those of some methods and worlds, seed by seed, so that an unfinished file has every method about equally often."""
    chosen, variants = _chosen(what, "method", what.methods, only), _chosen(what, "env", what.variants, envs)
    trained = {method.trained_as or method.name for method in chosen} | ({what.reference} if what.reference else set())
    methods = [method for method in what.methods if method.name in trained]
    return [Unit(variant, method, seed) for seed in seeds for variant in variants for method in methods if paper.has(variant, method)]


def judged(what: Experiment, unit: Unit) -> list[Unit]:
    """The unit and those that share its training."""
    sharing = [method for method in what.methods if method.trained_as == unit.method.name and paper.has(unit.variant, method)]
    return [unit._replace(method=method) for method in (unit.method, *sharing)]


def _chosen(what: Experiment, kind: str, there: Sequence[Any], only: Sequence[str]) -> list[Any]:
    unknown = set(only) - {one.name for one in there}
    if unknown:
        names = ", ".join(one.name for one in there)
        raise UserError(f"{what.name} has no {kind} {', '.join(sorted(unknown))}; expected some of {names}.")
    return [one for one in there if not only or one.name in only]


# --- From a unit to cells ------------------------------------------------------------------------------------------------

References = dict[str, dict[str, float]]
"""Returns to divide by: by variant and seed ("coingrid 0"), then by task."""


def run_unit(
    what: Experiment, unit: Unit, effort: Effort, origin: dict[str, Any], references: References, where: Where | None = None
) -> list[Cell]:
    """Train and measure, with what is unfinished put down as `where` says. `wall_s` is the whole of it, compiling included, `train_s` the
    training; both have what processes before this one spent on it and put down."""
    started = time.monotonic()
    sharing = judged(what, unit)
    done = measures.HOW[unit.method.how](
        what, unit, [one.method for one in sharing], effort, references.get(f"{unit.variant.name} {unit.seed}", {}), where
    )
    cost: dict[str, Any] = {"env_steps": done.env_steps}
    if unit.method.trains:
        cost["train_s"] = round(done.train_s, 2)
    cost["wall_s"] = round(time.monotonic() - started + done.earlier_s, 2)
    by_name = {one.method.name: one for one in sharing}
    return [
        to_cell(what, by_name[name], *row, **cost, config=config_of(what, by_name[name], effort), **origin)
        for name, rows in done.figures.items()
        for row in rows
    ]


def to_cell(what: Experiment, unit: Unit, figure: Figure, value: float, extra: Any, **rest: Any) -> Cell:
    """JSON has no word for what is not finite: null."""
    who = {"experiment": what.name, "env": unit.variant.name, "task": figure.task, "method": unit.method.name}
    shots = {} if figure.shots is None else {"shots": figure.shots}
    number = round(float(value), 6) if math.isfinite(value) else None
    cell = {**who, **shots, "seed": unit.seed, "metric": figure.metric, "value": number, **rest}
    return cell if extra is None else {**cell, "extra": extra}


# --- What is unfinished --------------------------------------------------------------------------------------------------

UNFINISHED = "unfinished"
MODELS = "models"
"""Where the models of learning curves stay, if they are asked for: OUT/NAME/models/WORLD-METHOD-SEED."""


def unfinished(directory: Path, unit: Unit) -> Path:
    """Where a unit is put down while it is at work, whatever it is made with."""
    return directory / UNFINISHED / _file_name(unit)


def _file_name(unit: Unit) -> str:
    return printable.file_name(f"{unit.variant.name}-{unit.method.name}-{unit.seed}")


def place_of(directory: Path, what: Experiment, unit: Unit, effort: Effort, origin: dict[str, Any]) -> Path:
    """The same, made with these settings by this program: what another one left is not gone on with."""
    made_with = [config_of(what, unit, effort), asdict(effort), origin["commit"], origin["versions"]]
    return unfinished(directory, unit) / hashlib.sha256(json.dumps(made_with, sort_keys=True).encode()).hexdigest()[:16]


def tidy(directory: Path, finished: Sequence[Unit]) -> None:
    """Remove what was put down of units whose cells are there."""
    for unit in finished:
        disk.remove(unfinished(directory, unit))
    with contextlib.suppress(OSError):
        (directory / UNFINISHED).rmdir()


class Work(NamedTuple):
    """What all units of a reproduction have in common."""

    what: Experiment
    directory: Path
    """Where the cells go."""
    effort: Effort
    origin: dict[str, Any]
    references: References
    checkpoint_every_s: float = 30.0
    keep_models: bool = False

    def of_one_thread(self) -> "Work":
        return self._replace(origin={**self.origin, "versions": {**self.origin["versions"], "threads": "1"}})

    def where(self, unit: Unit) -> Where:
        place = place_of(self.directory, self.what, unit, self.effort, self.origin).absolute()
        model = self.directory.absolute() / MODELS / _file_name(unit) if self.keep_models else None
        return Where(place, self.checkpoint_every_s, model)

    def task(self, unit: Unit) -> dict[str, Any]:
        """A unit as JSON values, for a process that knows nothing of this one."""
        directory, checkpoint_every_s, model = self.where(unit)
        return {
            "experiment": self.what.source or self.what.name,
            "unit": [unit.variant.name, unit.method.name, unit.seed],
            "effort": asdict(self.effort),
            "origin": self.origin,
            "references": self.references,
            "where": [str(directory), checkpoint_every_s, None if model is None else str(model)],
        }


Runner = Callable[[Work, Sequence[Unit]], Iterator[tuple[Unit, list[Cell] | str]]]
"""``runner(work, todo)``: the units as they are finished, with their cells, or a sentence where one failed."""


# --- All of it -----------------------------------------------------------------------------------------------------------


def reproduce(
    name: str,
    out: Path,
    seeds: Sequence[int],
    *,
    methods: Sequence[str] = (),
    envs: Sequence[str] = (),
    effort: Effort = Effort(),  # noqa: B008 - a frozen value
    jobs: int = 1,
    runner: Runner | None = None,
    checkpoint_every_s: float = 30.0,
    keep_models: bool = False,
) -> Path:
    """Fill `out`/`name`/cells.jsonl with what is missing and draw the report there; gives that directory.

    `runner` runs the units, up to `jobs` side by side; processes of this machine by default.
    """
    runner = runner or (in_turn if jobs == 1 else functools.partial(side_by_side, jobs=jobs))
    what = find(name)
    directory = out / what.name
    wanted = units(what, seeds, methods, envs)
    disk.check_directory(directory)
    missing = pending(what, directory, wanted, effort)
    tidy(directory, [unit for unit in wanted if unit not in missing])
    origin = {"commit": cells.commit(), "versions": cells.versions(), "command": cells.command()}
    done = len(wanted) - len(missing)
    failures: dict[Unit, str] = {}
    book = ledger.Ledger(wanted, missing, cells.read(directory), jobs)
    with ledger.watched(book, sys.stderr.isatty()) as display:
        display.say(f"{directory} has {done} of {len(wanted)} trainings.")
        for some in in_order(what, missing):
            given = references(what, directory)
            work = Work(what, directory, effort, origin, given, checkpoint_every_s, keep_models)
            for unit, got in runner(work, some):
                book.finished(unit, None if isinstance(got, str) else got[0]["wall_s"])
                if isinstance(got, str):
                    failures[unit] = got
                    display.say(f"{unit}: failed: {got}")
                else:
                    cells.append(directory, got)
                    tidy(directory, [unit])
                    done += 1
                    display.say(f"{unit}: {len(got)} cells in {got[0]['wall_s']:.0f} s")
                    display.advance(done, {})
    if cells.read(directory):
        report.render(directory, what)
    if failures:
        unit, why = next(iter(failures.items()))
        raise UserError(f"{len(failures)} of {len(wanted)} trainings failed; the first ({unit}) said: {why}")
    return directory


class Forecast(NamedTuple):
    """What a reproduction has, lacks and costs."""

    rows: list[dict[str, Any]]
    """A row per method and variant: experiment, env, method, trainings, missing, wall_s of those there, the run's config."""

    @property
    def missing(self) -> int:
        return sum(row["missing"] for row in self.rows)


def forecast(
    names: Sequence[str],
    out: Path,
    seeds: Sequence[int],
    *,
    methods: Sequence[str] = (),
    envs: Sequence[str] = (),
    effort: Effort = Effort(),  # noqa: B008
) -> Forecast:
    """Every training of some reproductions with what it cost so far, without running any."""
    rows = []
    for name in names:
        what = find(name)
        there = cells.read(out / what.name)
        wanted = units(what, seeds, methods, envs)
        lacking = set(_missing(what, there, wanted))
        for unit in {(unit.variant.name, unit.method.name): unit for unit in wanted}.values():
            mine = [one for one in wanted if (one.variant, one.method) == (unit.variant, unit.method)]
            key = unit.variant.name, unit.method.name
            spent = {cell["seed"]: cell["wall_s"] for cell in there if (cell["env"], cell["method"]) == key}
            rows.append(
                {
                    "experiment": what.name,
                    "env": key[0],
                    "method": key[1],
                    "trainings": len(mine),
                    "missing": sum(one in lacking for one in mine),
                    "wall_s": round(sum(spent.values()) / len(spent), 1) if spent else None,
                    "config": config_of(what, unit, effort),
                }
            )
    return Forecast(rows)


def film(name: str, directory: Path, seed: int, envs: Sequence[str] = (), effort: Effort = Effort()) -> list[Path]:  # noqa: B008
    """An episode of PsiPhi-learning's ego in each world that can be drawn, as GIFs: of the model that was kept, or after the training that
    the seed's cells are of."""
    what = find(name)
    paths = []
    for variant in _chosen(what, "env", what.variants, envs):
        methods = [one for one in what.methods if (one.algorithm, one.how) == ("psiphi", "curve") and paper.has(variant, one)]
        place = training.worlds.find(variant.world)
        if place.drawn is None or not methods:
            raise UserError(f"{name} on {variant.name} has no film; expected figure-3.")
        run = training.completed(runs.run_of(what, variant, methods[0], effort, seed))
        kept = directory / MODELS / _file_name(Unit(variant, methods[0], seed))
        if kept.exists():
            _, policy = playing.player(playing.read(kept))
        else:
            trained = training.train(run)
            policy = functools.partial(trained.agent.policy, trained.state)
        paths.append(directory / f"{variant.name}.gif")
        films.film(place.drawn(run.world, run.task), policy, jax.random.key(seed), paths[-1])
    report.render(directory, what)
    return paths


def in_order(what: Experiment, missing: Sequence[Unit]) -> list[list[Unit]]:
    """First the units by whose returns others' are divided, then all others."""
    first = [unit for unit in missing if unit.method.name == what.reference]
    return [some for some in (first, [unit for unit in missing if unit not in first]) if some]


def references(what: Experiment, directory: Path) -> References:
    """The returns to divide by that are there."""
    found: References = {}
    for cell in cells.read(directory) if what.reference else []:
        if (cell["method"], cell["metric"]) == (what.reference, "return") and cell["value"]:
            found.setdefault(f"{cell['env']} {cell['seed']}", {})[cell["task"]] = cell["value"]
    return found


def pending(what: Experiment, directory: Path, wanted: Sequence[Unit], effort: Effort) -> list[Unit]:
    """The units of which a cell is missing. A file made with other settings is refused before anything is run."""
    there = cells.read(directory)
    for one in {(one.variant.name, one.method.name): one for unit in wanted for one in judged(what, unit)}.values():
        cells.check_config(directory, there, one.variant.name, one.method.name, config_of(what, one, effort))
    return _missing(what, there, wanted)


def _missing(what: Experiment, there: Sequence[Cell], wanted: Sequence[Unit]) -> list[Unit]:
    """The units of which a cell is not there."""
    known = {cells.key_of(cell) for cell in there}

    def key(unit: Unit, figure: Figure) -> cells.Key:
        return cells.Key(unit.variant.name, unit.method.name, unit.seed, figure.metric, figure.task, figure.shots)

    def complete(unit: Unit) -> bool:
        return all(key(one, figure) in known for one in judged(what, unit) for figure in what.figures(one.method, one.variant))

    return [unit for unit in wanted if not complete(unit)]


def in_turn(work: Work, todo: Sequence[Unit]) -> Iterator[tuple[Unit, list[Cell] | str]]:
    """One unit after the other in this process, with all its threads."""
    for unit in todo:
        training.make_room()  # not every unit is a training by `training.train`
        yield unit, run_unit(work.what, unit, work.effort, work.origin, work.references, work.where(unit))


def of_task(task: dict[str, Any]) -> list[Cell]:
    """The cells of a unit that was described by `Work.task`."""
    what = find(task["experiment"])
    name, method_name, seed = task["unit"]
    (variant,) = [variant for variant in what.variants if variant.name == name]
    (method,) = [method for method in what.methods if method.name == method_name]
    unit, effort = Unit(variant, method, seed), Effort(**task["effort"])
    directory, checkpoint_every_s, model = task["where"]
    where = Where(Path(directory), checkpoint_every_s, None if model is None else Path(model))
    while True:
        try:
            return run_unit(what, unit, effort, task["origin"], task["references"], where)
        except BusyError:  # one that was given out before is about to end, or at work: what it leaves is gone on with
            time.sleep(1.0)


# --- In processes of their own -------------------------------------------------------------------------------------------

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
"""Nets this small leave a second thread waiting: two processes of one thread each get more done than one of two."""


MOST_DEATHS = 20
"""So often a unit whose process is killed is begun again; each time it goes on where it was."""

WORKER = "from psiphi.experiments import reproduce; reproduce.end_with_parent(); reproduce.worker()"


def compiled_programs() -> Path:
    """Where workers keep what they compiled, unless JAX_COMPILATION_CACHE_DIR says otherwise: a method is the same program for all seeds.

    By machine, as compiled code may use instructions that another machine with the same home folder lacks.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "psiphi" / "compiled" / (platform.node() or "here")


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    said: IO[bytes]
    complained: IO[bytes]


def side_by_side(work: Work, todo: Sequence[Unit], *, jobs: int) -> Iterator[tuple[Unit, list[Cell] | str]]:
    """Up to `jobs` units at once; what a worker finished comes as cells, what failed as a sentence. Leaving ends the workers."""
    waiting, work, deaths = list(todo), work.of_one_thread(), dict.fromkeys(todo, 0)
    running: dict[Unit, _Worker] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                unit = waiting.pop(0)
                running[unit] = _start(work.task(unit))
            time.sleep(0.05)
            for unit in [unit for unit, worker in running.items() if worker.process.poll() is not None]:
                worker = running.pop(unit)
                if worker.process.returncode < 0 and deaths[unit] < MOST_DEATHS:
                    _outcome(worker)
                    deaths[unit] += 1
                    waiting.insert(0, unit)
                else:
                    yield unit, _outcome(worker)
    finally:
        for worker in running.values():
            worker.process.terminate()
        for worker in running.values():
            worker.process.communicate()


def alone(task: dict[str, Any]) -> list[Cell] | str:
    """A unit in a process of its own: its cells, or what went wrong as a sentence. A process that is killed is followed by another."""
    for _ in range(MOST_DEATHS):
        worker = _start(task)
        try:
            worker.process.wait()
        finally:
            worker.process.kill()
        got = _outcome(worker)
        if worker.process.returncode >= 0:
            return got
    return f"its process was killed {MOST_DEATHS} times."


def _start(task: dict[str, Any]) -> _Worker:
    flags = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()
    said, complained = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, json.dumps(task)],
        stdin=subprocess.PIPE,  # never written to: it ends with this process, however that ends, and the worker with it
        stdout=said,
        stderr=complained,
        env={"JAX_COMPILATION_CACHE_DIR": str(compiled_programs()), **os.environ, "XLA_FLAGS": flags, "NPROC": "1"},
        start_new_session=True,  # Ctrl-C reaches this process alone, which then ends its workers
    )
    return _Worker(process, said, complained)


def _outcome(worker: _Worker) -> list[Cell] | str:
    worker.process.communicate()  # it has ended; this closes the pipe to it
    with worker.said as said, worker.complained as complained:
        said.seek(0)
        complained.seek(0)
        lines = complained.read().decode(errors="replace").strip().splitlines()
        if worker.process.returncode == 0:
            for line in lines:
                if line.startswith("psiphi: "):  # a warning, of a collapse say, and not what a library had to say
                    print(line, file=sys.stderr)
            return json.loads(said.read())
    return lines[-1] if lines else f"it ended with code {worker.process.returncode}."


def end_with_parent() -> None:
    """End this process when the other end of its standard input closes, as it does when the parent is gone, killed or not."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1):  # not sys.stdin: Python could not close that at its end while this thread waits in it
                pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def worker() -> None:
    """What a worker process does: the unit described by its argument; the cells go to its standard output."""
    with contextlib.redirect_stdout(sys.stderr):  # nothing but the cells is to stand there
        got = of_task(json.loads(sys.argv[1]))
    json.dump(got, sys.stdout)
