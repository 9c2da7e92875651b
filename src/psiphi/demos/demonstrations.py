"""`Demonstrations`: who did what where. There are no rewards in it."""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from psiphi import configs, doors, limits
from psiphi.configs import Within
from psiphi.demos.columns import Columns, entry_names
from psiphi.demos.discretiser import Discretiser
from psiphi.errors import UserError

if TYPE_CHECKING:
    from psiphi.demos.problems import Problem
    from psiphi.types import Demos, EnvSpec

AgentId = str | int
PerEpisode = Sequence[Any] | np.ndarray
"""One entry for each episode."""


class Trajectory(NamedTuple):
    """One episode of one agent."""

    agent: AgentId
    episode: str | int
    obs: np.ndarray
    action: np.ndarray
    terminated: bool
    truncated: bool
    final_obs: np.ndarray | None
    """What was seen after the last step, where that was recorded."""


class Episodes(NamedTuple):
    """The E episodes, in the order of their steps."""

    start: np.ndarray
    """int64[E + 1]: episode e is the steps from start[e] to start[e + 1]."""
    agent: np.ndarray
    """int32[E]: whose it is, as an index into `Demonstrations.agents`."""
    id: np.ndarray
    """[E], int64 or str: what it is called; different for all episodes of one agent."""
    terminated: np.ndarray
    """bool[E]: the task was over after the last step."""
    truncated: np.ndarray
    """bool[E]: the recording was stopped after the last step. Where neither is true, it is not known why it ends."""
    final_obs: np.ndarray
    """[E, ...]: what was seen after the last step; zeros where that was not recorded."""
    has_final: np.ndarray
    """bool[E]: whether it was recorded."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Demonstrations:
    """Trajectories of K agents, as flat arrays of all M steps, episode after episode. Nothing in it can be changed.

    Agents are known by the ids they came with, all strings or all integers; agent k of everything learned is ``agents[k]``.
    """

    obs: np.ndarray
    """[M, ...]: what was seen before each step."""
    action: np.ndarray
    """int32[M]: what was done."""
    agents: tuple[AgentId, ...]
    """The K agents' ids, in the order in which they first appeared."""
    episodes: Episodes
    num_actions: int
    names: tuple[str, ...] = ()
    """What the entries of an observation are called; their indices if they have no names."""
    notes: tuple[str, ...] = ()
    """What was left out when they were read."""
    action_names: tuple[str, ...] = ()
    """What the actions are called; "action 0" and so on if they have no names."""
    discretiser: Discretiser | None = None
    """What the actions stand for, where they were continuous."""
    numbered: bool = True
    """Whether actions came as numbers; names were numbered in alphabetical order, which need not be a world's."""
    groups: tuple[AgentId, ...] = ()
    """Names of groups of episodes that `split` keeps together."""
    group: np.ndarray | None = None
    """int32[E]: the group of each episode, as an index into `groups`; -1: of none. None: it is not known."""

    def __post_init__(self):
        E, M = len(self.episodes.agent), len(self.action)
        if not (self.episodes.start[0] == 0 and self.episodes.start[-1] == M == len(self.obs) and len(self.episodes.start) == E + 1):
            raise ValueError(f"{len(self.obs)} observations, {M} actions and episodes that end at {self.episodes.start[-1]} do not fit.")
        if self.obs.ndim < 2 or any(len(column) != E for column in self.episodes[1:]):
            raise ValueError("Observations need at least one axis beside that of the steps, and every episode an entry in each column.")
        kinds = {type(agent) for agent in self.agents}
        if len(kinds) > 1 or not kinds <= {str, int} or len(set(self.agents)) < len(self.agents):
            raise UserError(f"The agents' ids are {self.agents!r}, expected different ones, all strings or all integers.")
        if not self.names:
            object.__setattr__(self, "names", entry_names(self.obs.shape[1:]))
        object.__setattr__(self, "action_names", _named_actions(self.action_names, self.discretiser, self.num_actions))
        if self.group is not None:
            if len(self.group) != E or not (-1 <= self.group.min(initial=0) and self.group.max(initial=-1) < len(self.groups)):
                raise ValueError(f"The groups of {len(self.group)} episodes do not fit {E} episodes and {len(self.groups)} groups.")
            object.__setattr__(self, "group", _frozen(self.group))
        object.__setattr__(self, "obs", _frozen(self.obs))
        object.__setattr__(self, "action", _frozen(self.action))
        object.__setattr__(self, "episodes", Episodes(*map(_frozen, self.episodes)))

    # --- In and out ------------------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: str | Path, columns: Columns | None = None, *, progress: bool = False) -> "Demonstrations":
        """Read a Parquet, CSV or npz file or a Minari dataset; whatever is wrong with it is said at once and nothing is imported."""
        from psiphi.demos import files

        if not isinstance(columns, Columns | None):
            raise UserError(f"The columns are {doors.called(columns)}, expected a psiphi.demos.Columns or None.")
        return files.read(doors.path(path, "The file"), columns or Columns(), progress=progress)

    def write(self, path: str | Path, *, progress: bool = False) -> None:
        """Write a Parquet, CSV or npz file or a Minari dataset (a directory such as ``drivers-v0``), by the name's ending.

        A file that was there is replaced at the end, in one step.
        """
        from psiphi.demos import files

        files.write(self, doors.path(path, "The file"), progress=progress)

    @classmethod
    def from_lists(
        cls,
        observations: PerEpisode,
        actions: PerEpisode,
        agents: PerEpisode,
        *,
        episodes: PerEpisode | None = None,
        terminated: PerEpisode | None = None,
        truncated: PerEpisode | None = None,
        num_actions: int | None = None,
        names: Sequence[str] = (),
        action_names: Sequence[str] = (),
        discretiser: Discretiser | None = None,
        groups: PerEpisode | None = None,
    ) -> "Demonstrations":
        """Demonstrations from one entry per episode: T + 1 observations (or T, if none was recorded after the last step), T actions, who.

        `terminated` says which episodes ended because the task was over. Where neither flag is given, episodes count as truncated. With a
        `discretiser`, actions are continuous and it chooses the nearest. Actions may be names, which are numbered in alphabetical order,
        or in that of `action_names`. Episodes of one of the `groups` are never split.
        """
        from psiphi.demos import rows, validate

        names_of, numbered = tuple(action_names), True
        if discretiser is not None:
            actions = [discretiser.transform(some) for some in actions]
            num_actions = discretiser.num_actions
        elif rows.are_names(actions):
            names_of, numbered = names_of or rows.names_in(actions), bool(names_of)
            actions, num_actions = rows.numbers_of(actions, names_of), num_actions or len(names_of)
        given = rows.from_lists(observations, actions, agents, episodes, terminated, truncated, num_actions, tuple(names), groups=groups)
        return validate.checked(given._replace(action_names=names_of, discretiser=discretiser, numbered=numbered))

    @classmethod
    def from_demos(cls, demos: "Demos", episode: Any, agents: Sequence[AgentId], num_actions: int) -> "Demonstrations":
        """The inverse of `to_demos`: `episode` ``[K, M]`` says which of its agent's episodes a step belongs to."""
        steps, count = demos.steps, np.asarray(demos.count)
        obs, action, discount, next_obs = (np.asarray(x) for x in (steps.obs, steps.action, steps.discount, steps.next_obs))
        observed, acted, who, names, ended = [], [], [], [], []
        for k, agent in enumerate(agents):
            ids = np.asarray(episode)[k, : count[k]]
            cuts = np.flatnonzero(np.diff(ids, prepend=-1, append=-1))
            for first, last in zip(cuts[:-1], cuts[1:] - 1, strict=True):
                observed.append(np.concatenate([obs[k, first : last + 1], next_obs[k, last : last + 1]]))
                acted.append(action[k, first : last + 1])
                who.append(agent)
                names.append(int(ids[first]))
                ended.append(bool(discount[k, last] == 0))
        cut_off = [not x for x in ended]
        return cls.from_lists(observed, acted, who, episodes=names, terminated=ended, truncated=cut_off, num_actions=num_actions)

    def to_demos(self) -> "Demos":
        """The steps of each agent side by side, padded: what agents learn from.

        A terminated episode's last step has discount 0; its `next_action` means nothing and is 0, or NO_ACTION where none saw the
        observation it ended on (`next_obs` is then the one before, and means nothing either). Any other episode's last step bootstraps
        (discount 1) from the observation that follows, with `next_action` NO_ACTION as it was not seen; where the observation was not
        either, there is nothing to bootstrap from and that one step is left out.
        """
        import jax.numpy as jnp

        from psiphi.types import NO_ACTION, Demonstration, Demos

        steps = [self._steps_of(k, NO_ACTION) for k in range(len(self.agents))]
        count = np.array([len(columns[1]) for columns in steps], np.int32)
        if not self.agents or not count.min():
            who = f"agent {self.agents[int(count.argmin())]!r}" if self.agents else "any agent"
            raise UserError(f"There is no step to learn from by {who}; expected at least one with the observation that follows it.")

        limits.check_memory("Steps side by side", 3 * len(count) * int(count.max()) * self.obs[:1].nbytes)

        def padded(column: int, fill: int = 0) -> Any:
            parts = [columns[column] for columns in steps]
            result = np.full((len(parts), count.max(), *parts[0].shape[1:]), fill, parts[0].dtype)
            for k, part in enumerate(parts):
                result[k, : len(part)] = part
            return jnp.asarray(result)

        data = Demonstration(padded(0), padded(1), padded(2), padded(3), padded(4, NO_ACTION))
        return Demos(data, jnp.asarray(count))

    def _steps_of(self, k: int, no_action: int) -> tuple[np.ndarray, ...]:
        """The columns of a `Demonstration` for agent k, without the steps that teach nothing."""
        e = self.episodes
        mine = np.flatnonzero(e.agent == k)
        known = e.terminated[mine] | e.has_final[mine]
        end = e.start[mine + 1] - ~known
        index, last = _ranges(e.start[mine], end), (np.cumsum(end - e.start[mine]) - 1)[known]
        ending = mine[known]
        following = np.minimum(index + 1, len(self) - 1)
        next_obs, next_action = self.obs[following], self.action[following]
        next_obs[last] = np.where(_like(e.has_final[ending], next_obs), e.final_obs[ending], self.obs[index[last]])
        next_action[last] = np.where(e.terminated[ending] & e.has_final[ending], 0, no_action)
        discount = np.ones(len(index), np.float32)
        discount[last] = 1 - e.terminated[ending]
        return self.obs[index], self.action[index], discount, next_obs, next_action

    # --- What there is ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Steps."""
        return len(self.action)

    def __repr__(self) -> str:
        what = f"{len(self.agents)} agents, {self.num_episodes} episodes, {len(self)} steps"
        return f"Demonstrations({what}, obs {self.obs.dtype}{list(self.obs.shape[1:])}, {self.num_actions} actions)"

    def __iter__(self) -> Iterator[Trajectory]:
        """Episode by episode."""
        return (self.trajectory(i) for i in range(self.num_episodes))

    @property
    def num_episodes(self) -> int:
        return len(self.episodes.agent)

    @property
    def lengths(self) -> np.ndarray:
        """int64[E]: steps of each episode."""
        return np.diff(self.episodes.start)

    @property
    def agent_index(self) -> np.ndarray:
        """int32[M]: who made each step, as an index into `agents`."""
        return np.repeat(self.episodes.agent, self.lengths)

    @property
    def agent(self) -> np.ndarray:
        """[M]: the id of who made each step."""
        return np.array(self.agents)[self.agent_index]

    @property
    def episode(self) -> np.ndarray:
        """[M]: the id of the episode of each step."""
        return np.repeat(self.episodes.id, self.lengths)

    @property
    def t(self) -> np.ndarray:
        """int64[M]: the number of each step in its episode."""
        return np.arange(len(self)) - np.repeat(self.episodes.start[:-1], self.lengths)

    @property
    def terminated(self) -> np.ndarray:
        """bool[M]: true at the last step of an episode whose task was then over."""
        return self._at_last(self.episodes.terminated)

    @property
    def truncated(self) -> np.ndarray:
        """bool[M]: true at the last step of an episode whose recording was stopped then."""
        return self._at_last(self.episodes.truncated)

    def _at_last(self, flags: np.ndarray) -> np.ndarray:
        result = np.zeros(len(self), bool)
        result[self.episodes.start[1:] - 1] = flags
        return result

    @property
    def spec(self) -> "EnvSpec":
        """What an agent that learns from them must know."""
        from psiphi.types import EnvSpec

        return EnvSpec(self.obs.shape[1:], self.obs.dtype, self.num_actions)

    def trajectory(self, i: int) -> Trajectory:
        """Episode number i."""
        e = self.episodes
        steps = slice(e.start[i], e.start[i + 1])
        final = e.final_obs[i] if e.has_final[i] else None
        episode = e.id[i].item() if isinstance(e.id[i], np.generic) else e.id[i]
        flags = bool(e.terminated[i]), bool(e.truncated[i])
        return Trajectory(self.agents[e.agent[i]], episode, self.obs[steps], self.action[steps], *flags, final)

    def summary(self) -> dict[str, Any]:
        """Agents, episodes, lengths, actions, coverage and duplicates as plain numbers; see `psiphi.demos.summary`."""
        from psiphi.demos.summary import summary

        return summary(self)

    def validate(self) -> "list[Problem]":
        """What a person should know before a model learns from them; see `psiphi.demos.validate`. Errors were found at the door."""
        from psiphi.demos.validate import validate

        return validate(self)

    # --- Parts and unions ------------------------------------------------------------------------------------------------

    def split(self, held_out: float = 0.1, seed: int = 0) -> tuple["Demonstrations", "Demonstrations"]:
        """Two parts that share no episode: the rest, and `held_out` of each agent's episodes, drawn by `seed`.

        Both parts know all agents, in the same order. Who has two episodes or more is in both parts, who has one only in the first.
        Episodes of one group (`groups`) are in one part: an agent with episodes of one group only is in one part too.
        """
        held_out, seed = configs.fit(float, held_out, "held_out"), configs.fit(Annotated[int, Within(0)], seed, "seed")
        if not 0 < held_out < 1:
            raise UserError(f"held_out is {held_out}, expected a share between 0 and 1.")
        rng = np.random.default_rng(seed)
        if self.group is not None:
            held = _held_groups(self, held_out, rng)
            return self._chosen(~held), self._chosen(held)
        held = np.zeros(self.num_episodes, bool)
        for k in range(len(self.agents)):
            mine = np.flatnonzero(self.episodes.agent == k)
            share = min(max(round(held_out * len(mine)), 1), len(mine) - 1)
            held[rng.permutation(mine)[: max(share, 0)]] = True
        return self._chosen(~held), self._chosen(held)

    def filter(
        self,
        *,
        agents: Collection[AgentId] | None = None,
        min_steps: int = 1,
        max_steps: int | None = None,
        where: Callable[[Trajectory], bool] | None = None,
    ) -> "Demonstrations":
        """Only the episodes of these agents, of such a length, and for which `where` is true. Agents who are not named are forgotten."""
        wanted = list(self.agents if agents is None else dict.fromkeys(agents))
        unknown = [agent for agent in wanted if agent not in self.agents]
        if unknown:
            raise UserError(f"There is no agent {unknown[0]!r}; the agents are {', '.join(map(repr, self.agents))}.")
        index = {self.agents.index(agent): new for new, agent in enumerate(wanted)}
        chosen = np.isin(self.episodes.agent, list(index)) & (self.lengths >= min_steps)
        if max_steps is not None:
            chosen &= self.lengths <= max_steps
        if where is not None:
            chosen &= np.array([bool(chosen[i]) and bool(where(self.trajectory(i))) for i in range(self.num_episodes)], bool)
        part = self._chosen(chosen)
        renamed = np.array([index[k] for k in part.episodes.agent.tolist()], np.int32)
        return dataclasses.replace(part, agents=tuple(wanted), episodes=part.episodes._replace(agent=renamed))

    def merge(self, *others: "Demonstrations") -> "Demonstrations":
        """These and the others'. The same id is the same agent; if an agent would have two episodes of one name, all are numbered anew."""
        every = [self, *(doors.demonstrations(other, Demonstrations) for other in others)]
        for other in others:
            if (other.obs.shape[1:], other.obs.dtype) != (self.obs.shape[1:], self.obs.dtype):
                found, expected = (f"{part.obs.dtype}{list(part.obs.shape[1:])}" for part in (other, self))
                raise UserError(f"Demonstrations with observations {found} cannot be merged with ones of {expected}.")
        groups, group = _merged_groups(every)
        agents = tuple(dict.fromkeys(agent for part in every for agent in part.agents))
        place = {agent: k for k, agent in enumerate(agents)}
        table = [np.array([place[agent] for agent in part.agents], np.int32) for part in every]
        who = np.concatenate([index[part.episodes.agent] for index, part in zip(table, every, strict=True)])
        ids = _merged_ids(who, [part.episodes.id for part in every])
        start = np.concatenate([[0], np.cumsum(np.concatenate([part.lengths for part in every]))])
        joined = [np.concatenate(columns) for columns in zip(*(part.episodes[3:] for part in every), strict=True)]
        return Demonstrations(
            obs=np.concatenate([part.obs for part in every]),
            action=np.concatenate([part.action for part in every]),
            agents=agents,
            episodes=Episodes(start, who, ids, *joined),
            num_actions=max(part.num_actions for part in every),
            names=self.names,
            notes=tuple(dict.fromkeys(note for part in every for note in part.notes)),
            action_names=_merged_actions(every),
            discretiser=self.discretiser,
            numbered=all(part.numbered for part in every),
            groups=groups,
            group=group,
        )

    def named_as(self, names: Sequence[str]) -> "Demonstrations":
        """The same with actions numbered as in `names`, where actions have names; without names they are taken as they are."""
        unnamed = unnamed_actions(self.num_actions)
        if self.action_names == unnamed or tuple(names) in (self.action_names, unnamed_actions(len(names))):
            return self
        place = {name: number for number, name in enumerate(names)}
        strange = [name for name in self.action_names if name not in place]
        if strange:
            known = ", ".join(map(repr, names[:12])) + (" ..." if len(names) > 12 else "")
            raise UserError(f"The demonstrations have an action {strange[0]!r}, expected one of {known}.")
        numbers = np.array([place[name] for name in self.action_names], np.int32)
        return dataclasses.replace(self, action=numbers[self.action], num_actions=len(names), action_names=tuple(names))

    def _chosen(self, chosen: np.ndarray) -> "Demonstrations":
        """Only some episodes; all agents stay known."""
        steps = np.repeat(chosen, self.lengths)
        start = np.concatenate([[0], np.cumsum(self.lengths[chosen])])
        episodes = Episodes(start, *(column[chosen] for column in self.episodes[1:]))
        group = None if self.group is None else self.group[chosen]
        return dataclasses.replace(self, obs=self.obs[steps], action=self.action[steps], episodes=episodes, group=group)


def flattened(obs: np.ndarray) -> np.ndarray:
    """Observations as rows of numbers; there may be none."""
    return obs.reshape(len(obs), math.prod(obs.shape[1:]))


def unnamed_actions(num_actions: int) -> tuple[str, ...]:
    """What actions are called when they have no names."""
    return tuple(f"action {a}" for a in range(num_actions))


MOST_NAMES = 256
"""A model keeps the names of so many entries of an observation; pictures have more, and no names."""


def called(demos: Demonstrations) -> dict[str, Any]:
    """What a model keeps of how observations and actions are called, and of what actions stand for; by the names of its fields."""
    return {
        "columns": demos.names if len(demos.names) <= MOST_NAMES else (),
        "action_names": () if demos.action_names == unnamed_actions(demos.num_actions) else demos.action_names,
        "discretiser": demos.discretiser,
    }


def _named_actions(names: tuple[str, ...], discretiser: Discretiser | None, num_actions: int) -> tuple[str, ...]:
    """A name for each action: given, the discretiser's, or its number."""
    if discretiser is not None and discretiser.num_actions != num_actions:
        raise UserError(f"There are {num_actions} actions, but the discretiser has {discretiser.num_actions}, expected as many.")
    if names and names != unnamed_actions(len(names)):
        if len(names) != num_actions or len(set(names)) < num_actions:
            raise UserError(f"There are {len(set(names))} different names for the actions, expected {num_actions}.")
        return names
    return unnamed_actions(num_actions) if discretiser is None else discretiser.names


def _merged_actions(every: "list[Demonstrations]") -> tuple[str, ...]:
    """The names of the actions of all parts, which must mean the same by them; where only some have names, these count."""
    named = [part for part in every if part.action_names != unnamed_actions(part.num_actions)]
    for part in every:
        if part.discretiser != every[0].discretiser:
            raise UserError(
                "Demonstrations whose actions stand for different things cannot be merged, expected the same discretiser in all."
            )
    if not named:
        return ()
    most = max(part.num_actions for part in every)
    for part in named:
        if part.action_names != named[0].action_names or most > part.num_actions:
            found = next((a for a, b in zip(part.action_names, named[0].action_names, strict=False) if a != b), f"action {most - 1}")
            raise UserError(
                f"Demonstrations whose actions differ cannot be merged: {found!r} is in one of them only, expected the same names."
            )
    return named[0].action_names


def _merged_groups(every: "list[Demonstrations]") -> tuple[tuple[AgentId, ...], np.ndarray | None]:
    """The same name is the same group."""
    if all(part.group is None for part in every):
        return (), None
    groups = tuple(dict.fromkeys(name for part in every for name in part.groups))
    place = {name: g for g, name in enumerate(groups)}
    tables = [np.array([*(place[name] for name in part.groups), -1], np.int32) for part in every]  # -1, the last, is no group
    own = [np.full(part.num_episodes, -1) if part.group is None else part.group for part in every]
    return groups, np.concatenate([table[index] for table, index in zip(tables, own, strict=True)])


def _held_groups(demos: "Demonstrations", held_out: float, rng: np.random.Generator) -> np.ndarray:
    """bool[E]: about `held_out` of each agent's steps, in whole groups; no agent loses all of its episodes.

    Groups are drawn agent by agent. One that holds more than twice the share that is asked for is taken only if there is no other.
    """
    assert demos.group is not None
    unit = demos.group.astype(np.int64)
    alone = np.flatnonzero(unit < 0)
    unit[alone] = len(demos.groups) + np.arange(len(alone))  # an episode of no group is one of its own
    _, unit = np.unique(unit, return_inverse=True)
    shape = int(unit.max(initial=-1)) + 1, len(demos.agents)
    episodes, steps = np.zeros(shape, int), np.zeros(shape, int)
    np.add.at(episodes, (unit, demos.episodes.agent), 1)
    np.add.at(steps, (unit, demos.episodes.agent), demos.lengths)
    wanted, held = held_out * steps.sum(0), np.zeros(shape[0], bool)

    def can_go(u: int) -> bool:
        left = episodes[~held].sum(0) - episodes[u]
        return not held[u] and bool((left[episodes[u] > 0] > 0).all())

    for k in range(shape[1]):
        mine = rng.permutation(np.flatnonzero(episodes[:, k]))
        for u in mine.tolist():
            have = steps[held, k].sum()
            if have < wanted[k] and have + steps[u, k] <= 2 * wanted[k] and can_go(u):
                held[u] = True
        small = [u for u in mine[np.argsort(steps[mine, k], kind="stable")].tolist() if can_go(u)]
        if small and not held[mine].any():
            held[small[0]] = True
    return held[unit]


def _merged_ids(who: np.ndarray, ids: list[np.ndarray]) -> np.ndarray:
    """The names of merged episodes: as they were, unless they differ in kind or an agent would have one of them twice."""
    same_kind = len({part.dtype == np.int64 for part in ids if len(part)}) < 2
    together = np.concatenate([part for part in ids if len(part)] or ids)
    if same_kind and len(set(zip(who.tolist(), together.tolist(), strict=True))) == len(who):
        return together
    fresh = np.zeros(len(who), np.int64)
    for k in np.unique(who):
        fresh[who == k] = np.arange((who == k).sum())
    return fresh


def _ranges(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """All numbers of all ranges, one range after the other."""
    length = end - start
    return np.repeat(start - (np.cumsum(length) - length), length) + np.arange(length.sum())


def _like(flags: np.ndarray, array: np.ndarray) -> np.ndarray:
    """Flags of rows, to be broadcast over the rest of the axes."""
    return flags.reshape(-1, *[1] * (array.ndim - 1))


def _frozen(array: np.ndarray) -> np.ndarray:
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view
