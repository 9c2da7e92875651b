"""Positions of moving agents as demonstrations: what each saw of the others, and how it then changed its motion.

At a regular beat, an agent at P[i] that came from P[i-1] has the velocity v[i] = (P[i] - P[i-1]) / dt. Its action is how it moves on:
the acceleration (v[i+1] - v[i]) / dt, along its heading ("acc") and to its left ("lat"). So an observation knows nothing of the action
that follows it, and position, velocity and action together give the next position.
"""

import os
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from psiphi import configs, doors, limits
from psiphi.configs import Positive, Within
from psiphi.demos import rows as raw
from psiphi.demos import validate
from psiphi.demos.columns import Columns, find, listed
from psiphi.demos.demonstrations import Demonstrations
from psiphi.demos.discretiser import Discretiser, Recipe
from psiphi.demos.rows import Ids, Rows
from psiphi.errors import UserError

MOTIONS = ("acc", "lat", "turn", "speed", "ax", "ay", "vx", "vy")
"""What an action may be made of: acceleration along the heading and to its left, change of heading (rad/s), speed; and in the world's
axes acceleration and velocity. All are those of the step that follows."""

STILL = 0.2
"""Below this speed, in units of length per second, a displacement says nothing about where an agent looks."""

SLACK = 1e-6
"""Of a beat: times that differ by less are the same."""

PAIRS = 1_000_000
"""Pairs of agents that are looked at together."""


@dataclass(frozen=True)
class Motion:
    """How positions become observations and actions."""

    unit: Positive = 1.0
    """Seconds in one unit of the time column: 0.1 if it counts frames of a tenth of a second."""
    hz: Positive | None = None
    """Steps per second to resample to; None: as recorded."""
    frame: Literal["ego", "world"] = "ego"
    """What the observation is relative to: the agent's place and heading, or the axes of the recording."""
    moves: str = ""
    """What an action is made of, of acc, lat, turn, speed, ax, ay, vx, vy; empty: acc,lat, or ax,ay in the world's frame."""
    nearest: Annotated[int, Within(0, 64)] = 4
    """How many of the nearest others are seen, each with relative position and velocity."""
    reach: Positive = 50.0
    """No agent sees farther than this, in units of length."""
    lane: Positive = 1.8
    """Who is ahead and not farther to the side than this is followed: the leader."""
    before: bool = False
    """Whether the observation says what was done in the step before."""
    bridge: Positive | None = None
    """Gaps of up to so many seconds are bridged by a straight line; None: of less than one and a half usual steps."""

    def __post_init__(self):
        configs.check(self)
        if strange := [name for name in self.actions if name not in MOTIONS]:
            raise UserError(f"moves is {self.moves!r}, expected some of {', '.join(MOTIONS)}, not {strange[0]!r}.")

    @property
    def actions(self) -> tuple[str, ...]:
        usual = ("acc", "lat") if self.frame == "ego" else ("ax", "ay")
        return tuple(dict.fromkeys(part.strip() for part in self.moves.split(",") if part.strip())) or usual


class Tracks(NamedTuple):
    """Points of moving agents at a regular beat, piece after piece; a piece is a track without a gap."""

    piece: np.ndarray
    """int64[N]"""
    beat: np.ndarray
    """int64[N]: time, counted in steps; the same for all agents of a scene."""
    row: np.ndarray
    """int64[N]: the row of the file last seen before."""
    position: np.ndarray
    """``[N, 2]``"""
    heading: np.ndarray | None
    """[N]: in radians, where the file has it."""
    step: float
    """Seconds from a beat to the next."""


def from_tracks(
    source: Any,
    *,
    id: str = "id",
    scene: str = "none",
    t: str = "t",
    x: str = "x",
    y: str = "y",
    heading: str = "",
    obs: str = "",
    agent: str = "",
    group: str = "",
    motion: Motion | None = None,
    actions: Discretiser | Recipe | None = None,
    kept: dict[str, float] | None = None,
    progress: bool = False,
) -> Demonstrations:
    """Demonstrations from positions: a file (CSV, Parquet, npz), or columns by name (a dictionary of arrays, a data frame).

    `id` says who moves, `scene` who could see each other; each may be several columns ("scene,car"). `agent` says whose wants are asked
    for: `id` unless said otherwise, "none" for one agent. Columns in `obs` are seen as they are. Continuous actions are made discrete by
    `actions`, a `Discretiser` or the `Recipe` for one (nine clusters unless said otherwise); `kept` is told what share of their variance
    is left. `group` keeps episodes together in `split`.
    """
    motion, extra = motion or Motion(), _listing(obs)
    numbers = (x, y, *([heading] if heading else []), *extra)
    found = _read(source, Columns(agent=id, episode=scene, t=t, obs=",".join(numbers), action="", group="none", dtype="float64"), progress)
    labels = None
    if agent not in ("", id) or group:
        wanted = Columns(agent=agent or id, episode="none", t=t, obs=x, action="", group=group or "none", dtype="float64")
        labels = _read(source, wanted, progress)
    place = [found.names.index(name.removeprefix("obs_")) for name in numbers]
    points = _points(found._replace(obs=found.obs[:, place], names=numbers), motion)
    tracks = _resampled(points, motion, bool(heading))
    rows = _rows(points, tracks, motion, labels, extra, scene not in ("", "none"), agent not in ("", id))
    made = validate.checked(discretised(rows, actions or Recipe()))
    if kept is not None and made.discretiser is not None:
        kept.update(made.discretiser.variance_kept(rows.action[~raw.no_action(rows.action)]))
    return made


def discretised(rows: Rows, actions: Discretiser | Recipe) -> Rows:
    """Rows whose continuous actions are the nearest of a few."""
    if rows.discretiser is not None:
        raise UserError(f"{rows.file}: the actions are discrete already, they stand for {', '.join(rows.discretiser.columns)}.")
    if not rows.numbered:
        raise UserError(f"{rows.file}: the actions are names, {listed(rows.action_names)}, expected numbers: names are discrete already.")
    columns = rows.action_columns
    values = rows.action if rows.action.ndim == 2 else rows.action[:, None]
    known = ~np.isnan(values).any(1)
    if not known.any():
        raise UserError(f"{rows.file}: no row has an action, expected numbers in {listed(columns)}.")
    if np.isinf(values).any():
        row, column = np.argwhere(np.isinf(values))[0]
        raise UserError(f"{rows.file}: the action's {columns[column]!r} is {values[row, column]} in row {row}, expected a finite number.")
    cut = actions if isinstance(actions, Discretiser) else actions.fit(values[known], columns)
    if cut.columns != tuple(columns):
        raise UserError(f"{rows.file}: the action is {listed(columns)}, expected {listed(cut.columns)} as the discretiser knows it.")
    action = np.full(len(values), np.nan)
    action[known] = cut.transform(values[known])
    return rows._replace(action=action, discretiser=cut, action_names=cut.names, num_actions=cut.num_actions, action_columns=("action",))


def _listing(names: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in names.split(",") if part.strip())


# --- Reading -------------------------------------------------------------------------------------------------------------


def _read(source: Any, columns: Columns, progress: bool) -> Rows:
    """The columns of a file or a table, without actions."""
    if isinstance(source, str | os.PathLike):
        from psiphi.demos import files

        path = doors.path(source, "The file")
        if path.is_dir() or (path.exists() and path.suffix.lower() not in files.FORMATS):
            raise UserError(f"{path} is no table of tracks, expected a .csv, .parquet or .npz file.")
        rows = files.read_rows(path, columns, progress=progress)
    else:
        rows = _from_columns(source, columns)
    if rows.flaws:
        flaw = rows.flaws[0]
        more = f" (and {len(rows.flaws) - 1:,} further cells)" if len(rows.flaws) > 1 else ""
        raise UserError(f"{rows.file}: in row {flaw.row}, {flaw.text}{more}.")
    if rows.t is None:
        raise UserError(f"{rows.file} has no column {columns.t!r} for the time; --t names it.")
    for role, ids in (("agent", rows.agent), ("scene", rows.episode)):
        if (ids.codes < 0).any():
            raise UserError(f"{rows.file}: row {np.flatnonzero(ids.codes < 0)[0]} does not say which {role} it is of, expected a name.")
    return rows


def _from_columns(table: Any, columns: Columns) -> Rows:
    """Columns by name: a dictionary of arrays, a data frame."""
    if not hasattr(table, "keys") or not hasattr(table, "__getitem__"):
        raise UserError(f"The tracks are {doors.called(table)}, expected a file, or columns by name.")
    found = find("the table", [str(name) for name in table.keys()], columns)
    arrays = {name: np.asarray(table[name]) for name in found.read}
    size = len(arrays[found.obs[0]])
    for name, array in arrays.items():
        if array.shape != (size,):
            raise UserError(f"The tracks' {name!r} has the shape {array.shape}, expected ({size},).")
        if name not in found.ids and array.dtype.kind not in "biuf":
            raise UserError(f"The tracks' {name!r} is of type {array.dtype}, expected numbers.")
    ids = {name: _ids(name, arrays[name]) for name in found.ids}
    return Rows(
        file="the table",
        obs=np.stack([arrays[name].astype(np.float64) for name in found.obs], axis=1),
        names=found.names,
        action=np.full(size, np.nan),
        agent=raw.combined([ids[name] for name in found.agent], size, "all"),
        episode=raw.combined([ids[name] for name in found.episode], size, 0),
        group=raw.combined([ids[name] for name in found.group], size, 0) if found.group else None,
        t=None if found.t is None else arrays[found.t].astype(np.float64),
    )


def _ids(name: str, values: np.ndarray) -> Ids:
    if values.dtype.kind == "f":
        return raw.whole_numbers("the table", name, values)
    if values.dtype.kind in "iu":
        return raw.coded(values.astype(np.int64))
    words = np.array([value if isinstance(value, str) else "" for value in values.tolist()], object)
    return raw.coded(words, words == "")


# --- Points in order, at a regular beat ----------------------------------------------------------------------------------


class Points(NamedTuple):
    """The rows of a file that say where an agent is, track after track."""

    rows: Rows
    order: np.ndarray
    """int64[N]: the row of each point."""
    piece: np.ndarray
    """int64[N]: the number of its piece, a track without a gap."""
    seconds: np.ndarray
    usual: float
    """Seconds from a point to the next."""
    notes: tuple[str, ...]


def _points(rows: Rows, motion: Motion) -> Points:
    """Sort the rows by scene, agent and time, and cut tracks where something is missing."""
    assert rows.t is not None
    sound = np.isfinite(rows.obs).all(1) & np.isfinite(rows.t)
    notes = [f"{rows.file}: {(~sound).sum():,} rows without a time or a place are left out."] if not sound.all() else []
    order = np.flatnonzero(sound)
    order = order[np.lexsort((rows.t[order], rows.agent.codes[order], rows.episode.codes[order]))]
    if not len(order):
        raise UserError(f"{rows.file} has no row with a time and a place, expected at least three.")
    seconds = rows.t[order] * motion.unit
    track = rows.agent.codes[order].astype(np.int64) * len(rows.episode.names) + rows.episode.codes[order]
    new = np.diff(track, prepend=-1) != 0
    gap = np.where(new, np.inf, np.diff(seconds, prepend=seconds[0]))
    if (gap == 0).any():
        _refuse_twice(rows, order, np.flatnonzero(gap == 0))
    inside = gap[~new]
    if not len(inside):
        raise UserError(f"{rows.file} has one point of each track, expected at least three: --id names who moves, --scene where.")
    usual = float(np.median(inside))
    broken = ~new & (gap > (motion.bridge or 1.5 * usual) * (1 + 1e-9))
    if broken.any():
        tracks = len(np.unique(track[broken]))
        notes.append(f"{rows.file}: {tracks:,} tracks have {broken.sum():,} gaps in time, at which they become several episodes.")
    return Points(rows, order, np.cumsum(new | broken) - 1, seconds, usual, tuple(notes))


def _refuse_twice(rows: Rows, order: np.ndarray, places: np.ndarray) -> None:
    assert rows.t is not None
    first = order[places[0]]
    who, where = rows.agent.names[rows.agent.codes[first]], rows.episode.names[rows.episode.codes[first]]
    more = f" (and so at {len(places) - 1:,} further points)" if len(places) > 1 else ""
    scene = f" of scene {where!r}" if len(rows.episode.names) > 1 else ""
    raise UserError(
        f"{rows.file}: agent {who!r}{scene} has two rows for the time {rows.t[first]:g}, {order[places[0] - 1]} and {first}{more}, "
        "expected one; --scene or further columns in --id tell them apart."
    )


def _resampled(points: Points, motion: Motion, heading: bool) -> Tracks:
    """Places at a regular beat, by straight lines between those recorded. All agents of a scene share the beat."""
    rows, step = points.rows, points.usual if motion.hz is None else 1 / motion.hz
    scene = rows.episode.codes[points.order]
    begins = np.full(len(rows.episode.names), np.inf)
    np.minimum.at(begins, scene, points.seconds)
    since = (points.seconds - begins[scene]) / step
    cuts = np.append(np.flatnonzero(np.diff(points.piece, prepend=-1)), len(points.piece))
    first, last = np.ceil(since[cuts[:-1]] - SLACK).astype(np.int64), np.floor(since[cuts[1:] - 1] + SLACK).astype(np.int64)
    size = np.maximum(last - first + 1, 0)
    limits.check_memory("The resampled tracks", int(size.sum()) * 64)
    piece = np.repeat(np.arange(len(size)), size)
    beat = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size) + np.repeat(first, size)
    columns = [rows.obs[points.order, j] for j in range(2 + heading)]
    row, values = np.empty(len(beat), np.int64), np.empty((2 + heading, len(beat)))
    ends = np.cumsum(size)
    for i, (a, b) in enumerate(zip(cuts[:-1], cuts[1:], strict=True)):
        here = slice(ends[i] - size[i], ends[i])
        row[here] = points.order[np.maximum(a + np.searchsorted(since[a:b], beat[here] + SLACK, side="right") - 1, a)]
        for j, column in enumerate(columns):
            known = np.unwrap(column[a:b]) if j == 2 else column[a:b]
            values[j, here] = np.interp(beat[here], since[a:b], known)
    return Tracks(piece, beat, row, values[:2].T, values[2] if heading else None, step)


# --- Motion --------------------------------------------------------------------------------------------------------------


class Moving(NamedTuple):
    """How each point moves."""

    velocity: np.ndarray
    """``[N, 2]``: from the point before; at the first of a piece, to the next."""
    heading: np.ndarray
    """[N]: in radians, where it looks; of who stands, where it last went."""
    has_before: np.ndarray
    """bool[N]: whether the piece has a point before, and so on."""
    has_next: np.ndarray


def moving(tracks: Tracks) -> Moving:
    """Velocities and headings by what was before."""
    piece, N = tracks.piece, len(tracks.piece)
    first, last = np.diff(piece, prepend=-1) != 0, np.diff(piece, append=-1) != 0
    velocity = np.zeros((N, 2))
    velocity[1:] = np.diff(tracks.position, axis=0) / tracks.step
    start = np.flatnonzero(first)
    velocity[start] = np.where(last[start, None], 0.0, velocity[np.minimum(start + 1, N - 1)])
    heading = _course(velocity, piece) if tracks.heading is None else tracks.heading
    return Moving(velocity, heading, ~first, ~last)


def _course(velocity: np.ndarray, piece: np.ndarray) -> np.ndarray:
    """Where each point was last seen going; before it first moves, where it then goes; 0 if it never does."""
    N = len(piece)
    goes = np.hypot(*velocity.T) > STILL
    index = np.arange(N)
    before = np.maximum.accumulate(np.where(goes, index, -1))
    after = np.minimum.accumulate(np.where(goes, index, N)[::-1])[::-1]
    chosen = np.where((before >= 0) & (piece[before] == piece), before, np.where(after < N, after, index))
    chosen = np.where(piece[chosen] == piece, chosen, index)
    return np.where(goes[chosen], np.arctan2(velocity[chosen, 1], velocity[chosen, 0]), 0.0)


def motions(tracks: Tracks, how: Moving) -> dict[str, np.ndarray]:
    """What each point does next, by the names in `MOTIONS`; NaN at the last of a piece."""
    after = np.minimum(np.arange(len(tracks.piece)) + 1, len(tracks.piece) - 1)
    velocity = how.velocity[after]
    change = (velocity - how.velocity) / tracks.step
    along, across = _turned(change, how.heading)
    turn = np.angle(np.exp(1j * (how.heading[after] - how.heading))) / tracks.step
    found = {"acc": along, "lat": across, "turn": turn, "speed": np.hypot(*velocity.T)}
    found |= {"ax": change[:, 0], "ay": change[:, 1], "vx": velocity[:, 0], "vy": velocity[:, 1]}
    return {name: np.where(how.has_next, values, np.nan) for name, values in found.items()}


def _turned(vectors: np.ndarray, heading: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``[..., 2]`` vectors as parts ahead and to the left of who looks along `heading`."""
    cos, sin = np.cos(heading), np.sin(heading)
    return vectors[..., 0] * cos + vectors[..., 1] * sin, vectors[..., 1] * cos - vectors[..., 0] * sin


# --- What is seen of the others ------------------------------------------------------------------------------------------


def others(tracks: Tracks, how: Moving, scene: np.ndarray, motion: Motion) -> tuple[np.ndarray, list[str]]:
    """``[N, columns]`` and their names: the nearest others at the same time in the same scene, and in the own frame the leader.

    Of others that are not there, the distance is `reach` and all else 0.
    """
    names = _other_names(motion)
    result = np.zeros((len(scene), len(names)), np.float32)
    order = np.lexsort((tracks.beat, scene))
    cuts = np.flatnonzero((np.diff(scene[order], prepend=-1) != 0) | (np.diff(tracks.beat[order], prepend=-1) != 0))
    size = np.diff(np.append(cuts, len(order)))
    for m in np.unique(size):
        group = order[cuts[size == m][:, None] + np.arange(m)]  # [moments, m]: all moments with so many agents
        at_once = max(PAIRS // int(m * m), 1)
        for i in range(0, len(group), at_once):
            some = group[i : i + at_once]
            result[some] = _seen(tracks.position[some], how.velocity[some], how.heading[some], motion)
    return result, names


def _other_names(motion: Motion) -> list[str]:
    parts = ("distance", "ahead", "left", "v_ahead", "v_left") if motion.frame == "ego" else ("distance", "x", "y", "vx", "vy")
    near = [f"near{k}_{part}" for k in range(1, motion.nearest + 1) for part in parts]
    return [*(["leader_gap", "leader_v"] if motion.frame == "ego" else []), *near]


def _seen(position: np.ndarray, velocity: np.ndarray, heading: np.ndarray, motion: Motion) -> np.ndarray:
    """``[moments, m, columns]`` for all m agents of some moments."""
    away, drift = position[:, None] - position[:, :, None], velocity[:, None] - velocity[:, :, None]  # [moments, who, whom, 2]
    distance = np.hypot(away[..., 0], away[..., 1])
    m = distance.shape[1]
    distance[:, np.arange(m), np.arange(m)] = np.inf
    if motion.frame == "ego":
        parts = np.stack([*_turned(away, heading[..., None]), *_turned(drift, heading[..., None])], axis=-1)
    else:
        parts = np.concatenate([away, drift], axis=-1)
    near = np.argsort(distance, axis=-1, kind="stable")[..., : motion.nearest]
    columns = np.zeros((*distance.shape[:2], motion.nearest, 5))
    columns[..., 0] = motion.reach
    there = np.take_along_axis(distance, near, -1) <= motion.reach
    columns[..., : near.shape[-1], 0] = np.where(there, np.take_along_axis(distance, near, -1), motion.reach)
    columns[..., : near.shape[-1], 1:] = np.where(there[..., None], np.take_along_axis(parts, near[..., None], 2), 0.0)
    flat = columns.reshape(*distance.shape[:2], -1)
    if motion.frame != "ego":
        return flat
    ahead = (parts[..., 0] > 0) & (np.abs(parts[..., 1]) <= motion.lane) & np.isfinite(distance)
    gap = np.where(ahead & (parts[..., 0] <= motion.reach), parts[..., 0], np.inf)
    leader = np.argmin(gap, axis=-1)[..., None]
    follows = np.isfinite(np.take_along_axis(gap, leader, -1))
    chosen = [np.take_along_axis(values, leader, -1) for values in (gap, parts[..., 2])]
    leading = [np.where(follows, values, absent) for values, absent in zip(chosen, (motion.reach, 0.0), strict=True)]
    return np.concatenate([*leading, flat], axis=-1)


# --- From motion to rows -------------------------------------------------------------------------------------------------


def _rows(points: Points, tracks: Tracks, motion: Motion, labels: Rows | None, extra: tuple[str, ...], scenes: bool, renamed: bool) -> Rows:
    """A row for each point that has one before, with what it then does; the last of a piece is only an observation."""
    rows, how = points.rows, moving(tracks)
    done, seen_as = motions(tracks, how), {}
    if motion.frame == "ego":
        seen_as["speed"] = np.hypot(*how.velocity.T)
    else:
        seen_as |= dict(zip(("x", "y", "vx", "vy"), (*tracks.position.T, *how.velocity.T), strict=True))
    before = how.has_before
    if motion.before:
        previous = np.maximum(np.arange(len(before)) - 1, 0)
        before = before & before[previous]
        seen_as |= {f"{name}_before": done[name][previous] for name in motion.actions}
    seen_as |= {name: rows.obs[tracks.row, rows.names.index(name)] for name in extra}
    size = np.bincount(tracks.piece[before], minlength=points.piece[-1] + 1)
    keep = before & (size[tracks.piece] >= 2)
    needed = 4 if motion.before else 3
    dropped = int((size < 2).sum())
    notes = (f"{rows.file}: {dropped:,} of {len(size):,} tracks have fewer than {needed} points and are left out.",) if dropped else ()
    if not keep.any():
        raise UserError(f"{rows.file} has no track of {needed} points {tracks.step:g} s apart, expected at least one.")
    around, names = others(tracks, how, rows.episode.codes[tracks.row].astype(np.int64), motion)
    obs = np.concatenate([np.stack(list(seen_as.values()), 1)[keep], around[keep]], axis=1).astype(np.float32)
    row = tracks.row[keep]
    who = rows.agent if labels is None else labels.agent
    group = None if labels is None or labels.group is None else Ids(labels.group.codes[row], labels.group.names)
    return Rows(
        file=rows.file,
        obs=obs,
        names=(*seen_as, *names),
        action=np.stack([done[name][keep] for name in motion.actions], axis=1),
        agent=Ids(who.codes[row], who.names),
        episode=_episodes(points, tracks.piece[keep], row, scenes, renamed),
        t=tracks.beat[keep].astype(np.float64),
        notes=(*points.notes, *notes),
        action_columns=motion.actions,
        group=group,
    )


def _episodes(points: Points, piece: np.ndarray, row: np.ndarray, scenes: bool, renamed: bool) -> Ids:
    """What each piece is called: by its scene, and who moves if that is not the agent; numbered where a track has several."""
    rows = points.rows
    start = points.order[np.flatnonzero(np.diff(points.piece, prepend=-1))]
    track = rows.agent.codes[start].astype(np.int64) * len(rows.episode.names) + rows.episode.codes[start]
    number = np.arange(len(track)) - np.flatnonzero(np.diff(track, prepend=-1))[np.cumsum(np.diff(track, prepend=-1) != 0) - 1]
    if not scenes and not renamed:
        return raw.coded(number[piece])
    parts = [rows.episode.names[rows.episode.codes[start]].tolist()] if scenes else []
    parts += [rows.agent.names[rows.agent.codes[start]].tolist()] if renamed else []
    names = ["/".join(map(str, some)) for some in zip(*parts, strict=True)]
    numbered = [name if n == 0 else f"{name}#{n + 1}" for name, n in zip(names, number.tolist(), strict=True)]
    return raw.coded(np.array(numbered, object)[piece])
