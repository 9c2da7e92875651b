"""Rewarded steps of the user's own, from a file: what `psiphi adapt --from` infers a task from."""

import csv
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from psiphi import disk, limits
from psiphi.demos.columns import entry_names, listed
from psiphi.errors import UserError


class Transitions(NamedTuple):
    """Steps and what each was paid; `next_obs` and `terminated` are None where the file has none."""

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray


def read(
    path: Path, shape: tuple[int, ...], names: Sequence[str] = (), actions: Sequence[str] = ()
) -> Transitions | tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A file of steps: ``obs, action, reward`` and perhaps ``next_obs, terminated``; in tables, ``obs_0, obs_1, ... next_obs_0, ...``.

    Where the entries of an observation have `names`, columns are found by them, in any order; where `actions` have names, so are these.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist, expected a file of rewarded steps.")
    columns = _arrays(path) if path.suffix.lower() == ".npz" else _table(path, names or entry_names(shape))
    if actions and columns.get("action", np.zeros(0)).dtype.kind == "U":
        columns["action"] = _numbered(path, columns["action"], actions)
    missing = [name for name in ("obs", "action", "reward") if name not in columns]
    if missing:
        raise UserError(f"{path} has no {missing[0]}, expected obs (or obs_0, obs_1, ...), action and reward; it has {', '.join(columns)}.")
    for name in Transitions._fields:
        if name in columns and (not columns[name].ndim or columns[name].dtype.kind not in "biuf"):
            words = f"{name} of type {columns[name].dtype}" if columns[name].ndim != 1 else f"{_word(columns[name])} as {name}"
            raise UserError(f"{path} has {words}, expected numbers, one row of them for each step.")
    count = len(columns["action"])
    if not count:
        raise UserError(f"{path} has no step, expected at least one.")
    wrong = [name for name, column in columns.items() if name in Transitions._fields and len(column) != count]
    if wrong:
        raise UserError(f"{path} has {len(columns[wrong[0]])} rows of {wrong[0]}, expected {count}, as of action.")
    for name in ("obs", "next_obs"):
        if name in columns:
            columns[name] = _shaped(path, name, columns[name], shape)
    if "next_obs" not in columns:
        return columns["obs"], columns["action"], columns["reward"]
    terminated = columns.get("terminated", np.zeros(count, bool)).astype(bool)
    return Transitions(columns["obs"], columns["action"], columns["reward"], columns["next_obs"], terminated)


def _shaped(path: Path, name: str, column: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if column[0].size != int(np.prod(shape)):
        raise UserError(f"{path} has {name} of {column[0].size} numbers, but the model reads {shape}.")
    return column.reshape(len(column), *shape)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    limits.check_memory(path, 2 * disk.length(path))
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is not an .npz file of arrays of numbers.") from error


def _numbered(path: Path, done: np.ndarray, actions: Sequence[str]) -> np.ndarray:
    place = {name: number for number, name in enumerate(actions)}
    strange = [name for name in done.tolist() if name not in place]
    if strange:
        raise UserError(f"{path} has an action {strange[0]!r}, expected one of {listed(actions)}.")
    return np.array([place[name] for name in done.tolist()])


def _table(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    columns = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    for whole in ("obs", "next_obs"):
        if whole not in columns and (parts := _parts(path, whole, list(columns), names)):
            wrong = [name for name in parts if columns[name].dtype.kind not in "biuf"]
            if wrong:
                raise UserError(f"{path} has {_word(columns[wrong[0]])} in the column {wrong[0]!r}, expected numbers.")
            columns[whole] = np.stack([columns[name].astype(np.float32) for name in parts], axis=1)
    return columns


def _parts(path: Path, whole: str, present: list[str], names: Sequence[str]) -> list[str]:
    """The columns of an observation, in the model's order: by their names, or, where the model knows none, in the file's."""
    prefix = f"{whole}_"
    bare = (lambda name: name) if whole == "obs" else (lambda name: f"next_{name}")
    found = [next((one for one in (prefix + name, bare(name)) if one in present), None) for name in names]
    if None not in found:
        return [name for name in found if name is not None]
    parts = [name for name in present if name.startswith(prefix)]
    missing = names[found.index(None)]
    if (parts or whole == "obs") and not missing.replace("_", "").isdigit():
        raise UserError(f"{path} has no column {prefix + missing!r}, expected the model's, {listed(names)}; it has {listed(present)}.")
    numbers = {name: re.fullmatch(r"\d+(_\d+)*", name.removeprefix(prefix), re.ASCII) for name in parts}
    return parts if None in numbers.values() else sorted(parts, key=lambda name: [int(n) for n in name.removeprefix(prefix).split("_")])


def _word(column: np.ndarray) -> str:
    """The first entry that is no number."""
    for entry in column.tolist():
        try:
            float(entry)
        except (TypeError, ValueError):
            return repr(entry) if entry else "an empty field"
    return f"the type {column.dtype}"


def _parquet(path: Path) -> dict[str, np.ndarray]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise UserError("Parquet files need pyarrow: pip install psiphi[data]") from error
    try:
        table = parquet.read_table(path)
        columns = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
        return {name: column.astype(str) if _all_text(column) else column for name, column in columns.items()}
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read as a table: {str(error).splitlines()[0]}") from error


def _csv(path: Path) -> dict[str, np.ndarray]:
    lines = disk.read(path, limits.MOST_ROWS_BYTES).decode(errors="replace").splitlines()
    rows = list(csv.reader(lines))
    if len(rows) < 2 or len({len(row) for row in rows}) != 1:
        raise UserError(f"{path} is not a table: expected a line of names and as many fields in each of at least one line below.")
    return {name.strip(): _column([row[i] for row in rows[1:]]) for i, name in enumerate(rows[0])}


def _column(cells: list[str]) -> np.ndarray:
    """Numbers, or words where a cell is none."""
    try:
        return np.array([_parsed(cell) for cell in cells])
    except ValueError:
        return np.array([cell.strip() for cell in cells])


def _all_text(column: np.ndarray) -> bool:
    return column.dtype.kind == "O" and all(isinstance(entry, str) for entry in column)


def _parsed(text: str) -> float | int:
    if text.strip().lower() in ("true", "false"):
        return int(text.strip().lower() == "true")
    try:
        return int(text)
    except ValueError:
        return float(text)
