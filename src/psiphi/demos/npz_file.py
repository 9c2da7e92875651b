"""The arrays of a long table in NumPy's npz: ``obs[N, ...]``, ``action[N]``, ``agent[N]``, ``episode[N]`` and what else there is.

Names may be stored once: where there is ``agent_names`` (a JSON list), ``agent`` are places in it, and so with ``episode_names``.
``final_obs[F, ...]`` are the observations after the rows ``final_row[F]``. Nothing in such a file is ever executed.
"""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from psiphi import limits
from psiphi import progress as display
from psiphi.demos import files
from psiphi.demos.columns import Columns, entry_names, kept_dtype, left_out, listed, misfits
from psiphi.demos.demonstrations import Demonstrations
from psiphi.demos.rows import Ids, Rows, coded, whole_numbers
from psiphi.errors import UserError

OWN = ("agent_names", "episode_names", "final_obs", "final_row", "num_actions", "obs_names")


def read(path: Path, columns: Columns, progress: bool) -> Rows:
    """Arrays under the names that `columns` says; `columns.obs` is one name here."""
    optional = (columns.t, columns.terminated, columns.truncated)
    obs_name = "obs" if columns.obs == Columns.obs else columns.obs
    needed = {"agent": columns.agent, "episode": columns.episode, "action": columns.action, "observation": obs_name}
    try:
        with zipfile.ZipFile(path) as archive:
            present = [name.removesuffix(".npy") for name in archive.namelist()]
            for role, name in needed.items():
                if name not in present:
                    raise UserError(f"{path} has no array {name!r} for the {role}; its arrays are {listed(present)}.")
            limits.check_most(f"{path} has too many arrays", len(present), limits.MOST_COLUMNS)
            wanted = [name for name in (*needed.values(), *optional, *OWN) if name in present]
            arrays = _arrays(path, archive, wanted, progress)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:  # damaged; compressed or locked in a strange way
        raise UserError(f"{path} is not an npz file that can be read: {error}.") from error
    notes = left_out(str(path), [name for name in present if name not in wanted])
    return _rows(path, arrays, columns, obs_name, notes)


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
        if int(np.prod(shape, dtype=object)) * dtype.itemsize + stream.tell() != member.file_size:
            raise UserError(f"{path} is damaged: {name!r} does not hold as many numbers as it says.")
    with archive.open(member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _rows(path: Path, arrays: dict[str, np.ndarray], columns: Columns, obs_name: str, notes: tuple[str, ...]) -> Rows:
    file = str(path)
    obs = arrays[obs_name]
    if obs.dtype.kind not in "biuf" or obs.ndim < 2:
        raise UserError(f"{file}: {obs_name!r} is {obs.dtype}{list(obs.shape)}, but expected were numbers with the axes [row, ...].")
    dtype = obs.dtype if columns.dtype is None and obs.dtype.name in ("float64", "int32") else kept_dtype(obs.dtype, columns.dtype)
    lengths = {name: arrays[name].shape for name in arrays if name not in (obs_name, *OWN)}
    wrong = [name for name, shape in lengths.items() if shape != (len(obs),)]
    if wrong:
        raise UserError(f"{file}: {wrong[0]!r} has shape {lengths[wrong[0]]}, but expected was ({len(obs)},) as there are so many rows.")
    return Rows(
        file=file,
        obs=_cast(file, obs_name, obs, dtype),
        names=_names(file, arrays, obs.shape[1:]),
        action=_numbers(file, columns.action, arrays[columns.action]),
        agent=_ids(file, "agent", arrays[columns.agent], arrays.get("agent_names")),
        episode=_ids(file, "episode", arrays[columns.episode], arrays.get("episode_names")),
        t=_numbers(file, columns.t, arrays[columns.t]) if columns.t in arrays else None,
        terminated=_truths(file, columns.terminated, arrays),
        truncated=_truths(file, columns.truncated, arrays),
        **_finals(file, arrays, obs, dtype),
        notes=notes,
        num_actions=columns.num_actions or _num_actions(file, arrays),
        ends=columns.ends,
    )


def _cast(file: str, name: str, obs: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if obs.dtype == dtype:
        return obs
    if dtype.kind != "f" and misfits(obs.reshape(-1), dtype).any():
        raise UserError(f"{file}: {name!r} holds numbers that do not fit into {dtype.name}.")
    return obs.astype(dtype)


def _numbers(file: str, name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "biuf":
        raise UserError(f"{file}: {name!r} is of type {array.dtype}, but expected were numbers.")
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
        raise UserError(f"{file}: {role!r} is of type {values.dtype}, but expected were names or whole numbers.")
    return coded(values.astype(np.int64, copy=False))


def _places(file: str, role: str, values: np.ndarray, names: int) -> np.ndarray:
    if values.dtype.kind not in "iu" or values.min(initial=0) < -1 or values.max(initial=-1) >= names:
        raise UserError(f"{file}: {role!r} does not fit {role + '_names'!r}: expected were places in that list.")
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
    arrays: dict[str, Any] = arrays | {name: np.array(json.dumps(values)) for name, values in names.items()}
    with display.shown(f"writing {path.name}", done=0, total=1, enabled=progress) as bar, files.replacing(path) as draft:
        with open(draft, "wb") as file:
            np.savez(file, **arrays)
        bar.advance(1, {})
