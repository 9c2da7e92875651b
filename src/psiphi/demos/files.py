"""Which format a file has, and what all formats share: whole files or none, no surprise in size, and one sentence for what is missing."""

import importlib
import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from psiphi import disk
from psiphi.demos.columns import Columns
from psiphi.demos.demonstrations import Demonstrations, unnamed_actions
from psiphi.demos.discretiser import Discretiser
from psiphi.demos.rows import CHUNK, Ids, Rows, by_name
from psiphi.errors import UserError

DAMAGE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError, EOFError, struct.error, zlib.error)

FORMATS = {".parquet": "parquet_file", ".pq": "parquet_file", ".csv": "csv_file", ".tsv": "csv_file", ".npz": "npz_file"}
"""The module for each ending; each has `read(path, columns, progress) -> Rows` and `write(demos, path, progress)`."""


def read(path: Path, columns: Columns, *, progress: bool = False) -> Demonstrations:
    """Demonstrations from a file, or all that is wrong with it."""
    from psiphi.demos import validate

    return validate.checked(read_rows(path, columns, progress=progress))


def read_rows(path: Path, columns: Columns, *, progress: bool = False) -> Rows:
    """What is in a file, nothing believed yet."""
    if not os.path.lexists(path):
        raise UserError(f"{path} does not exist; expected a .parquet, .csv or .npz file or the directory of a Minari dataset.")
    if not path.is_file() and not path.is_dir():
        raise UserError(f"{path} is neither a regular file nor a directory, expected one of them.")
    try:
        return _format(path).read(path, columns, progress)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or next(iter(str(error).splitlines()), 'unknown reason')}.") from error
    except MemoryError as error:
        raise UserError(f"{path} does not fit into memory.") from error
    except DAMAGE as error:  # what libraries make of bytes that are not theirs
        why = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
        raise UserError(f"{path} is damaged or of no kind that psiphi reads: {why}.") from error


def write(demos: Demonstrations, path: Path, *, progress: bool = False) -> None:
    """Write demonstrations in the format that the name says; a file that was there stays whole until the new one is."""
    with disk.sentences(path, "written"):
        _format(path).write(demos, path, progress)


def check_name(path: Path) -> None:
    """Whether something can be written there: asked before work is done that would be lost."""
    if _format(path).__name__.endswith("minari_dataset"):
        disk.check_directory(path.parent)
    else:
        disk.check_file(path)


def _format(path: Path) -> Any:
    """The module for a path: by its ending, or Minari's for a directory, an HDF5 file or a name such as drivers-v0."""
    name = FORMATS.get(path.suffix.lower())
    if name is None and (path.is_dir() or path.suffix in (".hdf5", ".h5") or re.search(r"-v\d+$", path.name)):
        name = "minari_dataset"
    if name is None:
        raise UserError(f"{path.name!r} says no format; expected .parquet, .csv, .npz, or a Minari dataset such as drivers-v0.")
    return importlib.import_module(f"psiphi.demos.{name}")


def extra(module: str, name: str, purpose: str) -> Any:
    """An optional dependency, or one sentence that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise UserError(f"{purpose} needs {package}, which is not installed; pip install 'psiphi[{name}]' brings it.") from error


def meaning(demos: Demonstrations) -> dict[str, Any]:
    """What the actions mean, for JSON: their names and what they stand for, as far as that was said."""
    named = demos.action_names != unnamed_actions(demos.num_actions)
    names: dict[str, Any] = {"action_names": list(demos.action_names)} if named else {}
    names |= {} if demos.numbered else {"numbered": False}
    return names | ({} if demos.discretiser is None else {"discretiser": demos.discretiser.to_dict()})


def meant(file: str, said: dict[str, Any], columns: Columns) -> dict[str, Any]:
    """The inverse of `meaning`, as fields of `Rows`; of a file whose actions are in another column than psiphi's, nothing is believed."""
    if columns.action != Columns.action or not said:
        return {}
    names, given = said.get("action_names", []), said.get("discretiser")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{file} is damaged: the names of its actions are not a list of strings.")
    discretiser = None if given is None else Discretiser.from_dict(given, f"{file}: the discretiser")
    return {"action_names": tuple(names), "discretiser": discretiser, "numbered": said.get("numbered") is not False}


def how_many(columns: Columns, told: int | None, meant: dict[str, Any]) -> int | None:
    """How many actions there are, by whoever says so."""
    known = meant.get("discretiser")
    return columns.num_actions or told or (len(meant.get("action_names", ())) or None if known is None else known.num_actions)


def acted(file: str, columns: Columns, told: int | None, meant: dict[str, Any], action: np.ndarray | Ids) -> dict[str, Any]:
    """The actions and what is known of them, as fields of `Rows`: numbers, or names."""
    if isinstance(action, Ids):
        return by_name(file, action, columns.num_actions)
    return {"action": action, "num_actions": how_many(columns, told, meant), **meant}


replacing = disk.drafted
"""A draft to write that takes the place of a file or directory when all of it is there."""


class Block(NamedTuple):
    """Some whole episodes as rows of a table, a last observation being a row without an action."""

    agent: np.ndarray
    """int32[n]: index into `Demonstrations.agents`."""
    episode: np.ndarray
    """[n]: names."""
    t: np.ndarray
    obs: np.ndarray
    action: np.ndarray
    has_action: np.ndarray
    """bool[n]: false where `action` means nothing."""
    terminated: np.ndarray
    truncated: np.ndarray
    group: np.ndarray
    """int32[n]: index into `Demonstrations.groups`, -1 for none."""


def blocks(demos: Demonstrations) -> Iterator[Block]:
    """All episodes, about `CHUNK` rows at a time."""
    e = demos.episodes
    room = np.cumsum(demos.lengths + e.has_final) // CHUNK
    for group in np.split(np.arange(demos.num_episodes), np.flatnonzero(np.diff(room)) + 1):
        if len(group):
            yield _block(demos, group)


def _block(demos: Demonstrations, group: np.ndarray) -> Block:
    e = demos.episodes
    steps = slice(e.start[group[0]], e.start[group[-1] + 1])
    length = demos.lengths[group] + e.has_final[group]
    end = np.cumsum(length)
    has_action = np.ones(end[-1], bool)
    has_action[end[e.has_final[group]] - 1] = False
    last = end - 1 - e.has_final[group]
    obs = np.empty((end[-1], *demos.obs.shape[1:]), demos.obs.dtype)
    obs[has_action], obs[~has_action] = demos.obs[steps], e.final_obs[group][e.has_final[group]]
    action = np.zeros(end[-1], np.int32)
    action[has_action] = demos.action[steps]
    flags = [np.zeros(end[-1], bool), np.zeros(end[-1], bool)]
    flags[0][last], flags[1][last] = e.terminated[group], e.truncated[group]
    t = np.arange(end[-1]) - np.repeat(end - length, length)
    kept = np.full(len(group), -1, np.int32) if demos.group is None else demos.group[group]
    agent, episode, keeps = (np.repeat(column, length) for column in (e.agent[group], e.id[group], kept))
    return Block(agent, episode, t, obs, action, has_action, flags[0], flags[1], keeps)
