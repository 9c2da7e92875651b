"""Finished measurements on disk: `cells.jsonl`, one JSON object per training, only ever added to.

A training says who was measured in what, all that is needed to get it again, and its figures. In memory every figure is a *cell*, which
says all of that by itself; files with a line per cell, as before 0.2, are read, too. Whatever moment a process dies at, the file can be
continued: trainings are added in one write, and a line that was left unfinished is cut off before the next.
"""

import contextlib
import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import psiphi
from psiphi import disk, limits
from psiphi.errors import UserError

FILE = "cells.jsonl"

FIELDS = "experiment env task method seed metric value env_steps wall_s config commit versions command".split()
"""What every cell has; `shots` where something is adapted to, `train_s` where something is trained, `extra` where there is more to say."""

FIGURE = ("metric", "task", "shots", "value", "extra")
"""Of a cell, what differs between the figures of one training."""

Cell = dict[str, Any]


class Key(NamedTuple):
    """What makes a cell this cell and no other."""

    env: str
    method: str
    seed: int
    metric: str
    task: str
    shots: int | None


def key_of(cell: Cell) -> Key:
    return Key(cell["env"], cell["method"], cell["seed"], cell["metric"], cell["task"], cell.get("shots"))


def read(directory: Path) -> list[Cell]:
    """The cells in a directory, none if it has none yet; the line that a dying process left unfinished is not a cell."""
    path = directory / FILE
    try:
        data = disk.read(path, limits.MOST_ROWS_BYTES)
    except FileNotFoundError:
        return []
    lines = enumerate(data[: _whole(data)].splitlines(), start=1)
    return [cell for number, line in lines for cell in _parsed(path, number, line)]


def append(directory: Path, cells: Iterable[Cell]) -> int:
    """Add those of the cells that are not there yet, down to the disk, and say how many they were."""
    disk.make_directory(directory)
    path = directory / FILE
    with disk.lock_file(path) as file, _locked(file):
        data = disk.read(path, limits.MOST_ROWS_BYTES)
        whole = _whole(data)
        if whole < len(data):
            disk.cut(path, whole)
        known = {key_of(cell) for cell in read(directory)}
        new = [cell for cell in cells if key_of(cell) not in known]
        separator = b"\n" if data[:whole] and not data[:whole].endswith(b"\n") else b""
        lines = [json.dumps(training, allow_nan=False, ensure_ascii=False).encode() + b"\n" for training in trainings(new)]
        disk.append(path, separator + b"".join(lines))
    return len(new)


def trainings(cells: Iterable[Cell], figures: Collection[str] = FIGURE) -> list[dict[str, Any]]:
    """Cells as the lines of a file: those that differ only in their figures are one training."""
    result: list[dict[str, Any]] = []
    for cell in cells:
        common = {name: value for name, value in cell.items() if name not in figures}
        figure = {name: cell[name] for name in figures if name in cell}
        if result and {name: value for name, value in result[-1].items() if name != "figures"} == common:
            result[-1]["figures"].append(figure)
        else:
            result.append({**common, "figures": [figure]})
    return result


def check_config(directory: Path, cells: Iterable[Cell], env: str, method: str, config: dict[str, Any]) -> None:
    """Refuse to mix: what a method's cells in a directory were made with must be what is asked for now."""
    asked = json.loads(json.dumps(config))
    for cell in cells:
        if (cell["env"], cell["method"]) == (env, method) and not same(cell["config"], asked):
            name, found, wanted = difference(cell["config"], asked)
            raise UserError(
                f"{directory} holds cells of {method} on {env} made with {name} = {found}, but {wanted} is asked for now; "
                "choose another directory or the same settings."
            )


BELONGS_TO = {"agents_per_update": "code"}
"""Settings that say nothing where another one is off."""


def same(old: Any, new: Any) -> bool:
    """Whether two configs ask for the same. What the old one does not name did not exist when it was written, so it must be off now."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return old == new
    off = lambda key: not new[key] or (key in BELONGS_TO and not new.get(BELONGS_TO[key]))  # noqa: E731
    return old.keys() <= new.keys() and all(same(old[key], new[key]) if key in old else off(key) for key in new)


def difference(old: Any, new: Any, name: str = "") -> tuple[str, str, str]:
    """Where two JSON values that are not the `same` differ first: the dotted name, and what each has there."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            if not same(*({key: config[key]} if key in config else {} for config in (old, new))):
                return difference(old.get(key, "nothing"), new.get(key, "nothing"), f"{name}.{key}" if name else key)
    return name, json.dumps(old), json.dumps(new)


# --- Where a cell comes from ---------------------------------------------------------------------------------------------


def commit() -> str | None:
    """The commit of the checkout that psiphi runs from, "-dirty" if its source was changed since; None outside of a checkout."""
    package = Path(psiphi.__file__).parent
    head = _git(package, "rev-parse", "HEAD")
    # An environment inside some other repository is not a checkout of psiphi.
    if head is None or _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return f"{head}-dirty" if _git(package, "status", "--porcelain", "--", ".") else head


def _git(where: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(where), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def versions() -> dict[str, str]:
    """What the numbers may depend on besides the program and its seed."""
    return {
        "psiphi": psiphi.__version__,
        "jax": metadata.version("jax"),
        "numpy": metadata.version("numpy"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "threads": _threads(),
    }


def _threads() -> str:
    """How many JAX computes with, as far as the environment tells; more than one may sum in another order."""
    one = "intra_op_parallelism_threads=1" in os.environ.get("XLA_FLAGS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()  # a process may be held to some cores
    return "1" if one else os.environ.get("NPROC", str(cores))


def command() -> str:
    """The command line as it was typed, without the place where psiphi is installed."""
    name = Path(sys.argv[0]).name
    return shlex.join(["psiphi" if name == "__main__.py" else name, *sys.argv[1:]])


# --- The file ------------------------------------------------------------------------------------------------------------


def _whole(data: bytes) -> int:
    """How many bytes are whole lines. A last line without an end is one too if it is complete JSON: an editor may have dropped the end."""
    end = data.rfind(b"\n") + 1
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(json.loads(data[end:]), dict):
            return len(data)
    return end


def _parsed(path: Path, number: int, line: bytes) -> list[Cell]:
    """The cells of a line: of a training, or a single one."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"Line {number} of {path} is not JSON.") from error
    figures = found.get("figures", [{}]) if isinstance(found, dict) else [{}]
    if not isinstance(figures, list) or not all(isinstance(figure, dict) for figure in figures):
        raise UserError(f"Line {number} of {path} is not a training: its figures are not a list of figures.")
    common = {name: value for name, value in found.items() if name != "figures"} if isinstance(found, dict) else found
    return [_checked(path, number, {**common, **figure} if isinstance(common, dict) else common) for figure in figures]


def _checked(path: Path, number: int, cell: Any) -> Cell:
    missing = [name for name in FIELDS if not isinstance(cell, dict) or name not in cell]
    if missing:
        raise UserError(f"Line {number} of {path} is not a cell: it lacks {', '.join(missing)}.")
    wrong = [name for name, fits in KINDS.items() if name in cell and not fits(cell[name])]
    if wrong:
        found = json.dumps(cell[wrong[0]])[:200]
        raise UserError(f"Line {number} of {path} is not a cell: its {wrong[0]} is {found}, expected what psiphi writes there.")
    return cell


def _is_name(value: Any) -> bool:
    """Names are printed in pages and pictures: no mark-up, nothing that is not seen."""
    return isinstance(value, str) and len(value) <= 100 and value.isprintable() and not re.search(r"[<>`|$\\\[\]{}!]", value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


KINDS: dict[str, Callable[[Any], bool]] = {
    **{name: _is_name for name in ("experiment", "env", "task", "method", "metric")},
    **{name: _is_number for name in ("env_steps", "wall_s", "train_s")},
    "seed": lambda value: type(value) is int,
    "shots": lambda value: value is None or type(value) is int,
    "value": lambda value: value is None or _is_number(value),
    "config": lambda value: isinstance(value, dict),
    "extra": lambda value: isinstance(value, dict),
    "versions": lambda value: isinstance(value, dict) and all(isinstance(version, str) for version in value.values()),
    "command": lambda value: isinstance(value, str),
    "commit": lambda value: isinstance(value, str | None),
}
"""What the fields of a cell must be."""


@contextlib.contextmanager
def _locked(file: BinaryIO) -> Iterator[None]:
    """Alone with the file. The system frees the lock when the process ends, however it ends; where there is no flock, it is not checked."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
