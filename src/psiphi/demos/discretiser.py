"""Continuous actions as a few discrete ones, and back: K-means on standardised actions, as in the paper, fixed edges, or values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from psiphi import configs, doors, limits
from psiphi.configs import Count, Seed, Within
from psiphi.demos.kmeans import k_means, nearest
from psiphi.errors import UserError

FORMAT = 1
"""Of the dictionary that files hold."""


class Part(NamedTuple):
    """Columns that are cut together."""

    columns: tuple[str, ...]
    centroids: np.ndarray
    """``[k, c]``: what each choice stands for, in the original units."""
    scale: np.ndarray
    """``[c]``: the unit in which distances are measured, the columns' standard deviations."""
    edges: tuple[float, ...] = ()
    """Of a single column, where one choice ends and the next begins; none: the nearest centroid is chosen."""

    def choose(self, x: np.ndarray) -> np.ndarray:
        """int64[n]: the choice for each row ``x[n, c]``."""
        if self.edges:
            return np.searchsorted(np.array(self.edges), x[:, 0], side="right")
        middle = self.centroids.mean(0)  # numbers that are far from 0 would lose their digits
        return nearest((x - middle) / self.scale, (self.centroids - middle) / self.scale)


@dataclass(frozen=True, eq=False, repr=False)
class Discretiser:
    """A few discrete actions that stand for continuous ones. An action is a choice in each part: the last part counts fastest.

    >>> cut = Discretiser.fit(actions, ["acc", "lat"], k=9)       # actions[N, 2]
    >>> cut.transform(actions)                                    # int32[N]: the nearest of nine
    >>> cut.inverse(4)                                            # what the fifth stands for, in the original units
    >>> cut.names[4]
    'acc 0.0, lat 0.0'
    """

    columns: tuple[str, ...]
    """What the continuous actions are called."""
    parts: tuple[Part, ...]
    names: tuple[str, ...]
    """What the discrete actions are called."""

    @classmethod
    def fit(
        cls,
        actions: Any,
        columns: Sequence[str] = (),
        *,
        k: int | Sequence[int] = 9,
        apart: bool = False,
        mirror: Sequence[str] = (),
        edges: Mapping[str, Sequence[float]] | None = None,
        values: Sequence[str] = (),
        names: Sequence[str] = (),
        seed: int = 0,
        restarts: int = 8,
    ) -> "Discretiser":
        """Fit to the actions ``[N, C]`` (or ``[N]``): `k` centroids of all columns together.

        `apart` clusters each column alone, with `k` centroids each or a number for each; actions are then the product. `mirror` names
        columns whose sign means left and right: the mirror image of an action is then an action. `edges` cuts columns at fixed places,
        and of columns in `values` each different value is a choice; both are multiplied with the rest.
        """
        x = doors.numbers(actions, "The actions").astype(np.float64)
        x = x[:, None] if x.ndim == 1 else x
        columns = _columns(columns, x)
        plans = _plans(columns, k, apart, tuple(mirror), dict(edges or {}), tuple(values))
        seed, restarts = configs.fit(Seed, seed, "seed"), configs.fit(Annotated[int, Within(1, 1_000)], restarts, "restarts")
        parts = tuple(_part(plan, x[:, [columns.index(name) for name in plan.columns]], seed, restarts) for plan in plans)
        sizes = [len(part.centroids) for part in parts]
        limits.check_most(
            f"The product of {' x '.join(map(str, sizes))} choices has too many actions", math.prod(sizes), limits.MOST_ACTIONS
        )
        return cls(columns, parts, _given_names(tuple(names), math.prod(sizes)) or generated_names(columns, parts))

    @property
    def num_actions(self) -> int:
        return math.prod(len(part.centroids) for part in self.parts)

    @property
    def centroids(self) -> np.ndarray:
        """``[A, C]``: what each action stands for, in the original units."""
        return centroids(self.columns, self.parts)

    def transform(self, actions: Any) -> np.ndarray:
        """int32[N]: the discrete action next to each of ``actions[N, C]``."""
        x = doors.numbers(actions, "The actions").astype(np.float64)
        x = x[:, None] if x.ndim == 1 else x
        if x.ndim != 2 or x.shape[1] != len(self.columns):
            raise UserError(f"The actions have shape {x.shape}, expected (N, {len(self.columns)}): {', '.join(self.columns)}.")
        result = np.zeros(len(x), np.int64)
        for part in self.parts:
            result = result * len(part.centroids) + part.choose(x[:, [self.columns.index(name) for name in part.columns]])
        return result.astype(np.int32)

    def inverse(self, actions: Any) -> np.ndarray:
        """``[..., C]``: discrete actions in the original units."""
        index = np.asarray(actions)
        if index.dtype.kind not in "iu" or (index.size and not (0 <= index.min() and index.max() < self.num_actions)):
            raise UserError(f"The actions are {doors.called(actions)}, expected whole numbers from 0 to {self.num_actions - 1}.")
        return self.centroids[index]

    def variance_kept(self, actions: Any) -> dict[str, float]:
        """The share of each column's variance that `transform` keeps, and as ``total`` the mean of the shares."""
        x = np.asarray(actions, np.float64).reshape(-1, len(self.columns))
        lost, there = ((x - self.inverse(self.transform(x))) ** 2).mean(0), x.var(0)
        kept = np.where(there > 0, 1 - lost / np.where(there > 0, there, 1), 1.0)
        return {**dict(zip(self.columns, kept.tolist(), strict=True)), "total": float(kept.mean())}

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings, ready for JSON."""
        parts = [
            {"columns": list(p.columns), "centroids": p.centroids.tolist(), "scale": p.scale.tolist(), "edges": list(p.edges)}
            for p in self.parts
        ]
        return {"format": FORMAT, "columns": list(self.columns), "parts": parts, "names": list(self.names)}

    @classmethod
    def from_dict(cls, given: Any, where: str = "The discretiser") -> "Discretiser":
        """The inverse of `to_dict`; what does not make sense is refused."""
        try:
            if given["format"] != FORMAT:
                raise UserError(f"{where} has the format {given['format']!r}, expected {FORMAT}: a newer psiphi wrote it.")
            parts = tuple(_part_from(part) for part in given["parts"])
            columns, names = _strings(given["columns"]), _strings(given["names"])
            if sorted(name for part in parts for name in part.columns) != sorted(columns) or len(set(columns)) < len(columns):
                raise ValueError
            made = cls(columns, parts, names)
            if not parts or made.num_actions > limits.MOST_ACTIONS or len(set(names)) < len(names) or len(names) != made.num_actions:
                raise ValueError
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"{where} is damaged: it is not what psiphi.demos.Discretiser.to_dict writes.") from error
        return made

    def renamed(self, names: Sequence[str]) -> "Discretiser":
        """The same with other names for the actions."""
        return Discretiser(self.columns, self.parts, _given_names(tuple(names), self.num_actions) or self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Discretiser) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.columns, self.names))

    def __repr__(self) -> str:
        return f"Discretiser({self.num_actions} actions for {', '.join(self.columns)})"


@dataclass(frozen=True)
class Recipe:
    """How to make continuous actions discrete: the settings of `Discretiser.fit`, as a value and as flags."""

    k: Annotated[tuple[Count, ...], Within(1, 64)] = (9,)
    """How many actions; with --apart, for each column, one number for all or one for each."""
    apart: bool = False
    """Cluster each column alone; actions are the product of the columns' choices."""
    mirror: str = ""
    """Columns whose sign means left and right, separated by commas: the mirror image of an action is then an action."""
    edges: tuple[str, ...] = ()
    """Columns that are cut at fixed places, such as acc=-1,1 for three choices."""
    values: str = ""
    """Columns of which every different value is a choice, separated by commas: gears, buttons."""
    names: tuple[str, ...] = ()
    """What to call the actions, in their order; made of the centroids if not given."""
    seed: Seed = 0
    """Decides where the clusters begin."""

    def __post_init__(self):
        configs.check(self)

    def fit(self, actions: np.ndarray, columns: Sequence[str]) -> Discretiser:
        edges = dict(_cut(text) for text in self.edges)
        mirror, values = ([part.strip() for part in text.split(",") if part.strip()] for text in (self.mirror, self.values))
        return Discretiser.fit(
            actions, columns, k=self.k, apart=self.apart, mirror=mirror, edges=edges, values=values, names=self.names, seed=self.seed
        )


def _cut(text: str) -> tuple[str, list[float]]:
    """A column and its edges out of ``acc=-1,1``."""
    name, _, places = text.rpartition("=")
    try:
        return name, [float(place) for place in places.split(",")]
    except ValueError:
        raise UserError(f"edges has {text!r}, expected a column and rising numbers, such as acc=-1,1.") from None


# --- How columns are cut -------------------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    columns: tuple[str, ...]
    k: int
    mirrored: tuple[bool, ...]
    edges: tuple[float, ...] = ()
    values: bool = False


def _columns(columns: Sequence[str], x: np.ndarray) -> tuple[str, ...]:
    names = _strings(columns, "The columns") or (("action",) if x.shape[1:] == (1,) else tuple(f"action_{i}" for i in range(x.shape[-1])))
    if x.ndim != 2 or x.shape[1] != len(names) or not len(x):
        raise UserError(f"The actions have shape {x.shape}, expected (N, {len(names)}) with at least one row: {', '.join(names)}.")
    if len(set(names)) < len(names):
        raise UserError(f"The columns of the action are {', '.join(names)}, expected different ones.")
    return names


def _plans(
    columns: tuple[str, ...], k: Any, apart: bool, mirror: tuple[str, ...], edges: dict[str, Any], values: tuple[str, ...]
) -> list[_Plan]:
    """Which columns are cut together and how, in the order of their first columns."""
    for what, named in (("mirror", mirror), ("edges", tuple(edges)), ("values", values)):
        if strange := [name for name in named if name not in columns]:
            raise UserError(f"{what} names {strange[0]!r}, expected columns of the action: {', '.join(columns)}.")
    if both := [name for name in values if name in edges]:
        raise UserError(f"{both[0]!r} has edges and is in values, expected one of the two.")
    if cut := [name for name in mirror if name in edges or name in values]:
        raise UserError(f"{cut[0]!r} is cut by edges or values, expected mirror to name columns that are clustered.")
    free = [name for name in columns if name not in edges and name not in values]
    groups = [(name,) for name in free] if apart else [tuple(free)] if free else []
    ks = _ks(k, len(groups))
    plans = [_Plan(group, n, tuple(name in mirror for name in group)) for group, n in zip(groups, ks, strict=True)]
    plans += [_Plan((name,), 0, (False,), edges=_edges(name, cuts)) for name, cuts in edges.items()]
    plans += [_Plan((name,), 0, (False,), values=True) for name in values]
    return sorted(plans, key=lambda plan: columns.index(plan.columns[0]))


def _ks(k: Any, groups: int) -> list[int]:
    """How many centroids each group of columns gets."""
    many = [configs.fit(Count, n, "k") for n in (k if isinstance(k, Sequence) and not isinstance(k, str) else [k])]
    many = many * groups if len(many) == 1 else many
    if len(many) != groups:
        raise UserError(
            f"k is {', '.join(map(str, many))}, expected one number, or {groups}: one for each group of columns that is clustered."
        )
    return many


def _edges(name: str, cuts: Any) -> tuple[float, ...]:
    places = tuple(configs.fit(float, place, f"An edge of {name!r}") for place in cuts)
    if not places or list(places) != sorted(set(places)):
        raise UserError(f"The edges of {name!r} are {', '.join(f'{place:g}' for place in places) or 'none'}, expected rising numbers.")
    return places


def _part(plan: _Plan, x: np.ndarray, seed: int, restarts: int) -> Part:
    spread = x.std(0)
    scale = np.where(spread > 0, spread, 1.0)
    if plan.edges:
        return Part(plan.columns, _middles(plan.edges, x[:, 0])[:, None], scale, plan.edges)
    if plan.values:
        found = np.unique(x[:, 0])
        limits.check_most(
            f"The column {plan.columns[0]!r} has too many different values to be actions each", len(found), limits.MOST_ACTIONS
        )
        return Part(plan.columns, found[:, None], scale)
    mirrored = np.array(plan.mirrored)
    limits.check_most("k asks for too many actions", plan.k, limits.MOST_ACTIONS)
    found = _different(x, mirrored, plan.k)
    if found < plan.k:
        what = f"the action's {', '.join(map(repr, plan.columns))}"
        raise UserError(f"k is {plan.k}, but {what} has {found} different values, expected at most {found}.")
    middle = np.where(mirrored, 0.0, x.mean(0))
    centroids = k_means((x - middle) / scale, plan.k, seed=seed, restarts=restarts, mirrored=mirrored if mirrored.any() else None)
    if centroids is None:
        raise UserError(f"k is {plan.k}, but some clusters of {', '.join(map(repr, plan.columns))} are the same, expected a smaller k.")
    centroids = centroids * scale + middle + 0.0  # no -0.0
    about = np.round(centroids / scale, 1)  # in the order of the columns, as a reader sees them
    return Part(plan.columns, centroids[np.lexsort([*centroids.T[::-1], *about.T[::-1]])], scale)


def _different(x: np.ndarray, mirrored: np.ndarray, enough: int) -> int:
    """How many different rows there are, mirror images included; not counted beyond what is enough."""
    for some in (x[:10_000], x):
        both = np.concatenate([some, np.where(mirrored, -some, some)]) if mirrored.any() else some
        if (found := len(np.unique(both, axis=0))) >= enough:
            break
    return found


def _middles(edges: tuple[float, ...], x: np.ndarray) -> np.ndarray:
    """What stands for each bin: the mean of what falls in it; of an empty one its middle, or the edge of an open one."""
    place = np.searchsorted(np.array(edges), x, side="right")
    count = np.bincount(place, minlength=len(edges) + 1)
    middle = np.concatenate([edges[:1], (np.array(edges[1:]) + edges[:-1]) / 2, edges[-1:]])
    return np.where(count > 0, np.bincount(place, x, len(edges) + 1) / np.maximum(count, 1), middle)


# --- Names ---------------------------------------------------------------------------------------------------------------


def centroids(columns: tuple[str, ...], parts: tuple[Part, ...]) -> np.ndarray:
    """``[A, C]``: the centroids of all parts, multiplied out."""
    index = np.indices([len(part.centroids) for part in parts]).reshape(len(parts), -1)
    result = np.zeros((index.shape[1], len(columns)))
    for part, choice in zip(parts, index, strict=True):
        result[:, [columns.index(name) for name in part.columns]] = part.centroids[choice]
    return result


def generated_names(columns: tuple[str, ...], parts: tuple[Part, ...]) -> tuple[str, ...]:
    """Names such as "acc -1.2, lat 0.0", with as many digits as it takes to tell the actions apart."""
    table = centroids(columns, parts)
    names: tuple[str, ...] = ()
    for digits in range(1, 18):
        texts = [[_number(value, digits, bool((table[:, j] % 1 == 0).all())) for j, value in enumerate(row)] for row in table]
        names = tuple(", ".join(f"{column} {text}" for column, text in zip(columns, row, strict=True)) for row in texts)
        if len(set(names)) == len(names):
            return names
    return tuple(f"{name} ({a})" for a, name in enumerate(names))


def _number(value: float, digits: int, whole: bool) -> str:
    if whole:
        return f"{value:.0f}"
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def _given_names(names: tuple[str, ...], actions: int) -> tuple[str, ...]:
    if names and (len(names) != actions or len(set(_strings(names, "The names"))) < actions):
        raise UserError(f"There are {len(set(names))} different names for the actions, expected {actions}.")
    return names


def _strings(given: Any, what: str = "The names") -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(name, str) and name for name in given):
        raise UserError(f"{what} are {doors.called(given)}, expected strings, none of them empty.")
    return tuple(given)


def _part_from(given: Any) -> Part:
    """A part out of JSON values."""
    centroids, scale = (np.array(given[name], np.float64) for name in ("centroids", "scale"))
    part = Part(_strings(given["columns"]), centroids, scale, tuple(map(float, given["edges"])))
    width = len(part.columns)
    fits = part.centroids.ndim == 2 and part.centroids.shape[1] == width and part.scale.shape == (width,) and len(part.centroids) > 0
    sound = fits and np.isfinite(part.centroids).all() and np.isfinite(part.scale).all() and (part.scale > 0).all()
    if not sound or (
        part.edges and (width != 1 or len(part.centroids) != len(part.edges) + 1 or list(part.edges) != sorted(set(part.edges)))
    ):
        raise ValueError("not a part")
    return part
