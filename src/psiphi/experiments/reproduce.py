"""Reproduce a table or figure: train what is missing, measure it, add the cells to a file, draw the report.

The unit of work is one training: a method in a variant with a seed. It yields many cells, which are added together. Units that a
file already has are skipped, so an interrupted reproduction continues when the same command is given again.
"""

import contextlib
import functools
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax
import numpy as np
from jax import Array

from psiphi import configs, disk, report
from psiphi.configs import Count
from psiphi.envs import coingrid
from psiphi.errors import UserError
from psiphi.experiments import cells, comparisons, models, paper, pictures, traffic
from psiphi.experiments import coingrid as experiment
from psiphi.experiments.cells import Cell
from psiphi.experiments.coingrid import Setting
from psiphi.experiments.comparisons import Measured
from psiphi.experiments.paper import ALL, FEW, MANY, WORST, Experiment, Figure, Method, Variant
from psiphi.model import Model
from psiphi.progress import shown


@dataclass(frozen=True)
class Effort:
    """How much of everything; None is the experiment's own. Less than that is for trying things out."""

    updates: Count | None = None
    """Updates of training."""
    episodes: Count | None = None
    """Demonstrated episodes per demonstrator."""
    repetitions: Count = 256
    """Repetitions of few-shot transfer per task; an eighth of it where there are 100 shots."""
    steps: Count | None = None
    """Environment steps of the learners that act."""

    def __post_init__(self):
        configs.check(self)


class Unit(NamedTuple):
    """One training."""

    variant: Variant
    method: Method
    seed: int

    def __str__(self) -> str:
        return f"{self.variant.name}, {self.method.name}, seed {self.seed}"


# --- From data to settings -----------------------------------------------------------------------------------------------


def find(name: str) -> Experiment:
    if name not in paper.EXPERIMENTS:
        raise UserError(f"{name!r} is not something to reproduce; expected was one of {', '.join(paper.EXPERIMENTS)}.")
    return paper.EXPERIMENTS[name]


def setting_of(what: Experiment, variant: Variant, method: Method, effort: Effort) -> Setting:
    """The method in the variant."""
    base = models.preset(method.preset, "psiphi" if method.changes.get("ego_task") else "itd")
    changes = {"demonstrators": tuple(coingrid.task_weights(name) for name in what.demonstrators), **variant.changes, **method.changes}
    changes |= {name: value for name, value in [("updates", effort.updates), ("episodes", effort.episodes)] if value is not None}
    return models.changed(base, changes)


def compared_setting(what: Experiment, unit: Unit, effort: Effort) -> Any:
    """The same for a row that is not about one model."""
    less = {"steps": effort.steps, "episodes": effort.episodes, "updates": effort.updates}
    return comparisons.setting_of(what, unit.variant, unit.method, **less)


def config_of(what: Experiment, unit: Unit, effort: Effort) -> dict[str, Any]:
    """All that a unit's numbers depend on besides the seed and the program, as JSON values."""
    if unit.method.how != "model":
        return comparisons.described(compared_setting(what, unit, effort))
    return {**models.described(setting_of(what, unit.variant, unit.method, effort)), "repetitions": effort.repetitions}


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
        raise UserError(f"{what.name} has no {kind} {', '.join(sorted(unknown))}; expected were some of {names}.")
    return [one for one in there if not only or one.name in only]


# --- From a model to figures ---------------------------------------------------------------------------------------------

References = dict[str, dict[str, float]]
"""Returns to divide by: by variant and seed ("coingrid 0"), then by task."""


def few_shot(what: Experiment, setting: Setting, model: Model, seed: int, key: Array, effort: Effort) -> Measured:
    got = experiment.transfer(setting, model, key, shots=FEW, repetitions=effort.repetitions)
    for task in paper.TASKS:
        yield Figure("normalised_return", task, 0), got["first"][task], None
        yield Figure("normalised_return", task, FEW), got["after"][task], None


def many_shot(what: Experiment, setting: Setting, model: Model, seed: int, key: Array, effort: Effort) -> Measured:
    got = experiment.transfer(setting, model, key, shots=MANY, repetitions=max(effort.repetitions // 8, 1))
    for task in paper.TASKS:
        yield Figure("normalised_return", task, MANY), got["after"][task], None


def phi(what: Experiment, setting: Setting, model: Model, seed: int, key: Array, effort: Effort) -> Measured:
    got = experiment.explained(setting, model, key)
    yield Figure("r2", ALL), float(np.mean(got["r2"])), None
    for metric in ("r2", "reward_correlation"):
        for who, value in zip(what.demonstrators, got[metric], strict=True):
            yield Figure(metric, who), value, None


def imitation(what: Experiment, setting: Setting, model: Model, seed: int, key: Array, effort: Effort) -> Measured:
    got = experiment.held_out_accuracy(setting, model, seed, min(500, setting.episodes))
    yield Figure("accuracy", ALL), got["accuracy"], None
    yield Figure("ceiling_accuracy", ALL), got["ceiling"], None


def planner(what: Experiment, setting: Setting, model: Model, seed: int, key: Array, effort: Effort) -> Measured:
    for who, value in zip(what.demonstrators, experiment.planned_on_inferred(setting, model, key), strict=True):
        yield Figure("planner_return", who), value, None


def cumulants(what: Experiment, setting: Setting, model: Model, seed: int, key: Array, effort: Effort) -> Measured:
    """The best cumulant for each colour; the worst colour's cell keeps the picture."""
    steps_key, board_key = jax.random.split(key)
    matrix = np.asarray(experiment.explained(setting, model, steps_key)["cumulants"])
    best = np.abs(matrix).max(axis=0)
    colours = ["RGY".index(who) for who in what.demonstrators]
    for who, colour in zip(what.demonstrators, colours, strict=True):
        yield Figure("correlation", who), float(best[colour]), None
    yield Figure("correlation", WORST), float(best[colours].min()), picture(setting, model, matrix, board_key)


def picture(setting: Setting, model: Model, matrix: np.ndarray, key: Array) -> dict[str, Any]:
    """What `report` needs to draw the cumulants over a board."""
    panels = pictures.cumulants_over_board(setting.world, model, key)
    agents = len(setting.demonstrators)
    return {
        "board": panels.board.tolist(),
        "phi": np.round(panels.phi, 5).tolist(),
        "correlation": np.round(matrix, 5).tolist(),
        "demonstrators": [coingrid.task_name(weights) for weights in setting.demonstrators],
        "preferences": np.round(np.asarray(model.w[:agents]), 5).tolist(),
    }


MEASURES: dict[str, Callable[..., Measured]] = {
    "few-shot": few_shot,
    "many-shot": many_shot,
    "phi": phi,
    "imitation": imitation,
    "planner": planner,
    "cumulants": cumulants,
}


def gpi_ceiling(setting: Setting, key: Array) -> Measured:
    for task, value in experiment.ceiling(setting, key).items():
        yield Figure("gpi_ceiling", task), value, None


def run_unit(what: Experiment, unit: Unit, effort: Effort, origin: dict[str, Any], references: References) -> list[Cell]:
    """Train and measure. `wall_s` is the whole of it, compiling included, `train_s` the training."""
    started = time.monotonic()
    if unit.method.how != "model":
        return compared(what, unit, effort, origin, references, started)
    setting = setting_of(what, unit.variant, unit.method, effort)
    key = jax.random.fold_in(jax.random.key(unit.seed), 3)
    cost: dict[str, Any] = {"env_steps": 0}
    if unit.method.trains:
        trained = experiment.train(setting, unit.seed, progress=False)
        cost = {"env_steps": trained.env_steps, "train_s": round(trained.wall_s, 2)}
        measured = [(one, row) for one in judged(what, unit) for row in measure(what, one, trained.model, key, effort)]
    else:
        measured = [(unit, row) for row in gpi_ceiling(setting, key)]
    cost["wall_s"] = round(time.monotonic() - started, 2)
    return [to_cell(what, one, *row, **cost, config=config_of(what, one, effort), **origin) for one, row in measured]


def compared(what: Experiment, unit: Unit, effort: Effort, origin: dict[str, Any], references: References, started: float) -> list[Cell]:
    """A row that is not about one model: its figures, and those of the rows that share its trainings."""
    setting = compared_setting(what, unit, effort)
    if unit.method.how == "imitate":
        done = comparisons.imitate(what, unit.method, setting, unit.seed, references.get(f"{unit.variant.name} {unit.seed}", {}))
    elif unit.method.how == "predict":
        done = comparisons.predict(unit.method, setting, unit.seed)
    elif unit.method.how == "curve":
        figures, env_steps, train_s = comparisons.curve(unit.variant, setting, unit.seed)
        done = comparisons.Done({unit.method.name: figures}, env_steps, train_s)
    else:
        figures, env_steps, train_s = comparisons.adapt(setting, unit.seed)
        done = comparisons.Done({unit.method.name: figures}, env_steps, train_s)
    cost = {"env_steps": done.env_steps, "train_s": round(done.train_s, 2), "wall_s": round(time.monotonic() - started, 2)}
    by_name = {one.method.name: one for one in judged(what, unit)}
    return [
        to_cell(what, by_name[name], *row, **cost, config=config_of(what, by_name[name], effort), **origin)
        for name, rows in done.figures.items()
        for row in rows
    ]


def measure(what: Experiment, unit: Unit, model: Model, key: Array, effort: Effort) -> Measured:
    """All that the experiment measures of a trained model."""
    setting = setting_of(what, unit.variant, unit.method, effort)
    for i, name in enumerate(MEASURES):
        if name in what.measures:
            yield from MEASURES[name](what, setting, model, unit.seed, jax.random.fold_in(key, i), effort)


def to_cell(what: Experiment, unit: Unit, figure: Figure, value: float, extra: Any, **rest: Any) -> Cell:
    """JSON has no word for what is not finite: null."""
    who = {"experiment": what.name, "env": unit.variant.name, "task": figure.task, "method": unit.method.name}
    shots = {} if figure.shots is None else {"shots": figure.shots}
    number = round(float(value), 6) if math.isfinite(value) else None
    cell = {**who, **shots, "seed": unit.seed, "metric": figure.metric, "value": number, **rest}
    return cell if extra is None else {**cell, "extra": extra}


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
) -> Path:
    """Fill `out`/`name`/cells.jsonl with what is missing and draw the report there; gives that directory."""
    what = find(name)
    directory = out / name
    wanted = units(what, seeds, methods, envs)
    disk.check_directory(directory)
    missing = pending(what, directory, wanted, effort)
    origin = {"commit": cells.commit(), "versions": cells.versions(), "command": cells.command()}
    done = len(wanted) - len(missing)
    failures: dict[Unit, str] = {}
    with shown(f"{name}: trainings", done=done, total=len(wanted)) as display:
        display.say(f"{directory} has {done} of {len(wanted)} trainings.")
        for some in in_order(what, missing):
            given = references(what, directory)
            for unit, got in (in_turn if jobs == 1 else functools.partial(side_by_side, jobs=jobs))(what, some, effort, origin, given):
                if isinstance(got, str):
                    failures[unit] = got
                    display.say(f"{unit}: failed: {got}")
                else:
                    cells.append(directory, got)
                    done += 1
                    display.say(f"{unit}: {len(got)} cells in {got[0]['wall_s']:.0f} s")
                    display.advance(done, {})
    if cells.read(directory):
        report.render(directory)
    if failures:
        unit, why = next(iter(failures.items()))
        raise UserError(f"{len(failures)} of {len(wanted)} trainings failed; the first ({unit}) said: {why}")
    return directory


def film(name: str, directory: Path, seed: int, envs: Sequence[str] = (), effort: Effort = Effort()) -> list[Path]:  # noqa: B008
    """An episode of PsiPhi-learning's ego in each world of traffic, after the training that the seed's cells are of, as GIFs."""
    what = find(name)
    (method,) = [method for method in what.methods if method.name == "psiphi"]
    paths = []
    for variant in _chosen(what, "env", what.variants, envs):
        setting = compared_setting(what, Unit(variant, method, seed), effort)
        if not isinstance(setting, traffic.Setting):
            raise UserError(f"{name} on {variant.name} has no film; expected was figure-3.")
        trained = traffic.train(setting, seed)
        paths.append(directory / f"{variant.name}.gif")
        traffic.film(setting, trained, jax.random.key(seed), paths[-1])
    report.render(directory)
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
    known = {cells.key_of(cell) for cell in there}

    def key(unit: Unit, figure: Figure) -> cells.Key:
        return cells.Key(unit.variant.name, unit.method.name, unit.seed, figure.metric, figure.task, figure.shots)

    def complete(unit: Unit) -> bool:
        return all(key(one, figure) in known for one in judged(what, unit) for figure in what.figures(one.method, one.variant))

    return [unit for unit in wanted if not complete(unit)]


def in_turn(
    what: Experiment, todo: Sequence[Unit], effort: Effort, origin: dict[str, Any], references: References
) -> Iterator[tuple[Unit, list[Cell] | str]]:
    """One unit after the other in this process, with all its threads."""
    for unit in todo:
        yield unit, run_unit(what, unit, effort, origin, references)


# --- In processes of their own -------------------------------------------------------------------------------------------

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
"""Nets this small leave a second thread waiting: two processes of one thread each get more done than one of two."""


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


def side_by_side(
    what: Experiment, todo: Sequence[Unit], effort: Effort, origin: dict[str, Any], references: References, *, jobs: int
) -> Iterator[tuple[Unit, list[Cell] | str]]:
    """Up to `jobs` units at once; what a worker finished comes as cells, what failed as a sentence. Leaving ends the workers."""
    waiting = list(todo)
    running: dict[Unit, _Worker] = {}
    origin = {**origin, "versions": {**origin["versions"], "threads": "1"}}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                unit = waiting.pop(0)
                running[unit] = _start(what, unit, effort, origin, references)
            time.sleep(0.05)
            for unit in [unit for unit, worker in running.items() if worker.process.poll() is not None]:
                yield unit, _outcome(running.pop(unit))
    finally:
        for worker in running.values():
            worker.process.terminate()
        for worker in running.values():
            worker.process.wait()


def _start(what: Experiment, unit: Unit, effort: Effort, origin: dict[str, Any], references: References) -> _Worker:
    task = {
        "experiment": what.name,
        "unit": [unit.variant.name, unit.method.name, unit.seed],
        "effort": asdict(effort),
        "origin": origin,
        "references": references,
    }
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
        with contextlib.suppress(OSError, ValueError):
            sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def worker() -> None:
    """What a worker process does: the unit described by its argument; the cells go to its standard output."""
    task = json.loads(sys.argv[1])
    what = find(task["experiment"])
    name, method_name, seed = task["unit"]
    (variant,) = [variant for variant in what.variants if variant.name == name]
    (method,) = [method for method in what.methods if method.name == method_name]
    with contextlib.redirect_stdout(sys.stderr):  # nothing but the cells is to stand there
        got = run_unit(what, Unit(variant, method, seed), Effort(**task["effort"]), task["origin"], task["references"])
    json.dump(got, sys.stdout)
