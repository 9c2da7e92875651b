"""Every problem of a log in one pass: errors that keep it out, warnings that a person should judge.

Errors are looked for in the rows as they were found (`errors`), warnings in demonstrations that are sound (`validate`).
"""

import dataclasses
import math
import shlex
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from psiphi import configs, limits
from psiphi.configs import Number, Share
from psiphi.demos import rows as raw
from psiphi.demos.demonstrations import Demonstrations, flattened
from psiphi.demos.problems import DemonstrationsError, Problem, per_episode
from psiphi.demos.rows import CHUNK, Layout, Rows
from psiphi.demos.summary import fingerprints, first_in_episode, twins
from psiphi.errors import UserError

LARGEST_ACTION = limits.MOST_ACTIONS - 1
MISTAKES = 10
"""So many different actions that are no whole numbers may be mistakes; more are continuous actions."""


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """From where on something is worth a warning."""

    few_steps: Number = 100
    """An agent with fewer steps than this has shown too little."""
    tail_steps: Number = 10
    """Fewer steps than this are no aimless tail."""
    tail_share: Share = 0.25
    """A smaller part of the episode than this is no aimless tail."""
    tail_new: Share = 0.5
    """In an aimless tail, at most this part of the observations is new in the episode."""
    head_new: Share = 0.75
    """Before an aimless tail, at least this part of the observations is new."""

    def __post_init__(self):
        configs.check(self)


def checked(rows: Rows) -> Demonstrations:
    """Demonstrations if there is no error; else all errors at once."""
    limits.check_most(f"{rows.file} has too many agents", len(rows.agent.names), limits.MOST_AGENTS)
    limits.check_most(f"{rows.file} has too many actions", rows.num_actions or 0, limits.MOST_ACTIONS)
    limits.check_most(f"{rows.file} has too large observations, in entries", math.prod(rows.obs.shape[1:]), limits.MOST_ENTRIES)
    if 0 in rows.obs.shape[1:]:
        raise UserError(f"{rows.file}: the observations have the shape {rows.obs.shape[1:]}, expected at least one entry.")
    where = raw.layout(rows)
    problems = errors(rows, where)
    if problems:
        raise DemonstrationsError(problems)
    return raw.build(rows, where)


# --- Errors --------------------------------------------------------------------------------------------------------------


class _Log(NamedTuple):
    """Rows in the order of their episodes."""

    rows: Rows
    where: Layout
    episode_of: np.ndarray
    """int64[n]: the episode of each place."""
    t: np.ndarray | None

    def row(self, place: int) -> int:
        return place if self.where.order is None else int(self.where.order[place])

    def locate(self, place: int) -> tuple[str | int | None, str | int | None, int | float | None]:
        """Agent, episode and step of a place."""
        e = self.episode_of[place]
        agent, episode = self.rows.agent.names[self.where.agent[e]], self.rows.episode.names[self.where.episode[e]]
        return _plain(agent), _plain(episode), self.step(place)

    def step(self, place: int) -> int | float:
        if self.t is None or np.isnan(self.t[place]):
            return int(place - self.where.start[self.episode_of[place]])
        return _number(self.t[place])

    def said(self, kind: str, places: np.ndarray, text: Callable[[int], str]) -> list[Problem]:
        return per_episode("error", kind, self.rows.file, places, self.episode_of[places], self.locate, text)


def errors(rows: Rows, where: Layout) -> list[Problem]:
    """Everything that keeps a log out."""
    if not len(rows.action):
        return [Problem("error", "nothing", rows.file, None, None, None, "there is no step in it, expected at least one")]
    episode_of = np.repeat(np.arange(len(where.agent)), np.diff(where.start))
    log = _Log(rows, where, episode_of, None if rows.t is None else where.column(rows.t))
    checks = (_missing_ids, _unreadable, _times, _actions, _groups, _ends, _finite)
    return [problem for check in checks for problem in check(log)]


def _missing_ids(log: _Log) -> list[Problem]:
    """Rows of no agent, or of no episode; named by the other id, as far as that is known."""
    found, t = [], log.rows.t
    for role, ids, other in (("agent", log.rows.agent, log.rows.episode), ("episode", log.rows.episode, log.rows.agent)):
        missing = np.flatnonzero(ids.codes < 0)

        def place(row: int, role: str = role, other: raw.Ids = other) -> tuple[str | int | None, str | int | None, int | float | None]:
            name = _plain(other.names[other.codes[row]]) if other.codes[row] >= 0 else None
            step = None if t is None or np.isnan(t[row]) else _number(float(t[row]))
            return (None, name, step) if role == "agent" else (name, None, step)

        text = f"the {role} is missing in row {{}}"
        found += per_episode("error", f"missing {role}", log.rows.file, missing, other.codes[missing], place, text.format)
    return found


def _unreadable(log: _Log) -> list[Problem]:
    """What the reader could not make sense of."""
    flaws = log.rows.flaws
    if not flaws:
        return []
    place = np.full(len(log.rows.action), -1)
    order = log.where.order
    if order is None:
        place = np.arange(len(place))
    else:
        place[order] = np.arange(len(order))
    found = []
    for kind in dict.fromkeys(flaw.kind for flaw in flaws):
        by_place = {int(place[flaw.row]): flaw for flaw in reversed(flaws) if flaw.kind == kind and place[flaw.row] >= 0}
        found += log.said(kind, np.array(sorted(by_place), np.int64), lambda p, by_place=by_place: by_place[p].text)
        lost = [flaw for flaw in flaws if flaw.kind == kind and place[flaw.row] < 0]
        found += [Problem("error", kind, log.rows.file, None, None, None, f"{f.text} (row {f.row})") for f in lost[:100]]
    return found


def _times(log: _Log) -> list[Problem]:
    """Missing, repeated and skipped times within an episode."""
    t = log.t
    if t is None:
        return []
    found = log.said("missing time", np.flatnonzero(np.isnan(t)), lambda p: f"the time is missing in row {log.row(p)}")
    gaps = np.diff(t)
    inside = np.flatnonzero((log.episode_of[1:] == log.episode_of[:-1]) & ~np.isnan(gaps))
    repeated = inside[gaps[inside] == 0] + 1
    text = "the time occurs twice, in rows {} and {}"
    found += log.said("repeated time", repeated, lambda p: text.format(log.row(p - 1), log.row(p)))
    moving = inside[gaps[inside] > 0]
    if len(moving):
        usual = float(np.median(gaps[moving[:1_000_000]]))
        off = np.abs(gaps[moving] / usual - 1) > 0.5
        gap = f"the time goes from {{}} to {{}}, but a step usually takes {_number(usual)}"
        found += log.said("gap in time", moving[off] + 1, lambda p: gap.format(_number(t[p - 1]), _number(t[p])))
    return found


def _actions(log: _Log) -> list[Problem]:
    action = log.where.column(log.rows.action)
    open_end = raw.no_action(action)
    open_end[raw.closing(log.rows, log.where)] = False
    found = log.said(
        "missing action", np.flatnonzero(open_end), lambda p: f"the action is missing in row {log.row(p)}, which is not the last of several"
    )
    if (text := continuous(log.rows)) is not None:
        return [*found, Problem("error", "continuous actions", log.rows.file, None, None, None, text)]
    broken = np.flatnonzero(~np.isnan(action) & ((action != np.floor(action)) | np.isinf(action)))
    found += log.said("action that is no integer", broken, lambda p: f"the action is {_number(action[p])}, expected an integer")
    most = LARGEST_ACTION if log.rows.num_actions is None else log.rows.num_actions - 1
    outside = np.flatnonzero((action == np.floor(action)) & ~np.isinf(action) & ((action < 0) | (action > most)))
    expected = f"0 to {most}"
    found += log.said("action out of range", outside, lambda p: f"the action is {_number(action[p])}, expected {expected}")
    return found


def continuous(rows: Rows) -> str | None:
    """One sentence if actions are continuous, or several numbers; None if they are whole numbers, but for a few mistakes."""
    command = f"psiphi demos discretise {shlex.quote(rows.file)} OUT --action {','.join(rows.action_columns)}"
    if rows.action.ndim == 2:
        what = ", ".join(map(repr, rows.action_columns[:12])) + (" ..." if len(rows.action_columns) > 12 else "")
        found = f"the action is {what}" if len(rows.action_columns) > 1 else f"the action {what} is said to be continuous"
        return f"{found}, expected one whole number from 0, which {command} makes"
    known = rows.action[~np.isnan(rows.action)]
    broken = known[(known != np.floor(known)) & ~np.isinf(known)]
    if len(np.unique(broken)) <= MISTAKES and not (len(broken) > 1 and 2 * len(broken) > len(known)):
        return None
    found = f"the action is {broken[0]:.6g} and the like in {len(broken):,} of {len(known):,} steps"
    return f"{found}, expected whole numbers from 0, which {command} makes"


def _groups(log: _Log) -> list[Problem]:
    """Episodes of two groups."""
    if log.rows.group is None:
        return []
    codes = log.where.column(log.rows.group.codes)
    inside = log.episode_of[1:] == log.episode_of[:-1]
    text = "the episode has steps of two groups, expected one group for all of it"
    return log.said("two groups", np.flatnonzero(inside & (codes[1:] != codes[:-1])) + 1, lambda p: text)


def _ends(log: _Log) -> list[Problem]:
    """Steps after the one that is said to be the last; an observation without an action is no step."""
    last = log.where.start[1:] - 1
    last_step = last.copy()
    shut = raw.closing(log.rows, log.where)
    last_step[log.episode_of[shut]] -= 1
    found, text = [], "{} more steps follow, expected none after the step at which the episode is {}"
    for name, flags in (("terminated", log.rows.terminated), ("truncated", log.rows.truncated)):
        if flags is None:
            continue
        early = np.flatnonzero(log.where.column(flags))
        early = early[early < last_step[log.episode_of[early]]]
        found += log.said("steps after the end", early, lambda p, name=name: text.format(last_step[log.episode_of[p]] - p, name))
    return found


def _finite(log: _Log) -> list[Problem]:
    """NaN and infinity in observations."""
    obs = log.rows.obs
    if obs.dtype.kind != "f":
        return []
    flat = flattened(obs)
    chunks = [first + np.flatnonzero(~np.isfinite(flat[first : first + CHUNK]).all(1)) for first in range(0, len(flat), CHUNK)]
    bad = np.zeros(len(flat), bool)
    bad[np.concatenate(chunks)] = True

    def text(p: int) -> str:
        entry = int(np.flatnonzero(~np.isfinite(flat[log.row(p)]))[0])
        return f"the observation's {log.rows.names[entry]!r} is {flat[log.row(p), entry]}, expected a finite number"

    # Where the reader found no number at all, it has said so and put a NaN there.
    bad[[flaw.row for flaw in log.rows.flaws]] = False
    found = log.said("NaN or infinity", np.flatnonzero(log.where.column(bad)), text)
    if log.rows.final_obs is not None and log.rows.final_row is not None:
        last = np.isfinite(flattened(log.rows.final_obs)).all(1)
        place = np.flatnonzero(log.where.column(np.isin(np.arange(len(obs)), log.rows.final_row[~last])))
        found += log.said("NaN or infinity", place, lambda p: "the observation after this step is not finite")
    return found


# --- Warnings ------------------------------------------------------------------------------------------------------------


def validate(demos: Demonstrations, file: str = "the demonstrations", thresholds: Thresholds | None = None) -> list[Problem]:
    """What a person should know of demonstrations before a model learns from them; none of it keeps them out."""
    if not len(demos):
        raise UserError(f"{file}: there is no step in it, expected at least one.")
    limits = thresholds or Thresholds()
    prints = fingerprints(demos.obs)
    return [
        *_constant_columns(demos, file),
        *_clocks(demos, file),
        *_short_episodes(demos, file),
        *_few_steps(demos, file, limits),
        *_aimless_tails(demos, file, limits, prints),
        *_twins(demos, file, prints),
        *_unused_actions(demos, file),
        *_endless(demos, file),
    ]


def _constant_columns(demos: Demonstrations, file: str) -> list[Problem]:
    flat = flattened(demos.obs)
    varies = np.zeros(flat.shape[1], bool)
    for first in range(0, len(flat), CHUNK):
        varies |= (flat[first : first + CHUNK] != flat[0]).any(0)
    still = np.flatnonzero(~varies)
    if demos.obs.ndim > 2 and len(still):  # of a picture, entry by entry would be too much
        text = f"{len(still)} of the {flat.shape[1]} entries of the observation are the same in every step"
        return [Problem("warning", "constant column", file, None, None, None, text)]
    text = "the observation's {!r} is {} in every step: it cannot tell agents apart"
    return [Problem("warning", "constant column", file, None, None, None, text.format(demos.names[j], flat[0, j])) for j in still]


def _clocks(demos: Demonstrations, file: str) -> list[Problem]:
    """Columns that grow by the same amount in every step of every episode: times and row numbers."""
    start, lengths = demos.episodes.start, demos.lengths
    if demos.obs.ndim > 2 or demos.obs.dtype == bool or lengths.max() < 3:
        return []
    long = np.flatnonzero(lengths >= 2)
    t = np.arange(len(demos)) - np.repeat(start[:-1], lengths)
    digits = np.finfo(demos.obs.dtype).eps if demos.obs.dtype.kind == "f" else 0.0
    text = "the observation's {!r} grows by {:g} in every step, as a clock does: leave it out (--obs) unless agents act by it"
    found = []
    for j, name in enumerate(demos.names):
        column = demos.obs[:, j].astype(np.float64)
        rate = (column[start[long + 1] - 1] - column[start[long]]) / (lengths[long] - 1)
        size = np.abs(column).max()
        even = np.abs(column - np.repeat(column[start[:-1]], lengths) - np.median(rate) * t) <= 8 * digits * size + 1e-9
        if np.median(rate) > 0 and even.all():
            found.append(Problem("warning", "clock", file, None, None, None, text.format(name, np.median(rate))))
    return found


def _short_episodes(demos: Demonstrations, file: str) -> list[Problem]:
    short = np.flatnonzero(demos.lengths == 1)
    places = demos.episodes.start[short]
    return per_episode(
        "warning", "one-step episode", file, places, short, _placed(demos), lambda p: "the episode has one step: nothing follows from it"
    )


def _few_steps(demos: Demonstrations, file: str, limits: Thresholds) -> list[Problem]:
    count = np.bincount(demos.episodes.agent, weights=demos.lengths, minlength=len(demos.agents)).astype(int)
    text = f"the agent has {{}} steps, fewer than the {limits.few_steps} from which its wants may be told"
    return [
        Problem("warning", "agent with few steps", file, agent, None, None, text.format(n))
        for agent, n in zip(demos.agents, count, strict=True)
        if n < limits.few_steps
    ]


def _aimless_tails(demos: Demonstrations, file: str, limits: Thresholds, prints: np.ndarray) -> list[Problem]:
    """Episodes that go on without going anywhere: from some step on, most of what is seen was seen before in the same episode.

    Of one that ended because its task was over, the goal was at the end. Only repeated observations tell: where every observation is
    different, as with noisy sensors, no tail is found.
    """
    new = first_in_episode(demos, prints)
    tails: dict[int, tuple[int, int]] = {}
    for e in np.flatnonzero(~demos.episodes.terminated & (demos.lengths > limits.tail_steps)):
        start, end = demos.episodes.start[e], demos.episodes.start[e + 1]
        mine = new[start:end]
        seen = np.cumsum(mine)
        # Where the share of new observations falls most: the largest lead of the running count over its even growth.
        cut = int(np.argmax(seen - seen[-1] * np.arange(1, len(mine) + 1) / len(mine))) + 1
        tail = len(mine) - cut
        if tail < max(limits.tail_steps, limits.tail_share * len(mine)):
            continue
        if mine[cut:].mean() <= limits.tail_new and mine[:cut].mean() >= limits.head_new:
            tails[int(start + cut)] = (tail, int(tail - mine[cut:].sum()))
    text = "of the {} observations from here on, {} were seen before in the episode: if the goal was reached by then, cut the tail off"
    places = np.array(list(tails), np.int64)
    owner = np.searchsorted(demos.episodes.start, places, side="right") - 1
    return per_episode("warning", "aimless tail", file, places, owner, _placed(demos), lambda p: text.format(*tails[p]))


def _twins(demos: Demonstrations, file: str, prints: np.ndarray) -> list[Problem]:
    original = twins(demos, prints)
    copies = np.flatnonzero(original != np.arange(len(original)))
    place = _placed(demos)

    def text(p: int) -> str:
        agent, episode, _ = place(int(demos.episodes.start[original[np.searchsorted(demos.episodes.start, p, side="right") - 1]]))
        return f"the episode is a copy of agent {agent!r}, episode {episode!r}: the same observations and actions"

    return per_episode("warning", "copied episode", file, demos.episodes.start[copies], copies, place, text)


def _unused_actions(demos: Demonstrations, file: str) -> list[Problem]:
    unused = np.flatnonzero(np.bincount(demos.action, minlength=demos.num_actions) == 0)
    if not len(unused):
        return []
    shown = ", ".join(map(str, unused[:10].tolist())) + (" ..." if len(unused) > 10 else "")
    text = f"of the {demos.num_actions} actions, {len(unused)} never occur ({shown}): nothing can be learned about them"
    return [Problem("warning", "action never taken", file, None, None, None, text)]


def _endless(demos: Demonstrations, file: str) -> list[Problem]:
    ended, known = demos.episodes.terminated, demos.episodes.has_final
    if ended.any() and (ended | known).all():
        return []
    found = []
    if not ended.any():
        text = "no episode is terminated: if agents stop because they have what they want, say so (column terminated, or --ends terminated)"
        found.append(Problem("warning", "no episode ends", file, None, None, None, text))
    lost = int((~ended & ~known).sum())
    if lost:
        text = f"of {lost} episodes the observation after the last step is unknown, so their last steps teach nothing"
        found.append(Problem("warning", "unknown last observation", file, None, None, None, text))
    return found


def _placed(demos: Demonstrations) -> Callable[[int], tuple[str | int | None, str | int | None, int | float | None]]:
    """Where a step is."""

    def place(step: int) -> tuple[str | int | None, str | int | None, int | float | None]:
        e = int(np.searchsorted(demos.episodes.start, step, side="right")) - 1
        return demos.agents[demos.episodes.agent[e]], _plain(demos.episodes.id[e]), int(step - demos.episodes.start[e])

    return place


def _plain(value: object) -> str | int:
    return value.item() if isinstance(value, np.generic) else value  # pyright: ignore[reportReturnType]


def _number(value: float) -> int | float:
    """3.0 as 3."""
    return int(value) if np.isfinite(value) and value == int(value) else float(value)
