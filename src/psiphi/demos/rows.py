"""A log as it was found, a row per step and nothing believed yet; and how it becomes episodes."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from psiphi import doors, limits
from psiphi.demos.columns import entry_names, kept_dtype
from psiphi.demos.demonstrations import Demonstrations, Episodes, PerEpisode
from psiphi.demos.discretiser import Discretiser
from psiphi.errors import UserError

CHUNK = 65_536
"""Rows moved or looked at together."""


class Ids(NamedTuple):
    """A column of names."""

    codes: np.ndarray
    """int32[N]: which name; -1 where there is none."""
    names: np.ndarray
    """The different names, int64 or str, in the order of their first appearance."""


class Flaw(NamedTuple):
    """Something in one row that could not be read."""

    row: int
    kind: str
    text: str


class Rows(NamedTuple):
    """What a reader found. A row without an action that is the last of its episode is only an observation, that after the last step."""

    file: str
    obs: np.ndarray
    """[N, ...]"""
    names: tuple[str, ...]
    action: np.ndarray
    """float64[N], or ``[N, C]`` where an action is several numbers or said to be continuous; NaN where there is none."""
    agent: Ids
    episode: Ids
    t: np.ndarray | None = None
    """float64[N]"""
    terminated: np.ndarray | None = None
    """bool[N]"""
    truncated: np.ndarray | None = None
    """bool[N]"""
    final_obs: np.ndarray | None = None
    """[F, ...]: observations after some of the rows, where they are kept apart."""
    final_row: np.ndarray | None = None
    """int64[F]: after which row."""
    flaws: tuple[Flaw, ...] = ()
    notes: tuple[str, ...] = ()
    num_actions: int | None = None
    ends: Literal["truncated", "terminated"] = "truncated"
    action_columns: tuple[str, ...] = ("action",)
    """What the numbers of an action are called."""
    action_names: tuple[str, ...] = ()
    discretiser: Discretiser | None = None
    numbered: bool = True
    """Whether actions came as numbers; names are numbered in alphabetical order."""
    group: Ids | None = None
    """Which rows must stay together when some are held out."""


class Layout(NamedTuple):
    """The rows of each episode: `order[start[e]:start[e + 1]]` (or the numbers themselves, if there is no `order`)."""

    order: np.ndarray | None
    start: np.ndarray
    agent: np.ndarray
    """int32[E]: code of the agent."""
    episode: np.ndarray
    """int32[E]: code of the episode."""

    def column(self, values: np.ndarray) -> np.ndarray:
        """A column in the order of the episodes."""
        return values if self.order is None else values[self.order]


# --- Names ---------------------------------------------------------------------------------------------------------------


class Coder:
    """Gives each name a number, as names come."""

    def __init__(self):
        self.numbers: dict[str, int] = {}

    def codes(self, names: Iterable[str | None]) -> np.ndarray:
        """The numbers of names; None and the empty name are those of no agent."""
        numbers = self.numbers
        return np.array([-1 if not name else numbers.setdefault(name, len(numbers)) for name in names], np.int32)

    def ids(self, codes: np.ndarray, *, numeric: bool = False) -> Ids:
        """The whole column. With `numeric`, names that are all written as whole numbers become numbers."""
        names = list(self.numbers)
        if numeric and names and all(_is_whole(name) for name in names):
            return Ids(codes, np.array([int(name) for name in names], np.int64))
        return Ids(codes, np.array(names, object))


def _is_whole(name: str) -> bool:
    digits = name.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 19 and str(int(name)) == name


def coded(values: np.ndarray, missing: np.ndarray | None = None) -> Ids:
    """A column of integers or strings as `Ids`. Fast where equal values stand together, as the rows of an episode do."""
    if missing is not None and missing.any():
        some = coded(values[~missing])
        codes = np.full(len(values), -1, np.int32)
        codes[~missing] = some.codes
        return Ids(codes, some.names)
    if not len(values):
        return Ids(np.zeros(0, np.int32), np.zeros(0, np.int64))
    starts = np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1])
    names, first, inverse = np.unique(values[starts], return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order))
    codes = np.repeat(rank[inverse], np.diff(starts, append=len(values)))
    return Ids(codes, names[order].astype(np.int64 if names.dtype.kind in "iu" else object))


def combined(columns: Sequence[Ids], rows: int, alone: str | int) -> Ids:
    """Several columns of names as one key, "scene/car"; no column at all is one name for all rows."""
    if not columns:
        return Ids(np.zeros(rows, np.int32), np.array([alone], np.int64 if isinstance(alone, int) else object))
    whole = columns[0]
    for ids in columns[1:]:
        missing = (whole.codes < 0) | (ids.codes < 0)
        pairs = coded(whole.codes.astype(np.int64) * max(len(ids.names), 1) + ids.codes, missing)
        first, second = pairs.names // max(len(ids.names), 1), pairs.names % max(len(ids.names), 1)
        names = [f"{a}/{b}" for a, b in zip(whole.names[first].tolist(), ids.names[second].tolist(), strict=True)]
        whole = Ids(pairs.codes, np.array(names, object))
    return whole


def together(actions: Sequence[np.ndarray], rows: int) -> np.ndarray:
    """Columns of actions as `Rows` hold them."""
    if not actions:
        return np.full(rows, np.nan)
    return actions[0] if len(actions) == 1 else np.stack(actions, axis=1)


def by_name(file: str, actions: Ids, num_actions: int | None) -> dict[str, Any]:
    """Actions that came as names, as fields of `Rows`: they are numbered in alphabetical order."""
    if num_actions not in (None, len(actions.names)):
        raise UserError(f"{file} names {len(actions.names)} different actions, but num_actions is {num_actions}; expected as many.")
    limits.check_most(f"{file} has too many different names of actions", len(actions.names), limits.MOST_NAMED_ACTIONS)
    names = sorted(str(name) for name in actions.names)
    rank = {name: place for place, name in enumerate(names)}
    numbers = np.array([rank[str(name)] for name in actions.names] + [np.nan])  # the last one is for rows without an action
    return {"action": numbers[actions.codes], "action_names": tuple(names), "num_actions": len(names), "numbered": False}


def no_action(action: np.ndarray) -> np.ndarray:
    """bool[N]: where there is no action."""
    return np.isnan(action) if action.ndim == 1 else np.logical_or.reduce(np.isnan(action), axis=1)


def whole_numbers(file: str, role: str, values: np.ndarray) -> Ids:
    """Ids that came as floating-point numbers, as whole numbers do when some are missing."""
    missing = np.isnan(values)
    broken = ~missing & (values != np.floor(values))
    if broken.any():
        found = values[np.flatnonzero(broken)[0]]
        raise UserError(f"{file}: the {role} of row {np.flatnonzero(broken)[0]} is {found}, expected a name or a whole number.")
    return coded(np.where(missing, 0, values).astype(np.int64), missing)


# --- From rows to episodes -----------------------------------------------------------------------------------------------


def layout(rows: Rows) -> Layout:
    """Which rows make which episode, in the order of their first rows; rows of no agent are in none."""
    known = (rows.agent.codes >= 0) & (rows.episode.codes >= 0)
    keys = rows.agent.codes.astype(np.int64) * max(len(rows.episode.names), 1) + rows.episode.codes
    order = None if known.all() else np.flatnonzero(known)
    group = coded(keys if order is None else keys[order]).codes
    t = rows.t if rows.t is None or order is None else rows.t[order]
    same = group[1:] == group[:-1]
    if (np.diff(group) < 0).any() or (t is not None and (same & (np.diff(t) < 0)).any()):
        inner = np.argsort(group, kind="stable") if t is None else np.lexsort((t, group))
        order, group = (inner if order is None else order[inner]), group[inner]
    start = np.flatnonzero(np.diff(group, prepend=-1, append=-1)) if len(group) else np.zeros(1, np.int64)
    first = start[:-1] if order is None else order[start[:-1]]
    return Layout(order, start, rows.agent.codes[first], rows.episode.codes[first])


def closing(rows: Rows, where: Layout) -> np.ndarray:
    """int64: the places, in the layout's order, of rows that are only the observation after the last step."""
    last = where.start[1:] - 1
    return last[no_action(where.column(rows.action)[last]) & (np.diff(where.start) > 1)]


def build(rows: Rows, where: Layout) -> Demonstrations:
    """Demonstrations from rows without errors. Takes over `rows.obs`: a large log is not copied if its rows are in order."""
    shut = closing(rows, where)
    E = len(where.agent)
    has_final, final_obs = np.zeros(E, bool), np.zeros((E, *rows.obs.shape[1:]), rows.obs.dtype)
    episode_of = np.searchsorted(where.start, shut, side="right") - 1
    has_final[episode_of] = True
    final_obs[episode_of] = rows.obs[shut if where.order is None else where.order[shut]]
    if rows.final_obs is not None and rows.final_row is not None:
        place = rows.final_row if where.order is None else np.argsort(where.order)[rows.final_row]
        owner = np.searchsorted(where.start, place, side="right") - 1
        has_final[owner], final_obs[owner] = True, rows.final_obs
    keep = np.ones(where.start[-1], bool)
    keep[shut] = False
    lengths = np.diff(where.start)
    lengths[episode_of] -= 1
    action = where.column(rows.action)[keep].astype(np.int32)
    used = np.unique(where.agent, return_index=True)
    agents = used[0][np.argsort(used[1])]
    rank = np.zeros(max(len(rows.agent.names), 1), np.int32)
    rank[agents] = np.arange(len(agents))
    return Demonstrations(
        obs=_gathered(rows.obs, where.order, keep),
        action=action,
        agents=tuple(rows.agent.names[agents].tolist()),
        episodes=Episodes(
            np.concatenate([[0], np.cumsum(lengths)]),
            rank[where.agent],
            rows.episode.names[where.episode],
            terminated=_ended(rows, where, "terminated"),
            truncated=_ended(rows, where, "truncated"),
            final_obs=final_obs,
            has_final=has_final,
        ),
        num_actions=rows.num_actions or int(action.max()) + 1,
        names=rows.names,
        notes=rows.notes if rows.numbered else (*rows.notes, _numbering(rows)),
        action_names=rows.action_names,
        discretiser=rows.discretiser,
        numbered=rows.numbered,
        **_groups(rows, where),
    )


def _numbering(rows: Rows) -> str:
    some = ", ".join(f"{name!r} {number}" for number, name in enumerate(rows.action_names[:12]))
    return f"{rows.file}: the actions are names, numbered in alphabetical order: {some}{' ...' if len(rows.action_names) > 12 else ''}."


def _groups(rows: Rows, where: Layout) -> dict[str, Any]:
    """Which episodes stay together; of groups that have no episode nothing is kept."""
    if rows.group is None or (rows.group.codes < 0).all():
        return {}
    ids = Ids(where.column(rows.group.codes)[where.start[:-1]], rows.group.names)
    used, codes = np.unique(ids.codes[ids.codes >= 0], return_inverse=True)
    group = np.full(len(ids.codes), -1, np.int32)
    group[ids.codes >= 0] = codes
    return {"groups": tuple(ids.names[used].tolist()), "group": group}


def _ended(rows: Rows, where: Layout, why: Literal["truncated", "terminated"]) -> np.ndarray:
    """bool[E]: which episodes end so. Where the log has no flag at all, `rows.ends` decides."""
    if rows.terminated is None and rows.truncated is None:
        return np.full(len(where.agent), rows.ends == why)
    flags = rows.terminated if why == "terminated" else rows.truncated
    if flags is None:
        return np.zeros(len(where.agent), bool)
    return np.logical_or.reduceat(where.column(flags), where.start[:-1])


def _gathered(obs: np.ndarray, order: np.ndarray | None, keep: np.ndarray) -> np.ndarray:
    """The kept rows in order; moved together within `obs` itself where they are in order already."""
    if order is not None:
        return obs[order[keep]]
    if keep.all():
        return obs
    index, done = np.flatnonzero(keep), 0
    for first in range(0, len(index), CHUNK):
        part = index[first : first + CHUNK]
        obs[done : done + len(part)] = obs[part]  # never ahead of where it comes from
        done += len(part)
    return obs[:done]


# --- Plain lists ---------------------------------------------------------------------------------------------------------


def from_lists(
    observations: PerEpisode,
    actions: PerEpisode,
    agents: PerEpisode,
    episodes: PerEpisode | None,
    terminated: PerEpisode | None,
    truncated: PerEpisode | None,
    num_actions: int | None,
    names: tuple[str, ...],
    file: str = "the lists",
    notes: tuple[str, ...] = (),
    groups: PerEpisode | None = None,
) -> Rows:
    """Rows from one entry per episode; an episode's observations are as many as its actions or one more."""
    for name, column in {"observations": observations, "actions": actions, "agents": agents}.items():
        if isinstance(column, str | bytes | dict) or not hasattr(column, "__len__"):
            raise UserError(f"The {name} are {doors.called(column)}, expected a list with one entry per episode.")
    episodes = _numbered(agents) if episodes is None else episodes
    columns = {"observations": observations, "actions": actions, "agents": agents, "episodes": episodes}
    columns |= {
        name: flags for name, flags in (("terminated", terminated), ("truncated", truncated), ("groups", groups)) if flags is not None
    }
    if len({len(column) for column in columns.values()}) > 1 or not len(agents):
        found = ", ".join(f"{len(column)} {name}" for name, column in columns.items())
        raise UserError(f"Expected one entry per episode, and at least one, but found {found}.")
    seen, acted, flaws, row = [], [], [], 0
    shape, dtype = _usual(observations)
    for some, done in zip(observations, actions, strict=True):
        obs, action, flaw = _episode(some, done, shape)
        flaws += [Flaw(row, *found) for found in flaw]
        seen.append(obs.astype(dtype, copy=False))
        acted.append(action)
        row += len(obs)
    rows_of = np.array([len(obs) for obs in seen])
    last = np.cumsum(rows_of) - 1
    flags = [None if given is None else _at(last, row, given) for given in (terminated, truncated)]
    who, which = (_repeated(values, rows_of) for values in (agents, episodes))
    names = names or entry_names(shape)
    t = np.concatenate([np.arange(n, dtype=np.float64) for n in rows_of])  # so that an episode given twice is noticed
    obs, action = np.concatenate(seen), np.concatenate(acted)
    group = None if groups is None else _repeated(groups, rows_of)
    rest: dict[str, Any] = {"flaws": tuple(flaws), "notes": notes, "num_actions": num_actions, "group": group}
    return Rows(file, obs, names, action, who, which, t, flags[0], flags[1], **rest)


def are_names(actions: PerEpisode) -> bool:
    """Whether the first action that there is came as a name."""
    first = next((some for some in actions if hasattr(some, "__len__") and len(some)), None)
    return first is not None and not isinstance(first, str | bytes) and isinstance(np.asarray(first, object).flat[0], str)


def names_in(actions: PerEpisode) -> tuple[str, ...]:
    """All names of actions, in alphabetical order."""
    return tuple(sorted({str(name) for some in actions for name in np.asarray(some, object).flat}))


def numbers_of(actions: PerEpisode, names: Sequence[str]) -> list[np.ndarray]:
    """Names of actions as places in `names`."""
    place = {name: number for number, name in enumerate(names)}
    strange = [name for some in actions for name in np.asarray(some, object).flat if name not in place]
    if strange:
        raise UserError(f"An action is {strange[0]!r}, expected one of {', '.join(map(repr, names))}.")
    return [np.array([place[name] for name in np.asarray(some, object).flat], np.int64) for some in actions]


def _numbered(agents: PerEpisode) -> list[int]:
    """Each agent's episodes from 0."""
    if any(not isinstance(agent, str | int | np.generic | None) for agent in agents):
        strange = next(agent for agent in agents if not isinstance(agent, str | int | np.generic | None))
        raise UserError(f"An agent's id is {doors.called(strange)}, expected a string or an integer.")
    seen: dict[Any, int] = {}
    return [seen.__setitem__(agent, seen.get(agent, -1) + 1) or seen[agent] for agent in agents]


def _usual(observations: PerEpisode) -> tuple[tuple[int, ...], np.dtype]:
    """The shape of an observation, and a type for all: the first that are numbers decide."""
    arrays = [array for array in map(_array, observations) if array is not None and array.ndim > 1 and len(array)]
    if not arrays:
        raise UserError("The observations of an episode are expected to be an array of numbers with the axes [step, ...], but none is.")
    dtype = np.result_type(*{array.dtype for array in arrays if array.shape[1:] == arrays[0].shape[1:]})
    return arrays[0].shape[1:], dtype if dtype.name in ("float64", "int32") else kept_dtype(dtype, None)


def _array(values: Any) -> np.ndarray | None:
    """An array of numbers, or nothing."""
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        return None
    return array if array.dtype.kind in "biuf" else None


def _episode(some: Any, done: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, list[tuple[str, str]]]:
    """One episode's observations and actions, made equally many; and what is wrong with it as a whole."""
    obs, action, flaws = _array(some), _array(done), []
    if action is None or action.ndim != 1:
        found = "no numbers" if action is None else f"an array of shape {action.shape}"
        flaws.append(
            (
                "actions of a wrong shape",
                f"the actions are {found}, expected one integer per step; psiphi.demos.Discretiser makes such",
            )
        )
        action = np.zeros(0 if obs is None else max(len(obs) - 1, 1))
    if obs is None or obs.shape[1:] != shape:
        found = "not an array of numbers" if obs is None else f"of shape {obs.shape[1:]}"
        flaws.append(("mixed observation shapes", f"an observation is {found}, expected the shape of the first episode's, {shape}"))
        obs = np.zeros((max(len(action), 1), *shape))
    if len(obs) - len(action) not in (0, 1) or not len(action):
        text = f"there are {len(obs)} observations and {len(action)} actions, expected some actions and as many or one more"
        flaws.append(("observations and actions that do not match", text))
        obs = np.zeros((max(len(action), 1), *shape))
    return obs, np.concatenate([action.astype(np.float64), np.full(len(obs) - len(action), np.nan)]), flaws


def _at(last: np.ndarray, rows: int, flags: PerEpisode) -> np.ndarray:
    result = np.zeros(rows, bool)
    result[last] = [bool(flag) for flag in flags]
    return result


def _repeated(values: PerEpisode, times: np.ndarray) -> Ids:
    """One id per episode as one per row. None and the empty string are no agent."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    kinds = {type(value) for value in plain if value is not None}
    if not kinds <= {str} and not kinds <= {int}:
        raise UserError(f"Ids are of the kinds {', '.join(sorted(kind.__name__ for kind in kinds))}; expected strings or integers.")
    missing = np.array([value is None or value == "" for value in plain])
    blank = "" if kinds <= {str} else 0
    ids = coded(np.array([blank if value is None else value for value in plain], object if kinds <= {str} else np.int64), missing)
    return Ids(np.repeat(ids.codes, times), ids.names)
