"""What logs alone tell of rewards: psiphi fitted to logs of worlds with known truth, many seeds, one table.

    python benchmarks/logs_alone/run.py --dry-run
    python benchmarks/logs_alone/run.py --jobs 2 --out results/logs-alone
    python benchmarks/logs_alone/run.py --sweep main --worlds costs,drive --seeds 1000-1001 --out runs/logs-alone-try

Fits have a single thread each and follow each other in a process, which keeps what it compiled (and on disk, for the next one). Finished
ones are lines of OUT/cells.jsonl: whatever is missing there is run, so a run that was cut is continued by the same command, and what two
sweeps ask for is fitted once. Then OUT/README.md is written.
"""

import argparse
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import report
import store
import sweeps
from store import Cell, Key
from sweeps import Fit, Place

from psiphi.errors import UserError
from psiphi.experiments import cells as origins

HERE = Path(__file__).resolve().parent
ONE_THREAD = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
XLA_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
GUESS_S, GUESS_PER_AGENT_S = 60.0, 6.0
"""What a fit is taken to cost while none of its world is known."""
FITS_PER_PROCESS = 40
"""Then its memory is given back."""
ENOUGH_FAILURES = 5
"""After so many fits in a row that failed, something else is wrong than the fits."""

Plan = dict[Fit, list[Place]]
Execute = Callable[[Fit], list[dict[str, Any]]]


# --- What is missing -----------------------------------------------------------------------------------------------------


class Missing(NamedTuple):
    """What a directory lacks."""

    copies: list[Cell]
    """Cells of fits that are known from another sweep."""
    fits: Plan


def missing(wanted: Plan, known: Sequence[Cell]) -> Missing:
    """What of a plan is not there: to be copied from other sweeps, or to be fitted."""
    there = {store.key_of(cell) for cell in known}
    by_fit: dict[Fit, dict[str, Cell]] = {}
    for cell in known:
        by_fit.setdefault(store.fit_of(cell), {})[cell["agent"]] = cell
    copies, fits = [], {}
    for fit, places in wanted.items():
        agents, found = sweeps.agents_of(fit), by_fit.get(fit, {})
        lacking = [(place, agent) for place in places for agent in agents if Key(*place, fit.world, fit.seed, agent) not in there]
        if lacking and set(agents) <= found.keys():
            copies += [{**found[agent], **place._asdict()} for place, agent in lacking]
        elif lacking:
            fits[fit] = places
    return Missing(copies, fits)


def check(wanted: Plan, known: Sequence[Cell], out: Path) -> None:
    """Refuse to mix: a condition means what it meant, and seeds for tuning are not reported with others."""
    asked = {(*place, fit.world): fit.setting for fit, places in wanted.items() for place in places}
    for cell in known:
        found = store.fit_of(cell).setting
        expected = asked.get((cell["sweep"], cell["condition"], cell["world"]), found)
        if found != expected:
            name = f"{cell['sweep']} / {cell['condition']}"
            raise UserError(f"{out} holds {name} made with {found}, expected {expected}; choose another --out.")
    seeds = {fit.seed for fit in wanted} | {cell["seed"] for cell in known}
    if len({seed >= sweeps.TUNING for seed in seeds}) > 1:
        raise UserError(f"{out} would hold seeds below {sweeps.TUNING}, for reporting, and others, for tuning; expected one kind.")


# --- Running -------------------------------------------------------------------------------------------------------------


def complete(wanted: Plan, out: Path, origin: dict[str, Any], jobs: int, execute: Execute | None = None) -> list[Fit]:
    """Run what is missing, so many fits side by side; every finished one is written at once. Gives those that failed."""
    known = store.read(out)
    check(wanted, known, out)
    copies, fits = missing(wanted, known)
    store.append(out, copies)
    failed: list[Fit] = []
    in_a_row, began = 0, time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        running: dict[Future[list[dict[str, Any]]], Fit] = {pool.submit(execute or in_a_process, fit): fit for fit in fits}
        try:
            for number, future in enumerate(as_completed(running), start=1):
                fit = running.pop(future)
                error = future.exception()
                if error is None:
                    new = store.append(out, lines(fit, fits[fit], future.result(), origin))
                    in_a_row, left = 0, (time.monotonic() - began) / number * (len(fits) - number)
                    print(f"{number}/{len(fits)} {_said(fit, fits[fit], new)}; {_hours(left)} left", flush=True)
                else:
                    traceback.print_exception(error)
                    print(f"{number}/{len(fits)} {_named(fit, fits[fit])}: failed, {error}", file=sys.stderr, flush=True)
                    failed.append(fit)
                    in_a_row += 1
                if in_a_row == ENOUGH_FAILURES:
                    raise UserError(f"{in_a_row} fits failed in a row, the last with: {error}")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return failed


def lines(fit: Fit, places: Sequence[Place], found: Sequence[dict[str, Any]], origin: dict[str, Any]) -> list[Cell]:
    """The cells of a fit."""
    told = {"world": fit.world, "seed": fit.seed, "setting": asdict(fit.setting)}
    return [{**place._asdict(), **told, **figures, **origin} for place in places for figures in found]


_LOCAL = threading.local()


def in_a_process(fit: Fit) -> list[dict[str, Any]]:
    """The fit in this thread's own process; if it dies, nothing else does. A new one is begun now and then, for the sake of memory."""
    pool, made = getattr(_LOCAL, "pool", None), getattr(_LOCAL, "made", 0)
    if pool is None:
        pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), end_with_parent)
    try:
        found = pool.submit(_measured, fit).result()
        _LOCAL.pool, _LOCAL.made = (pool, made + 1) if made + 1 < FITS_PER_PROCESS else (None, 0)
        return found
    except BaseException:
        _LOCAL.pool, _LOCAL.made = None, 0
        raise
    finally:
        if _LOCAL.pool is None:
            pool.shutdown(wait=False)


def _measured(fit: Fit) -> list[dict[str, Any]]:
    import figures  # loads JAX, which only the workers need

    return figures.measured(fit)


def end_with_parent() -> None:
    """Of a worker: do not outlive a parent that was killed."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def one_thread() -> None:
    """For the processes that are started from here."""
    os.environ.update(ONE_THREAD)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "psiphi-logs-alone-compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {XLA_ONE_THREAD}".strip()


def _named(fit: Fit, places: Sequence[Place]) -> str:
    return f"{fit.world}, {' and '.join(f'{place.sweep} ({place.condition})' for place in places)}, seed {fit.seed}"


def _said(fit: Fit, places: Sequence[Place], new: Sequence[Cell]) -> str:
    scores = [cell["scores"]["default"] for cell in new]
    mean = f"planner {np.mean(scores):.2f}, " if scores else ""
    return f"{_named(fit, places)}: {mean}{new[0]['seconds'] if new else 0:.0f} s"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


# --- Where cells come from -----------------------------------------------------------------------------------------------


def origin_of(arguments: Sequence[str]) -> dict[str, Any]:
    """The command, the commit ("-dirty" if the package or the benchmark was changed since) and the versions."""
    return {
        "command": shlex.join(["python", "benchmarks/logs_alone/run.py", *arguments]),
        "commit": _commit(),
        "versions": origins.versions() | _version("mo-gymnasium"),
    }


def _commit() -> str | None:
    commit = origins.commit()
    status = subprocess.run(["git", "-C", str(HERE), "status", "--porcelain", "--", "."], capture_output=True, text=True).stdout
    return f"{commit}-dirty" if commit and not commit.endswith("-dirty") and status.strip() else commit


def _version(package: str) -> dict[str, str]:
    try:
        return {package: metadata.version(package)}
    except metadata.PackageNotFoundError:
        return {}


# --- What it would cost --------------------------------------------------------------------------------------------------


def cost(fit: Fit, known: Sequence[Cell]) -> float:
    """Seconds that a fit and its figures take: as those of the same world with as many agents did, or a guess."""
    spent: dict[tuple[Fit, Place], list[tuple[float, float]]] = {}
    for cell in known:
        if (cell["world"], cell["setting"]["agents"]) == (fit.world, fit.setting.agents):
            place = store.fit_of(cell), Place(cell["sweep"], cell["condition"])
            spent.setdefault(place, []).append((cell["seconds"], cell["measuring_s"]))
    if spent:
        return float(np.median([agents[0][0] + sum(measuring for _, measuring in agents) for agents in spent.values()]))
    return GUESS_S + GUESS_PER_AGENT_S * len(sweeps.agents_of(fit))


def forecast(wanted: Plan, known: Sequence[Cell], jobs: int) -> str:
    """The cells of a plan, what of them is missing, and what that costs."""
    lacking = missing(wanted, known).fits
    there = {store.key_of(cell) for cell in known}
    table: dict[tuple[Place, str], list[float]] = {}
    for fit, places in wanted.items():
        agents = sweeps.agents_of(fit)
        for i, place in enumerate(places):
            row = table.setdefault((place, fit.world), [0, 0, 0.0])
            row[0] += len(agents)
            row[1] += sum(Key(*place, fit.world, fit.seed, agent) not in there for agent in agents)
            row[2] += cost(fit, known) if fit in lacking and i == 0 else 0.0
    names = sorted(table, key=lambda name: list(sweeps.SWEEPS).index(name[0].sweep))
    rows = [f"{' / '.join((*name[0], name[1])):<60} {table[name][0]:>6} {table[name][1]:>8} {_hours(table[name][2]):>8}" for name in names]
    total = sum(row[2] for row in table.values())
    hours = f"{_hours(total)} of one core, {_hours(total / jobs)} with {jobs} job{'s' if jobs > 1 else ''}"
    return "\n".join(
        [
            f"{'sweep / condition / world':<60} {'cells':>6} {'missing':>8} {'cost':>8}",
            *rows,
            f"{len(lacking):,} of {len(wanted):,} fits are missing: about {hours}.",
            "A fit that several sweeps ask for is made once and counted where it is first asked for.",
        ]
    )


# --- The command ---------------------------------------------------------------------------------------------------------


def seeds_of(text: str) -> list[int]:
    """0-2,5 as 0, 1, 2, 5."""
    seeds = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise argparse.ArgumentTypeError(f"the seeds are {text!r}, expected numbers and ranges such as 0-9 or 0,3,5-7")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def among(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A comma-separated choice of known names."""

    def chosen(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}, expected some of {', '.join(known)}")
        return names

    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=among(sweeps.EVERY), default=list(sweeps.EVERY), help=", ".join(sweeps.EVERY))
    parser.add_argument("--sweep", type=among(list(sweeps.SWEEPS)), default=list(sweeps.SWEEPS), help=", ".join(sweeps.SWEEPS))
    parser.add_argument("--seeds", type=seeds_of, default="0-9", help=f"0-9 unless told; {sweeps.TUNING} and up are for tuning")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--out", type=Path, default=Path("results/logs-alone"), help="directory of cells.jsonl and README.md")
    parser.add_argument("--dry-run", action="store_true", help="run nothing, only say what is missing and what it would cost")
    args = parser.parse_args()
    wanted = sweeps.plan(args.sweep, args.worlds, args.seeds)
    try:
        if args.dry_run:
            return print(forecast(wanted, store.read(args.out), args.jobs))
        one_thread()
        failed = complete(wanted, args.out, origin_of(sys.argv[1:]), args.jobs)
        print(f"Written: {report.render(args.out)}")
    except UserError as error:
        sys.exit(f"run.py: {error}")
    if failed:
        sys.exit(f"run.py: {len(failed)} fits failed; the same command tries them again.")


if __name__ == "__main__":
    main()
