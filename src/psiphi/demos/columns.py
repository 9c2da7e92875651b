"""Where in a stranger's table things are, and what its numbers mean."""

import collections
import fnmatch
import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np

from psiphi import configs, limits, printable
from psiphi.configs import Within
from psiphi.errors import UserError

REWARDS = ("reward", "rewards", "return", "returns")
"""Columns that are left out and said to be: psiphi learns without rewards."""

KEPT = frozenset("bool int8 uint8 int16 uint16 float16 float32".split())
"""Types that observations keep when a file has them; every other becomes float32, in which everything is learned."""


@dataclass(frozen=True)
class Columns:
    """Which column is what. The defaults are the names that psiphi writes."""

    agent: str = "agent"
    """Who acts: names or whole numbers; several columns, separated by commas, are one key, "none" is one agent for all. In a Minari
    dataset, the episode metadata that says who."""
    episode: str = "episode"
    """Which of the agent's episodes: names or whole numbers; several columns, separated by commas, are one key ("scene,car")."""
    t: str = "t"
    """Time within the episode: steps, frames or seconds, evenly spaced. Without such a column the order of the rows counts."""
    obs: str = "obs,obs_*"
    """The observation: names or patterns, separated by commas ("x,y,speed", "lidar_*"). Where no column is called
    obs or `obs_...`, all columns of numbers without another role. In a Minari dataset of dictionaries, the key."""
    action: str = "action"
    """A whole number from 0, or a name; for psiphi demos discretise, any numbers, columns separated by commas. Missing in the last row of
    an episode: that row is only the observation after the last step."""
    terminated: str = "terminated"
    """True at the step after which the task was over. May be missing."""
    truncated: str = "truncated"
    """True at the step after which the recording was stopped. May be missing."""
    ends: Literal["truncated", "terminated"] = "truncated"
    """What the end of an episode means where neither of the two columns is there."""
    num_actions: Annotated[int, Within(1, limits.MOST_ACTIONS)] | None = None
    """How many actions there are; one more than the largest that occurs, if not given."""
    dtype: str | None = None
    """The type of the observations; as in the file if that is float32, float16, bool or an integer of up to 16 bits, else float32."""

    group: str = "keep_together"
    """Episodes with the same entry here are never split between what is shown and what is held out. May be missing."""

    def __post_init__(self):
        configs.check(self)
        if self.dtype is not None and self.dtype not in KEPT | {"int32", "float64"}:
            raise UserError(f"dtype is {self.dtype!r}, expected one of {', '.join(sorted(KEPT | {'int32', 'float64'}))}.")


class Found(NamedTuple):
    """Which columns of a file are what: names in the file, None where a column that may be missing is."""

    agent: tuple[str, ...]
    """Of several columns, the key is all of them together; none: one agent."""
    episode: tuple[str, ...]
    group: tuple[str, ...]
    action: tuple[str, ...]
    """One, unless actions are continuous or composed; none, if none was asked for."""
    obs: tuple[str, ...]
    """In the order of the observation's entries."""
    t: str | None
    terminated: str | None
    truncated: str | None
    shape: tuple[int, ...]
    """Of an observation, as far as the names tell: ``obs_2_0`` is row 2, column 0."""
    names: tuple[str, ...]
    """What the entries of the observation are called."""
    notes: tuple[str, ...]
    """What was left out."""

    @property
    def read(self) -> list[str]:
        """Every column that has to be read."""
        optional = [name for name in (self.t, self.terminated, self.truncated) if name is not None]
        return list(dict.fromkeys([*self.ids, *self.action, *optional, *self.obs]))

    @property
    def ids(self) -> list[str]:
        """Every column of names."""
        return list(dict.fromkeys([*self.agent, *self.episode, *self.group]))


Numeric = Callable[[Sequence[str]], Sequence[str]]
"""Which of these columns hold numbers."""


def find(file: str, present: Sequence[str], columns: Columns, numeric: Numeric = lambda names: names) -> Found:
    """Match the wanted columns with those that are there."""
    limits.check_most(f"{file} has too many columns", len(present), limits.MOST_COLUMNS)
    twice = sorted(name for name, count in collections.Counter(present).items() if count > 1)
    if twice:
        raise UserError(f"{file} has two columns called {twice[0]!r}; expected different names.")
    agent, episode, action, group = (keys(file, present, columns, role) for role in ("agent", "episode", "action", "group"))
    for role in ("t", "terminated", "truncated"):
        name, usual = getattr(columns, role), Columns.__dataclass_fields__[role].default
        if name not in present and name != usual:
            raise UserError(f"{file} has no column {name!r} for {role}; its columns are {listed(present)}.")
    t, terminated, truncated = (name if name in present else None for name in (columns.t, columns.terminated, columns.truncated))
    used = {*agent, *episode, *action, *group, t, terminated, truncated}
    obs, notes = matching(file, [name for name in present if name not in used], columns.obs, numeric)
    ordered, shape, names = _grid(obs)
    chosen = used | set(obs)
    notes += left_out(file, [name for name in present if name not in chosen])
    return Found(agent, episode, group, action, ordered, t, terminated, truncated, shape, names, notes)


def keys(file: str, present: Sequence[str], columns: Columns, role: str) -> tuple[str, ...]:
    """The columns that a role names: one, several that are separated by commas, or none."""
    wanted = getattr(columns, role)
    if wanted in present:
        return (wanted,)
    if not wanted or (wanted == "none" and role != "action") or (role == "group" and wanted == Columns.group):
        return ()
    names = tuple(part.strip() for part in wanted.split(",") if part.strip())
    for name in names:
        if name not in present:
            raise UserError(f"{file} has no column {name!r} for the {role}; its columns are {listed(present)}; --{role} names it.")
    return tuple(dict.fromkeys(names))


def matching(file: str, free: list[str], patterns: str, numeric: Numeric) -> tuple[list[str], tuple[str, ...]]:
    """The columns that a list of names and patterns means, in its order and then the file's; and what there is to say of them.

    Where none is named, and none has the usual name, they are all columns of numbers but rewards.
    """
    found: dict[str, None] = {}
    usual = patterns == Columns.obs
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        matches = [pattern] if pattern in free else [name for name in free if fnmatch.fnmatchcase(name, pattern)]
        if not matches and not usual:
            raise UserError(f"{file} has no column that {pattern!r} could mean; the columns left for the observation are {listed(free)}.")
        found |= dict.fromkeys(matches)
    if found:
        return list(found), ()
    numbers = list(numeric([name for name in free if name.lower() not in REWARDS])) if usual else []
    if not numbers:
        raise UserError(f"{file} has no column of observations called obs or obs_...; it has {listed(free)}; --obs says which they are.")
    return numbers, (f"{file}: the observation is {listed(numbers)}, the columns of numbers without another role; --obs chooses others.",)


def _grid(columns: list[str]) -> tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
    """Columns in the order of the observation's entries, its shape and its entries' names.

    Names that end in numbers and fill a whole grid (``obs_0_0`` to ``obs_6_6``) are put in order; others stay in the file's.
    """
    names = tuple(name.removeprefix("obs_") for name in columns)
    if all(re.fullmatch(r"\d{1,9}(_\d{1,9}){0,31}", name, re.ASCII) for name in names):
        places = [tuple(int(number) for number in name.split("_")) for name in names]
        if len({len(place) for place in places}) == 1:
            shape = tuple(max(axis) + 1 for axis in zip(*places, strict=True))
            if math.prod(shape) == len(places) and sorted(places) == list(itertools.product(*map(range, shape))):
                order = np.lexsort(np.array(places).T[::-1])
                return tuple(columns[i] for i in order), shape, tuple(names[i] for i in order)
    return tuple(columns), (len(columns),), names


def entry_names(shape: tuple[int, ...]) -> tuple[str, ...]:
    """What the entries of an observation are called when they have no names: their indices."""
    return tuple("_".join(map(str, place)) for place in np.ndindex(shape))


def kept_dtype(dtype: np.dtype, wanted: str | None) -> np.dtype:
    """The type in which observations of this type are kept."""
    if wanted is not None:
        return np.dtype(wanted)
    return dtype if dtype.name in KEPT else np.dtype(np.float32)


def misfits(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Which numbers an integer type cannot hold; floating-point types hold all, if not exactly."""
    if dtype.kind == "f" or values.dtype == dtype:
        return np.zeros(len(values), bool)
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return ~((values >= low) & (values <= high) & (values == np.floor(values)))


def left_out(file: str, names: Iterable[str]) -> tuple[str, ...]:
    """A sentence about columns that were not asked for."""
    names = list(names)
    rewards = [name for name in names if name.lower() in REWARDS]
    others = [name for name in names if name not in rewards]
    notes = [f"{file}: {listed(rewards)} is left out: psiphi learns without rewards."] if rewards else []
    return (*notes, *([f"{file}: {listed(others)} is not used."] if others else []))


def listed(names: Sequence[str], most: int = 12) -> str:
    """A few names in a sentence."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(printable.short(repr(name)) for name in names[:most]) + more if names else "nothing"
