"""Rewarded steps of the user's own, from a file: what `psiphi adapt --from` infers a task from."""

import csv
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from psiphi import disk, limits
from psiphi.errors import UserError


class Transitions(NamedTuple):
    """Steps and what each was paid; `next_obs` and `terminated` are None where the file has none."""

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray


def read(path: Path, shape: tuple[int, ...]) -> Transitions | tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A file of steps: ``obs, action, reward`` and perhaps ``next_obs, terminated``; in tables, ``obs_0, obs_1, ... next_obs_0, ...``."""
    if not path.exists():
        raise UserError(f"{path} does not exist, expected a file of rewarded steps.")
    columns = _arrays(path) if path.suffix.lower() == ".npz" else _table(path)
    missing = [name for name in ("obs", "action", "reward") if name not in columns]
    if missing:
        raise UserError(f"{path} has no {missing[0]}, expected obs (or obs_0, obs_1, ...), action and reward; it has {', '.join(columns)}.")
    for name in Transitions._fields:
        if name in columns and (not columns[name].ndim or columns[name].dtype.kind not in "biuf"):
            raise UserError(f"{path} has {name} of type {columns[name].dtype}, expected numbers, one row of them for each step.")
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


def _table(path: Path) -> dict[str, np.ndarray]:
    columns = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    for whole in ("obs", "next_obs"):
        parts = sorted((name for name in columns if name.startswith(f"{whole}_")), key=_number)
        if parts and whole not in columns:
            columns[whole] = np.stack([columns[name].astype(np.float32) for name in parts], axis=1)
    return columns


def _parquet(path: Path) -> dict[str, np.ndarray]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise UserError("Parquet files need pyarrow: pip install psiphi[data]") from error
    try:
        table = parquet.read_table(path)
        return {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read as a table: {str(error).splitlines()[0]}") from error


def _csv(path: Path) -> dict[str, np.ndarray]:
    lines = disk.read(path, limits.MOST_ROWS_BYTES).decode(errors="replace").splitlines()
    rows = list(csv.reader(lines))
    if len(rows) < 2 or len({len(row) for row in rows}) != 1:
        raise UserError(f"{path} is not a table: expected a line of names and as many fields in each of at least one line below.")
    try:
        return {name: np.array([_parsed(row[i]) for row in rows[1:]]) for i, name in enumerate(rows[0])}
    except ValueError as error:
        raise UserError(f"{path} has something else than numbers in it: {error}.") from error


def _parsed(text: str) -> float | int:
    if text.strip().lower() in ("true", "false"):
        return int(text.strip().lower() == "true")
    try:
        return int(text)
    except ValueError:
        return float(text)


def _number(name: str) -> tuple[int, str]:
    tail = name.rpartition("_")[2]
    return (int(tail), "") if tail.isdigit() else (0, name)
