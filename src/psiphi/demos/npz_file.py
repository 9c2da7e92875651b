"""The arrays of a long table in NumPy's npz: ``obs[N, ...]``, ``action[N]``, ``agent[N]``, ``episode[N]`` and what else there is.

Names may be stored once: where there is ``agent_names`` (a JSON list), ``agent`` are places in it, and so with ``episode_names``.
``meaning`` says, in JSON, what the actions are called and stand for.
``final_obs[F, ...]`` are the observations after the rows ``final_row[F]``. Nothing in such a file is ever executed.
"""

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from psiphi import disk, limits
from psiphi import progress as display
from psiphi.demos import files
from psiphi.demos.columns import Columns, entry_names, kept_dtype, keys, left_out, listed, matching, misfits
from psiphi.demos.demonstrations import Demonstrations
from psiphi.demos.rows import Ids, Rows, coded, combined, whole_numbers
from psiphi.errors import UserError

OWN = ("agent_names", "episode_names", "final_obs", "final_row", "num_actions", "obs_names", "group_names", "meaning")


class Places(NamedTuple):
    """Which arrays are what."""

    agent: tuple[str, ...]
    episode: tuple[str, ...]
    action: tuple[str, ...]
    group: tuple[str, ...]
    obs: tuple[str, ...]
    """One array with the axes [row, ...], or several that are columns."""
    notes: tuple[str, ...]


def read(path: Path, columns: Columns, progress: bool) -> Rows:
    """Arrays under the names that `columns` says; observations are one array, or several that are columns."""
    optional = (columns.t, columns.terminated, columns.truncated)
    try:
        with zipfile.ZipFile(path) as archive:
            present = [name.removesuffix(".npy") for name in archive.namelist()]
            limits.check_most(f"{path} has too many arrays", len(present), limits.MOST_COLUMNS)
            places = _places_of(path, archive, present, columns)
            needed = [*places.agent, *places.episode, *places.action, *places.group, *places.obs]
            own = [name for name in OWN if name not in needed]
            wanted = [name for name in dict.fromkeys((*needed, *optional, *own)) if name in present]
            arrays = _arrays(path, archive, wanted, progress)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:  # damaged; compressed or locked in a strange way
        raise UserError(f"{path} is not an npz file that can be read: {error}.") from error
    notes = left_out(str(path), [name for name in present if name not in wanted])
    return _rows(path, arrays, columns, places._replace(notes=(*places.notes, *notes)))


def _places_of(path: Path, archive: zipfile.ZipFile, present: list[str], columns: Columns) -> Places:
    file = str(path)
    try:
        agent, episode, action, group = (keys(file, present, columns, role) for role in ("agent", "episode", "action", "group"))
    except UserError as error:
        raise UserError(str(error).replace("has no column", "has no array").replace("its columns are", "its arrays are")) from None
    usual = "obs" if columns.obs == Columns.obs else columns.obs
    if usual in present:
        return Places(agent, episode, action, group, (usual,), ())
    used = {*agent, *episode, *action, *group, columns.t, columns.terminated, columns.truncated, *OWN}
    free = [name for name in present if name not in used]

    def numeric(names: Sequence[str]) -> list[str]:
        """Arrays of numbers, one for each row, by what their headers say."""
        headers = {name: _header(path, archive, name, archive.getinfo(f"{name}.npy"))[:2] for name in (*episode, *agent, *action, *names)}
        rows = next((shape for name, (shape, _) in headers.items() if name not in names), None)
        return [
            name
            for name in names
            if len(headers[name][0]) == 1 and headers[name][0] == (rows or headers[name][0]) and headers[name][1].kind in "biuf"
        ]

    try:
        obs, notes = matching(file, free, columns.obs, numeric)
    except UserError as error:
        if columns.obs == Columns.obs:
            raise UserError(f"{path} has no array 'obs' for the observation; its arrays are {listed(present)}.") from None
        raise UserError(str(error).replace("column", "array")) from None
    return Places(agent, episode, action, group, tuple(obs), tuple(note.replace("columns", "arrays") for note in notes))


def _arrays(path: Path, archive: zipfile.ZipFile, names: list[str], progress: bool) -> dict[str, np.ndarray]:
    members = {name: archive.getinfo(f"{name}.npy") for name in names}
    limits.check_growth(path, sum(member.file_size for member in members.values()))
    arrays = {}
    with display.shown(f"reading {path.name}", done=0, total=len(names), enabled=progress) as bar:
        for name, member in members.items():
            arrays[name] = _array(path, archive, name, member)
            bar.advance(len(arrays), {})
    return arrays


def _array(path: Path, archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> np.ndarray:
    """One array. What it claims to be must fit what is there before memory is asked for; Python objects are refused."""
    shape, dtype, begins = _header(path, archive, name, member)
    if int(np.prod(shape, dtype=object)) * dtype.itemsize + begins != member.file_size:
        raise UserError(f"{path} is damaged: {name!r} does not hold as many numbers as it says.")
    with archive.open(member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _header(path: Path, archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype, int]:
    """Shape, type and the place where the numbers begin; Python objects are refused."""
    with archive.open(member) as stream:
        try:
            version = np.lib.format.read_magic(stream)
            if version not in ((1, 0), (2, 0), (3, 0)):
                raise UserError(f"{path}: {name!r} has a header of version {version}, expected (1, 0) to (3, 0).")
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = header(stream)
        except ValueError as error:
            raise UserError(f"{path}: {name!r} is not an array of NumPy's.") from error
        if min(shape, default=0) < 0 or len(shape) > limits.MOST_AXES:
            raise UserError(f"{path}: {name!r} has the shape {shape}, expected up to {limits.MOST_AXES} axes, none of negative length.")
        if dtype.hasobject:
            raise UserError(f"{path}: {name!r} holds pickled Python objects, which could run anything and are never loaded.")
        return shape, dtype, stream.tell()


def _rows(path: Path, arrays: dict[str, np.ndarray], columns: Columns, places: Places) -> Rows:
    file = str(path)
    obs, names = _observations(file, arrays, places.obs)
    wide = columns.dtype is None and len(places.obs) == 1 and obs.dtype.name in ("float64", "int32")
    dtype = obs.dtype if wide else kept_dtype(obs.dtype, columns.dtype)
    lengths = {name: arrays[name].shape for name in arrays if name not in (*places.obs, *places.action, *OWN)}
    lengths |= {name: arrays[name].shape[: 1 if len(places.action) == 1 else 2] for name in places.action}
    wrong = [name for name, shape in lengths.items() if shape != (len(obs),)]
    if wrong:
        raise UserError(f"{file}: {wrong[0]!r} has shape {lengths[wrong[0]]}, expected ({len(obs)},) as there are so many rows.")
    meant = files.meant(file, _meaning(file, arrays), columns)
    action, action_columns = _actions(file, arrays, columns, places.action, len(obs))
    return Rows(
        file=file,
        obs=_cast(file, places.obs[0], obs, dtype),
        names=names,
        agent=_key(file, "agent", arrays, places.agent, len(obs), "all"),
        episode=_key(file, "episode", arrays, places.episode, len(obs), 0),
        group=_key(file, "group", arrays, places.group, len(obs), 0) if places.group else None,
        t=_numbers(file, columns.t, arrays[columns.t]) if columns.t in arrays else None,
        terminated=_truths(file, columns.terminated, arrays),
        truncated=_truths(file, columns.truncated, arrays),
        **_finals(file, arrays, obs, dtype),
        notes=places.notes,
        ends=columns.ends,
        action_columns=action_columns,
        **files.acted(file, columns, _num_actions(file, arrays), meant, action),
    )


def _observations(file: str, arrays: dict[str, np.ndarray], names: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """One array as it is, or arrays of numbers side by side; and what the entries are called."""
    if len(names) == 1 and arrays[names[0]].ndim != 1:
        obs = arrays[names[0]]
        if obs.dtype.kind not in "biuf" or obs.ndim < 2:
            raise UserError(f"{file}: {names[0]!r} is {obs.dtype}{list(obs.shape)}, expected numbers with the axes [row, ...].")
        return obs, _names(file, arrays, obs.shape[1:])
    for name in names:
        if arrays[name].dtype.kind not in "biuf" or arrays[name].ndim not in (1, 2) or len(arrays[name]) != len(arrays[names[0]]):
            found = f"{arrays[name].dtype}{list(arrays[name].shape)}"
            raise UserError(f"{file}: {name!r} is {found}, expected numbers with the axes [row, ...], {len(arrays[names[0]])} rows.")
    wide = {name: arrays[name].reshape(len(arrays[name]), -1) for name in names}
    called = [name if arrays[name].ndim == 1 else f"{name}_{i}" for name, array in wide.items() for i in range(array.shape[1])]
    return np.concatenate(list(wide.values()), axis=1), tuple(called)


def _actions(
    file: str, arrays: dict[str, np.ndarray], columns: Columns, names: tuple[str, ...], rows: int
) -> tuple[np.ndarray | Ids, tuple[str, ...]]:
    """The actions as `Rows` hold them, or their names, and what their numbers are called; an array with the axes [row, number] is several
    of them."""
    if not names:
        return np.full(rows, np.nan), ()
    if len(names) == 1 and arrays[names[0]].dtype.kind == "U" and arrays[names[0]].ndim == 1:
        return _ids(file, "action", arrays[names[0]], None), names
    found = [_numbers(file, name, arrays[name]) for name in names]
    if len(found) == 1 and found[0].ndim == 1:
        return found[0], names
    if len(found) == 1 and found[0].ndim == 2:
        return found[0], tuple(f"{names[0]}_{i}" for i in range(found[0].shape[1]))
    if any(array.ndim != 1 for array in found):
        raise UserError(f"{file}: an array of the action has more than two axes, expected [row] or [row, number].")
    return np.stack(found, axis=1), names


def _key(file: str, role: str, arrays: dict[str, np.ndarray], names: tuple[str, ...], rows: int, alone: str | int) -> Ids:
    """One array of names or several that are one key."""
    if len(names) == 1:
        return _ids(file, role, arrays[names[0]], arrays.get(f"{role}_names"))
    return combined([_ids(file, name, arrays[name], arrays.get(f"{name}_names")) for name in names], rows, alone)


def _meaning(file: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    if "meaning" not in arrays:
        return {}
    said = disk.parsed(str(arrays["meaning"][()]).encode(), f"{file}: 'meaning'") if arrays["meaning"].shape == () else None
    if not isinstance(said, dict):
        raise UserError(f"{file} is damaged: 'meaning' is not an object in JSON.")
    return said


def _cast(file: str, name: str, obs: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if obs.dtype == dtype:
        return obs
    if dtype.kind != "f" and misfits(obs.reshape(-1), dtype).any():
        raise UserError(f"{file}: {name!r} holds numbers that do not fit into {dtype.name}.")
    return obs.astype(dtype)


def _numbers(file: str, name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "biuf":
        raise UserError(f"{file}: {name!r} is of type {array.dtype}, expected numbers.")
    return array.astype(np.float64)


def _truths(file: str, name: str, arrays: dict[str, np.ndarray]) -> np.ndarray | None:
    if name not in arrays:
        return None
    values = _numbers(file, name, arrays[name])
    if not np.isin(values, (0, 1)).all():
        raise UserError(f"{file}: {name!r} holds other numbers than 0 and 1.")
    return values == 1


def _ids(file: str, role: str, values: np.ndarray, names: np.ndarray | None) -> Ids:
    if names is not None:
        listing = coded(_listing(file, f"{role}_names", names))
        return Ids(np.append(listing.codes, np.int32(-1))[_places(file, role, values, len(listing.codes))], listing.names)
    if values.dtype.kind == "U":
        return coded(values, values == "")
    if values.dtype.kind == "f":
        return whole_numbers(file, role, values)
    if values.dtype.kind not in "iu":
        raise UserError(f"{file}: {role!r} is of type {values.dtype}, expected names or whole numbers.")
    return coded(values.astype(np.int64, copy=False))


def _places(file: str, role: str, values: np.ndarray, names: int) -> np.ndarray:
    if values.dtype.kind not in "iu" or values.min(initial=0) < -1 or values.max(initial=-1) >= names:
        raise UserError(f"{file}: {role!r} does not fit {role + '_names'!r}: expected places in that list.")
    return values.astype(np.int32)


def _listing(file: str, name: str, array: np.ndarray) -> np.ndarray:
    """A list of names, or of whole numbers, from JSON."""
    try:
        names = json.loads(str(array[()])) if array.shape == () else None
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or len({type(entry) for entry in names}) > 1 or not all(type(entry) in (str, int) for entry in names):
        raise UserError(f"{file}: {name!r} is not a list in JSON of strings or of integers.")
    if any(isinstance(entry, int) and abs(entry) >= 2**63 for entry in names):
        raise UserError(f"{file}: {name!r} has a number that is too large, expected one of at most 64 bits.")
    return np.array(names, np.int64 if names and isinstance(names[0], int) else object)


def _names(file: str, arrays: dict[str, np.ndarray], shape: tuple[int, ...]) -> tuple[str, ...]:
    usual = entry_names(shape)
    if "obs_names" not in arrays:
        return usual
    names = tuple(map(str, _listing(file, "obs_names", arrays["obs_names"])))
    return names if len(names) == len(usual) else usual


def _finals(file: str, arrays: dict[str, np.ndarray], obs: np.ndarray, dtype: np.dtype) -> dict[str, Any]:
    if "final_obs" not in arrays or "final_row" not in arrays:
        return {}
    final, row = arrays["final_obs"], arrays["final_row"]
    if final.shape[1:] != obs.shape[1:] or row.shape != final.shape[:1] or row.dtype.kind not in "iu" or final.dtype.kind not in "biuf":
        raise UserError(f"{file}: 'final_obs' and 'final_row' do not fit {list(obs.shape[1:])} observations.")
    if row.min(initial=0) < 0 or row.max(initial=-1) >= len(obs):
        raise UserError(f"{file}: 'final_row' names rows that are not there.")
    return {"final_obs": _cast(file, "final_obs", final, dtype), "final_row": row.astype(np.int64)}


def _num_actions(file: str, arrays: dict[str, np.ndarray]) -> int | None:
    if "num_actions" not in arrays:
        return None
    value = arrays["num_actions"]
    if value.shape != () or value.dtype.kind not in "iu" or value < 1:
        raise UserError(f"{file}: 'num_actions' is not a positive integer.")
    return int(value)


def write(demos: Demonstrations, path: Path, progress: bool) -> None:
    """All arrays, not compressed, so that they are read as fast as the disk gives them."""
    e = demos.episodes
    names = {"agent_names": list(demos.agents), "obs_names": list(demos.names)}
    episode = demos.episode
    if episode.dtype != np.int64:
        names["episode_names"] = e.id.tolist()
        episode = np.repeat(np.arange(demos.num_episodes), demos.lengths)
    arrays = {
        "obs": demos.obs,
        "action": demos.action,
        "agent": demos.agent_index,
        "episode": episode,
        "t": demos.t,
        "terminated": demos.terminated,
        "truncated": demos.truncated,
        "final_obs": e.final_obs[e.has_final],
        "final_row": e.start[1:][e.has_final] - 1,
        "num_actions": np.array(demos.num_actions),
    }
    if demos.group is not None:
        arrays[Columns.group] = np.repeat(demos.group, demos.lengths)
        names["group_names"] = list(demos.groups)
    if said := files.meaning(demos):
        arrays["meaning"] = np.array(json.dumps(said))
    arrays: dict[str, Any] = arrays | {name: np.array(json.dumps(values)) for name, values in names.items()}
    with display.shown(f"writing {path.name}", done=0, total=1, enabled=progress) as bar, files.replacing(path) as draft:
        with open(draft, "wb") as file:
            np.savez(file, **arrays)
        bar.advance(1, {})
