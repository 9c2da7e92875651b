"""Minari datasets: written with Minari, read from the HDF5 file itself.

Reading never makes the environment a dataset names, which could run code, and refuses whatever in the file points out of it: soft and
external links, external and virtual storage. The agent's id is in the metadata of each episode, rewards are NaN, pictures lossless.
"""

import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from psiphi import disk, limits
from psiphi import progress as display
from psiphi.demos import files
from psiphi.demos.columns import Columns, entry_names, kept_dtype, left_out
from psiphi.demos.demonstrations import Demonstrations, Trajectory
from psiphi.demos.rows import Flaw, Ids, Rows, coded
from psiphi.errors import UserError

MEANING = "psiphi"
"""Dataset metadata: what the actions mean, in JSON."""
FINAL = "psiphi_has_final_obs"
"""Episode metadata: false where the last of Minari's T + 1 observations only repeats the one before, as none was recorded."""


# --- Reading -------------------------------------------------------------------------------------------------------------


def read(path: Path, columns: Columns, progress: bool) -> Rows:
    """A dataset's directory, or its HDF5 file."""
    h5py = files.extra("h5py", "data", "A Minari dataset")
    data = _data_file(path)
    metadata = _metadata(path, data)
    try:
        with h5py.File(data, "r") as file:
            return _Reader(h5py, path, file, metadata, columns).read(progress)
    except (OSError, RuntimeError, KeyError) as error:
        raise UserError(f"{data} is not an HDF5 file that can be read: {str(error).splitlines()[0]}.") from error


def _data_file(path: Path) -> Path:
    if path.is_file():
        return path
    for data in (path / "data" / "main_data.hdf5", path / "main_data.hdf5"):
        if data.is_file():
            return data
    raise UserError(f"{path} is no Minari dataset: expected data/main_data.hdf5 in it.")


def _metadata(path: Path, data: Path) -> dict[str, Any]:
    """What the dataset says of itself; nothing in it is executed, and it may be missing."""
    try:
        metadata = json.loads(disk.read(data.parent / "metadata.json", limits.MOST_JSON_BYTES))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: metadata.json is not JSON.") from error
    if not isinstance(metadata, dict):
        raise UserError(f"{path} is damaged: metadata.json is not an object.")
    return metadata


class _Reader:
    """One dataset on its way in."""

    def __init__(self, h5py: Any, path: Path, file: Any, metadata: dict[str, Any], columns: Columns):
        self.h5py, self.path, self.file, self.metadata, self.columns = h5py, path, file, metadata, columns
        self.key = None if columns.obs == Columns.obs else columns.obs
        self.flaws: list[Flaw] = []
        self.rows = self.claimed = 0
        self.data_path = Path(file.filename)
        self.first, self.actions, self.continuous = self._actions()
        self.meant = files.meant(str(path), self._space(MEANING), columns)
        self.space = self._space("observation_space")

    def read(self, progress: bool) -> Rows:
        names = sorted((name for name in self.file if name.startswith("episode_")), key=_episode_number)
        seen, acted, ends, who, which, kept = _Growing(self.path, self.metadata), [], [], [], [], []
        with display.shown(f"reading {self.path.name}", done=0, total=max(len(names), 1), enabled=progress) as bar:
            for i, name in enumerate(names):
                group = self._inside(self.file, name)
                obs, action, flags = self._episode(group, seen.shape)
                who.append(self._attribute(group, self.columns.agent))
                which.append(self._attribute(group, self.columns.episode, _episode_number(name)))
                kept.append(self._attribute(group, self.columns.group))
                seen.add(obs)
                acted.append(action)
                ends.append(flags)
                self.rows += len(obs)
                bar.advance(i + 1, {})
        notes = left_out(str(self.path), ["rewards"]) if names and self._has_rewards(names[0]) else ()
        return self._result(seen, acted, ends, who, which, kept, notes)

    def _has_rewards(self, name: str) -> bool:
        """Whether there are rewards that are left out; psiphi writes NaN."""
        group = self._inside(self.file, name)
        return _has(group, "rewards") and not np.isnan(self._array(group, "rewards")).all()

    def _result(self, seen, acted, ends, who, which, kept, notes) -> Rows:
        lengths = np.array([len(action) for action in acted], int)
        obs = seen.result(self.columns.dtype)
        if not any(agent is not None for agent in who) and who:
            only = str(self.metadata.get("dataset_id") or self.path.name)
            notes = (
                *notes,
                f"{self.path}: no episode says who acts ({self.columns.agent!r} in its metadata): all are one agent, {only!r}.",
            )
            who = [only] * len(who)
        flags = np.concatenate(ends) if ends else np.zeros((0, 2), bool)
        return Rows(
            file=str(self.path),
            obs=obs,
            names=entry_names(obs.shape[1:]),
            action=np.concatenate(acted) if acted else np.zeros(0),
            agent=_ids(str(self.path), "agent", who, lengths),
            episode=_ids(str(self.path), "episode", which, lengths),
            t=np.concatenate([np.arange(n, dtype=float) for n in lengths]) if len(lengths) else np.zeros(0),
            terminated=flags[:, 0],
            truncated=flags[:, 1],
            flaws=tuple(self.flaws),
            notes=notes,
            num_actions=files.how_many(self.columns, self.actions, self.meant),
            action_columns=self._action_columns(acted),
            group=None if all(group is None for group in kept) else _ids(str(self.path), "group", kept, lengths),
            **self.meant,
        )

    def _action_columns(self, acted: list[np.ndarray]) -> tuple[str, ...]:
        """What the numbers of an action are called: as asked for, if so many names were given."""
        width = acted[0].shape[1] if acted and acted[0].ndim == 2 else 1
        asked = tuple(part.strip() for part in self.columns.action.split(","))
        return asked if len(asked) == width else tuple(f"action_{i}" for i in range(width))

    def _episode(self, group: Any, shape: tuple[int, ...] | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Observations, actions and both flags of an episode, equally many; the last action is NaN if there is one observation more."""
        action = self._array(group, "actions")
        if action.dtype.kind not in "biuf":
            raise UserError(f"{self.path}: the actions are {action.dtype}, expected one integer per step.")
        action = action.astype(np.float64) - self.first
        if self.continuous:
            action = action.reshape(len(action), -1) if action.ndim else np.zeros((0, 1))
        obs = self._observations(group)
        if action.ndim != 1 + self.continuous or not len(action):
            text = f"the actions have shape {action.shape}, expected one integer per step"
            self.flaws.append(Flaw(self.rows, "actions of a wrong shape", text))
            action = np.zeros((1, 1)[: 1 + self.continuous])
        if shape is not None and obs.shape[1:] != shape:
            text = f"an observation is of shape {obs.shape[1:]}, expected the shape of the first episode's, {shape}"
            self.flaws.append(Flaw(self.rows, "mixed observation shapes", text))
            obs = np.zeros((len(action), *shape), obs.dtype)
        if len(obs) - len(action) not in (0, 1):
            text = f"there are {len(obs)} observations and {len(action)} actions, expected as many or one more"
            self.flaws.append(Flaw(self.rows, "observations and actions that do not match", text))
            obs = np.zeros((len(action), *obs.shape[1:]), obs.dtype)
        if len(obs) > len(action) and not bool(group.attrs.get(FINAL, True)):
            obs = obs[: len(action)]
        flags = np.zeros((len(obs), 2), bool)
        for column, name in enumerate(("terminations", "truncations")):
            if _has(group, name):
                given = self._array(group, name).reshape(-1)[: len(action)].astype(bool)
                flags[: len(given), column] = given
        return obs, np.concatenate([action, np.full((len(obs) - len(action), *action.shape[1:]), np.nan)]), flags

    def _observations(self, group: Any) -> np.ndarray:
        """The observations of an episode, or one entry of them if they are dictionaries; compressed pictures are unpacked."""
        space = self.space
        data, name = self._inside(group, "observations"), self.key or ""
        if isinstance(data, self.h5py.Group):
            if not _has(data, name):
                asked = f"{self.key!r} is none of them" if self.key else "--obs chooses one of them"
                raise UserError(f"{self.path}: observations have the parts {', '.join(map(repr, data))}; {asked}.")
            data = self._inside(data, name)
            space = (space.get("subspaces") or {}).get(name, {}) if isinstance(space.get("subspaces"), dict) else {}
        shape = space.get("shape")
        array = self._numbers(data)
        if isinstance(shape, list) and len(shape) > 1 and array.ndim < 1 + len(shape):
            return self._pictures(array, tuple(shape))
        if array.dtype.kind not in "biuf" or array.ndim < 2:
            found = f"{array.dtype}{list(array.shape)}"
            raise UserError(f"{self.path}: {data.name} is {found}, expected numbers with the axes [step, ...].")
        return array

    def _pictures(self, frames: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Pictures that Minari compressed."""
        from PIL import Image

        try:
            images = [Image.open(io.BytesIO(np.asarray(frame, np.uint8).tobytes()), formats=["JPEG"]) for frame in frames]
            if any((image.height, image.width) != shape[:2] for image in images):
                raise UserError(f"{self.path}: a picture has another size than the {shape[:2]} of the observation space.")
            return np.stack([np.asarray(image, np.uint8).reshape(shape) for image in images])
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path}: a compressed picture cannot be read: {error}.") from error

    def _actions(self) -> tuple[int, int | None, bool]:
        """The first action's number and how many there are, where the dataset says; and whether actions are continuous, or several."""
        space = self._space("action_space")
        if not space:
            return 0, None, False
        if space.get("type") in ("Box", "MultiDiscrete", "MultiBinary"):
            return 0, None, True
        if space.get("type") != "Discrete" or type(space.get("n")) is not int or type(space.get("start", 0)) is not int:
            raise UserError(f"{self.path}: actions are of the kind {space.get('type')!r}, expected discrete ones.")
        return space.get("start", 0), space["n"], False

    def _space(self, name: str) -> dict[str, Any]:
        text = self.metadata.get(name, "{}")
        try:
            space = json.loads(text) if isinstance(text, str) else text
        except (ValueError, RecursionError):
            space = None
        if not isinstance(space, dict):
            raise UserError(f"{self.path} is damaged: {name} in metadata.json is not JSON.")
        return space

    # Only what is in the file itself is looked at: h5py's own `in` and `get` would follow a link.

    def _inside(self, group: Any, name: str) -> Any:
        try:
            link = group.id.links.get_info(name.encode()).type
        except (KeyError, RuntimeError) as error:
            raise UserError(f"{self.path}: {group.name} has no {name!r}.") from error
        if link != self.h5py.h5l.TYPE_HARD:
            target = group.id.links.get_val(name.encode())
            shown = (target if isinstance(target, bytes) else target[0]).decode(errors="replace")
            raise UserError(f"{self.path}: {group.name.rstrip('/')}/{name} is a link to {shown!r}; links are never followed.")
        return group[name]

    def _array(self, group: Any, name: str) -> np.ndarray:
        return self._numbers(self._inside(group, name))

    def _numbers(self, data: Any) -> np.ndarray:
        if not isinstance(data, self.h5py.Dataset):
            raise UserError(f"{self.path}: {data.name} is not an array.")
        if data.external or data.is_virtual:
            raise UserError(f"{self.path}: {data.name} keeps its numbers in another file, which is never followed.")
        if data.size is None or data.dtype.kind not in "biuf" and data.dtype.metadata is None:
            raise UserError(f"{self.path}: {data.name} holds {data.dtype}, expected numbers.")
        self.claimed += data.size * data.dtype.itemsize
        limits.check_growth(self.data_path, self.claimed)
        return data[()]

    def _attribute(self, group: Any, name: str, default: Any = None) -> Any:
        value = group.attrs.get(name, default)
        value = value.decode() if isinstance(value, bytes) else value
        return value.item() if isinstance(value, np.generic) else value


def _has(group: Any, name: str) -> bool:
    """Whether something has this name, be it a link."""
    return bool(name) and group.id.links.exists(name.encode())


HINTED = 2**28
"""Bytes that are reserved because the metadata say that so much is coming; what is more must be there first."""


class _Growing:
    """Observations that become more."""

    def __init__(self, path: Path, metadata: dict[str, Any]):
        self.path, self.filled, self.data = path, 0, None
        steps, episodes = metadata.get("total_steps"), metadata.get("total_episodes")
        self.hint = steps + episodes if type(steps) is int and type(episodes) is int and steps + episodes >= 0 else 0

    @property
    def shape(self) -> tuple[int, ...] | None:
        return None if self.data is None else self.data.shape[1:]

    def add(self, obs: np.ndarray) -> None:
        if self.data is None:
            size = len(obs) if self.hint * obs[:1].nbytes > HINTED else max(self.hint, len(obs))
            limits.check_memory(self.path, size * obs[:1].nbytes)
            self.data = np.empty((size, *obs.shape[1:]), obs.dtype)
        need = self.filled + len(obs)
        if need > len(self.data):
            larger = np.empty((max(need, len(self.data) * 3 // 2), *self.data.shape[1:]), self.data.dtype)
            larger[: self.filled] = self.data[: self.filled]
            self.data = larger
        self.data[self.filled : need] = obs
        self.filled = need

    def result(self, wanted: str | None) -> np.ndarray:
        if self.data is None:
            return np.zeros((0, 1), np.float32)
        keep = wanted is None and self.data.dtype.name in ("float64", "int32")
        return self.data[: self.filled].astype(self.data.dtype if keep else kept_dtype(self.data.dtype, wanted), copy=False)


def _episode_number(name: str) -> int:
    digits = name.removeprefix("episode_")
    return int(digits) if digits.isascii() and digits.isdigit() else -1


def _ids(file: str, role: str, values: list[Any], lengths: np.ndarray) -> Ids:
    missing = np.array([value is None or value == "" for value in values], bool)
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) > 1 or not kinds <= {str, int}:
        raise UserError(f"{file}: the {role} ids are of the kinds {', '.join(sorted(k.__name__ for k in kinds))}; expected str or int.")
    dtype = np.int64 if kinds == {int} else object
    ids = coded(np.array([("" if dtype is object else 0) if value is None else value for value in values], dtype), missing)
    return Ids(np.repeat(ids.codes, lengths), ids.names)


# --- Writing -------------------------------------------------------------------------------------------------------------


def write(demos: Demonstrations, path: Path, progress: bool) -> None:
    """A dataset in the directory `path`, whose name is Minari's for it: NaN for rewards, pictures as they are."""
    minari = files.extra("minari", "data", "Writing a Minari dataset")
    storage_module = files.extra("minari.dataset.minari_storage", "data", "Writing a Minari dataset")
    files.extra("h5py", "data", "Writing a Minari dataset")
    path = path.absolute()  # Minari's storage knows no relative ones
    if os.path.lexists(path) and not _is_dataset(path):
        more = "holds more than a" if (path / "data" / "metadata.json").is_file() else "is no"
        raise UserError(f"{path} is there and {more} Minari dataset, so it is not replaced.")
    import gymnasium

    with (
        display.shown(f"writing {path.name}", done=0, total=max(demos.num_episodes, 1), enabled=progress) as bar,
        files.replacing(path) as draft,
    ):
        draft.mkdir()
        storage = storage_module.MinariStorage.new(
            draft / "data",
            observation_space=_box(gymnasium, demos),
            action_space=gymnasium.spaces.Discrete(demos.num_actions),
            data_format="hdf5",
            jpeg_encoding=False,
        )
        said = {"dataset_id": _dataset_id(path), "minari_version": minari.__version__}
        if meaning := files.meaning(demos):
            said[MEANING] = json.dumps(meaning)
        storage.update_metadata({**said, "description": "Demonstrations without rewards, written by psiphi: the rewards are NaN."})
        storage.update_episodes(_buffers(minari, demos, bar))
        storage.update_episode_metadata(
            {"agent": x.agent, "episode": x.episode, FINAL: x.final_obs is not None, **_kept(demos, i)} for i, x in enumerate(demos)
        )


def _kept(demos: Demonstrations, i: int) -> dict[str, Any]:
    """The group of an episode, if it has one."""
    return {} if demos.group is None or demos.group[i] < 0 else {Columns.group: demos.groups[demos.group[i]]}


def _is_dataset(path: Path) -> bool:
    """Whether a directory is a dataset of one file and nothing else: replacing it loses nothing else."""
    if path.is_symlink() or not path.is_dir():
        return False
    found = {str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir() or file.is_symlink()}
    return "data/metadata.json" in found and found <= {"data/metadata.json", "data/main_data.hdf5", ".namespace_metadata.json"}


def _dataset_id(path: Path) -> str:
    """Minari finds a dataset by its place below the directory of all datasets."""
    name = re.sub(r"[^-\w]", "_", path.name)
    return name if re.search(r"-v\d+$", name) else f"{name}-v0"


def _box(gymnasium: Any, demos: Demonstrations) -> Any:
    dtype = demos.obs.dtype
    if dtype.kind == "f":
        low, high = -np.inf, np.inf
    else:
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return gymnasium.spaces.Box(low, high, demos.obs.shape[1:], dtype.type)


def _buffers(minari: Any, demos: Demonstrations, bar: display.Silent) -> Iterator[Any]:
    for i, episode in enumerate(demos):
        yield _buffer(minari, episode)
        bar.advance(i + 1, {})


def _buffer(minari: Any, episode: Trajectory) -> Any:
    last = episode.obs[-1] if episode.final_obs is None else episode.final_obs
    steps = len(episode.action)
    flags = np.zeros((2, steps), bool)
    flags[:, -1] = episode.terminated, episode.truncated
    return minari.data_collector.EpisodeBuffer(
        observations=np.concatenate([episode.obs, last[None]]),
        actions=episode.action.astype(np.int64),
        rewards=np.full(steps, np.nan),
        terminations=flags[0],
        truncations=flags[1],
    )
