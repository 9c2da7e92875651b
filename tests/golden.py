"""What published experiments yield with next to no effort, pinned to the bit in golden.json.

    python tests/golden.py [--only NAME ...]            run again what is pinned, and say what differs
    python tests/golden.py [--only NAME ...] --write    pin what is not pinned yet; what is, is kept
    python tests/golden.py [--only NAME ...] --skip WHY say why what is not pinned is not

A name is an experiment's, or a longer beginning of ``experiment/variant/method``. One such unit is one training, as in
`psiphi.experiments.reproduce`, and yields many cells. To pin one anew, delete it in golden.json first. What is skipped there is pinned when
its name is given.

The same bits need the same program, the same versions, the same kind of processor and one thread: units are run in a process of their own
with the settings of `reproduce`'s workers. Cells are rounded when they are made; here nothing is.
"""

import argparse
import builtins
import contextlib
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import psiphi
from psiphi.experiments import paper, reproduce
from psiphi.experiments.reproduce import Effort

FILE = Path(__file__).with_name("golden.json")
SEED = 7
ABOUT = (
    "Tiny runs of published experiments, pinned to the bit: see golden.py. Experiments were rebuilt once, and the units that were pinned "
    'before show that they are still the same. Those under "since the rebuild" were pinned later: they guard what comes, and say nothing '
    "about the rebuild."
)
SINCE = "Pinned after the rebuild."

Pinned = dict[str, Any]
"""What golden.json says of a unit: the `effort`, the `env_steps` that it took, and its `cells`, without what all of them share."""


# --- How little is enough ------------------------------------------------------------------------------------------------


def effort_of(what: Any, unit: Any) -> Effort:
    """Little of everything, but so much that each learner makes some updates after its random steps and methods can be told apart."""
    return Effort(updates=_updates(unit), episodes=_episodes(unit), repetitions=2, steps=_steps(unit))


def _updates(unit: Any) -> int:
    return {"imitate": 40, "predict": 12}.get(unit.method.how, 8)


def _episodes(unit: Any) -> int:
    return 4 if unit.method.how == "predict" or unit.variant.name.startswith("roundabout") else 16


def _steps(unit: Any) -> int | None:
    """On top of the random steps that there are at the start, which no effort makes fewer."""
    match unit.method.how, unit.variant.name:
        case "curve", name:
            return 1_160 if name.startswith(("highway", "roundabout")) else 1_024
        case "imitate", "roundabout":
            return 4_160 if unit.method.algorithm == "sqil" else 320
        case "imitate" | "adapt", _:
            return 1_280
    return None


# --- Units ---------------------------------------------------------------------------------------------------------------


def every() -> dict[str, tuple[Any, Any]]:
    """All units by name, with the experiments that they are of."""
    return {
        f"{what.name}/{unit.variant.name}/{unit.method.name}": (what, unit)
        for what in map(reproduce.find, paper.EXPERIMENTS)
        for unit in reproduce.units(what, [SEED])
    }


def chosen(names: Iterable[str], only: Sequence[str]) -> list[str]:
    """Those of the names that one of `only` is a beginning of, up to a slash; all if there are none."""
    return [name for name in names if not only or any(f"{name}/".startswith(f"{one.rstrip('/')}/") for one in only)]


def references(what: Any, unit: Any) -> dict[str, dict[str, float]]:
    """Returns to divide by, made up: those of a training this short may be 0."""
    who = what.goals or unit.variant.demonstrators or what.demonstrators
    ends = paper.ends_of(unit.variant)
    return {f"{unit.variant.name} {unit.seed}": {name + end: 1.5 + i for end in ends for i, name in enumerate(who)}}


def run(name: str, effort: Effort) -> Pinned:
    """A unit in this process."""
    what, unit = every()[name]
    origin = {"commit": None, "versions": {}, "command": ""}
    with not_rounded():
        found = reproduce.run_unit(what, unit, effort, origin, references(what, unit))
    cells = [{key: cell[key] for key in ("method", "metric", "task", "shots", "value", "extra") if key in cell} for cell in found]
    (env_steps,) = {cell["env_steps"] for cell in found}
    given = {key: value for key, value in asdict(effort).items() if value is not None}
    return {"effort": given, "env_steps": env_steps, "cells": json.loads(json.dumps(cells))}


@contextlib.contextmanager
def not_rounded() -> Iterator[None]:
    """Experiments that round to digits get what they gave, to the last bit; who rounds to an integer computes with it, and gets that."""
    rounded = builtins.round

    def kept(number: Any, digits: int | None = None) -> Any:
        ours = digits is not None and sys._getframe(1).f_globals.get("__name__", "").startswith("psiphi.experiments")
        return float(number) if ours else rounded(number, digits)

    builtins.round = kept
    try:
        yield
    finally:
        builtins.round = rounded


# --- In a process with one thread ----------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """One thread, and compiled programs are kept between runs, apart from those of other machines."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = {
        "JAX_COMPILATION_CACHE_DIR": str(caches / "psiphi" / "jax-golden" / (platform.node() or "here")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }
    fixed = {
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "0",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
        "NPROC": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(psiphi.__file__).parents[1]),  # the same psiphi as here
    }
    return {**kept, **os.environ, **fixed}


def run_all(efforts: Mapping[str, Effort]) -> Iterator[tuple[str, Pinned | str]]:
    """Units one after the other in a process of their own, each handed over when it is done; of one that fails, what it said."""
    todo = {name: asdict(effort) for name, effort in efforts.items()}
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", json.dumps(todo)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                name, found = json.loads(line)
                yield name, found
        except BaseException:  # nobody waits for the rest
            process.terminate()
            raise
    if process.returncode:
        raise RuntimeError(f"The process that ran the units ended with code {process.returncode}.")


def worker(todo: Mapping[str, dict[str, Any]]) -> None:
    """What that process does: a line of standard output for each unit."""
    for name, effort in todo.items():
        with contextlib.redirect_stdout(sys.stderr):
            try:
                found = run(name, Effort(**effort))
            except Exception as error:
                traceback.print_exc()
                found = f"{type(error).__name__}: {error}"
        print(json.dumps([name, found]), flush=True)


# --- What is pinned ------------------------------------------------------------------------------------------------------


def here() -> dict[str, str]:
    """What the bits depend on besides the program."""
    versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy", "equinox", "optax", "flashbax")}
    return {**versions, "machine": f"{platform.system()} {platform.machine()}", "processor": processor()}


def processor() -> str:
    """Its kind, and what it can do with many numbers at once: so many are then summed side by side."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    wide = sorted(flag for flag in facts.get("flags", "").split() if flag.startswith(("avx", "fma", "amx")))
    return " ".join([facts.get("vendor_id", "?"), facts.get("cpu family", "?"), facts.get("model", "?"), *wide])


def elsewhere(pinned: Mapping[str, Any]) -> str:
    """In what this place differs from where golden.json was written; nothing: the bits must be the same."""
    now = here()
    return "; ".join(f"{key} is {now.get(key)}, was {value}" for key, value in pinned["made with"].items() if now.get(key) != value)


def read() -> dict[str, Any]:
    if not FILE.exists():
        return {"about": ABOUT, "seed": SEED, "made with": here(), "since the rebuild": {}, "skipped": {}, "units": {}}
    return json.loads(FILE.read_text())


def write(pinned: Mapping[str, Any]) -> None:
    """A line for each cell, units in the experiments' order; the file is whole at any moment."""
    units = {name: pinned["units"][name] for name in every() if name in pinned["units"]}
    texts = []
    for name, unit in units.items():
        cells = ",\n".join(f"    {json.dumps(cell, ensure_ascii=False)}" for cell in unit["cells"])
        head = f'"effort": {json.dumps(unit["effort"])}, "env_steps": {unit["env_steps"]}, "cells": ['
        texts.append(f"  {json.dumps(name)}: {{{head}\n{cells}\n  ]}}")
    reasons = {name: pinned["skipped"][name] for name in every() if name in pinned["skipped"] and name not in units}
    since = {name: pinned["since the rebuild"][name] for name in units if name in pinned["since the rebuild"]}
    rest = {key: value for key, value in pinned.items() if key not in ("since the rebuild", "skipped", "units")} | {"about": ABOUT}
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in rest.items()]
    lines += [f'"since the rebuild": {_by_line(since)}', f'"skipped": {_by_line(reasons)}', '"units": {\n' + ",\n".join(texts) + "\n}"]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    json.loads(text)
    temporary = FILE.with_suffix(".json.part")
    temporary.write_text(text)
    temporary.replace(FILE)


def _by_line(reasons: Mapping[str, str]) -> str:
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(why, ensure_ascii=False)}" for name, why in reasons.items()) + "\n}"


# --- Comparing -----------------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """A number, or anything else, that is not what it was."""

    where: str
    was: Any
    now: Any

    def __str__(self) -> str:
        by = f", by {abs(self.was - self.now):.3g}" if _number(self.was) and _number(self.now) else ""
        return f"{self.where}: was {json.dumps(self.was)[:80]}, is {json.dumps(self.now)[:80]}{by}"


def differences(was: Pinned, now: Pinned | str) -> list[Difference]:
    """All of them, down to single numbers; cells are matched by what they are of, not by their order."""
    if isinstance(now, str):
        return [Difference("run", "done", now)]
    return list(_differences("", _by_key(was), _by_key(now)))


def _by_key(unit: Pinned) -> dict[str, Any]:
    keyed = {" ".join(str(cell[key]) for key in ("method", "metric", "task", "shots") if key in cell): cell for cell in unit["cells"]}
    return {"env_steps": unit["env_steps"], **{key: {k: cell[k] for k in ("value", "extra") if k in cell} for key, cell in keyed.items()}}


def _differences(where: str, was: Any, now: Any) -> Iterator[Difference]:
    if isinstance(was, dict) and isinstance(now, dict):
        for key in {**was, **now}:
            yield from _differences(f"{where}.{key}".lstrip("."), was.get(key, "nothing"), now.get(key, "nothing"))
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for i, (old, new) in enumerate(zip(was, now, strict=True)):
            yield from _differences(f"{where}[{i}]", old, new)
    elif was != now:
        yield Difference(where, was, now)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def again(pinned: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, list[Difference]]]:
    """Run units with the effort that they were pinned with; what differs in each."""
    efforts = {name: Effort(**pinned["units"][name]["effort"]) for name in names}
    for name, found in run_all(efforts):
        yield name, differences(pinned["units"][name], found)


# --- The command ---------------------------------------------------------------------------------------------------------


def pin(only: Sequence[str], say: Callable[[str], None]) -> None:
    """Pin what is not pinned yet, unit by unit."""
    pinned = read()
    if other := elsewhere(pinned):
        raise SystemExit(f"golden.json was written elsewhere ({other}): delete it to pin everything anew.")
    known = every()
    missing = [name for name in chosen(known, only) if name not in pinned["units"] and (only or name not in pinned["skipped"])]
    started = time.monotonic()
    for name, found in run_all({name: effort_of(*known[name]) for name in missing}):
        if isinstance(found, str):
            say(f"{name:45} failed: {found}")
            continue
        pinned["units"][name] = found
        pinned["since the rebuild"].setdefault(name, SINCE)
        write(pinned)
        say(f"{name:45} {len(found['cells']):3} cells, {time.monotonic() - started:.1f} s")
        started = time.monotonic()
    write(pinned)


def skip(only: Sequence[str], why: str) -> None:
    """Give what is not pinned a reason not to be."""
    pinned = read()
    pinned["skipped"] |= {name: why for name in chosen(every(), only) if name not in pinned["units"]}
    write(pinned)


def compare(only: Sequence[str], say: Callable[[str], None]) -> int:
    """Run what is pinned again; how many units differ, or are not there."""
    pinned = read()
    if other := elsewhere(pinned):
        say(f"golden.json was written elsewhere ({other}): the bits may differ for that reason alone.")
    known, wrong, cells = every(), 0, 0
    names = chosen(pinned["units"], only)
    for name in [name for name in names if name not in known]:
        say(f"{name:45} is gone")
        wrong += 1
    for name in [name for name in chosen(known, only) if name not in pinned["units"] and name not in pinned["skipped"]]:
        say(f"{name:45} is not pinned")
        wrong += 1
    for name, found in again(pinned, [name for name in names if name in known]):
        cells += len(pinned["units"][name]["cells"])
        say(f"{name:45} {'differs' if found else 'equal':8} {len(pinned['units'][name]['cells']):3} cells")
        for difference in found:
            say(f"    {difference}")
        wrong += bool(found)
    say(f"{len(names)} units, {cells} cells run again; {wrong or 'no'} units differ.")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="an experiment, experiment/variant, or .../method")
    parser.add_argument("--write", action="store_true", help="pin what is not pinned yet")
    parser.add_argument("--skip", metavar="WHY", help="say why what is not pinned is not")
    parser.add_argument("--worker", metavar="UNITS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(json.loads(given.worker))
        return
    if not chosen(every(), given.only):
        raise SystemExit(f"No unit is called {' or '.join(given.only)}.")

    def say(line: str) -> None:
        print(line, flush=True)

    if given.write:
        pin(given.only, say)
    elif given.skip:
        skip(given.only, given.skip)
    elif compare(given.only, say):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
