"""Roads as tables: lanes, the edges (parallel lanes between two places) they belong to, what follows what, and routes.

The two roads are highway-env's. Lanes are numbered in its order, which decides ties.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi.envs.traffic import lanes as lane
from psiphi.envs.traffic.lanes import Lane, Lanes
from psiphi.errors import UserError

NOWHERE = -1
"""In a table of edges or lanes: none."""


class Road(NamedTuple):
    """m lanes on e edges."""

    lanes: Lanes
    names: tuple[tuple[str, str], ...]
    """The two places each edge connects."""
    edge: np.ndarray
    """The edge of each lane, ``[m]``."""
    rank: np.ndarray
    """Its place on that edge, from the left, ``[m]``."""
    first: np.ndarray
    """The leftmost lane of each edge, ``[e]``."""
    count: np.ndarray
    """Lanes of each edge, ``[e]``."""
    successors: np.ndarray
    """The edges that begin where each edge ends, padded with NOWHERE, ``[e, f]``."""
    parallel: bool
    """Whether all lanes share one distance along the road."""

    def typed(self, dtype: Any) -> "Road":
        """The same in another precision: that of the cars, whatever JAX's default is."""
        return self._replace(
            lanes=self.lanes._replace(**{k: v.astype(dtype) for k, v in self.lanes._asdict().items() if v.dtype.kind == "f"})
        )

    def edge_of(self, start: str, end: str) -> int:
        """The number of the edge between two places."""
        return self.names.index((start, end))

    def lane_of(self, start: str, end: str, rank: int = 0) -> int:
        """The number of a lane by its edge and its place on it."""
        return int(self.first[self.edge_of(start, end)]) + rank


def build(parts: Sequence[tuple[str, str, Lane]]) -> Road:
    """A road from lanes with the places they connect, numbered by first mention of the place they leave, then of the one they reach."""
    graph: dict[str, dict[str, list[Lane]]] = {}
    for start, end, part in parts:
        graph.setdefault(start, {}).setdefault(end, []).append(part)
    names = tuple((start, end) for start in graph for end in graph[start])
    count = np.array([len(graph[start][end]) for start, end in names])
    numbers = {name: i for i, name in enumerate(names)}
    following = [[numbers[end, after] for after in graph.get(end, {})] for _, end in names]
    most = max(1, *map(len, following))
    table = lane.stack([part for start, end in names for part in graph[start][end]])
    return Road(
        lanes=table,
        names=names,
        edge=np.repeat(np.arange(len(names)), count).astype(np.int32),
        rank=np.concatenate([np.arange(c) for c in count]).astype(np.int32),
        first=(np.cumsum(count) - count).astype(np.int32),
        count=count.astype(np.int32),
        successors=np.array([edges + [NOWHERE] * (most - len(edges)) for edges in following], np.int32),
        parallel=lane.is_parallel(table),
    )


def at(column: np.ndarray, index: Array | np.generic) -> Any:
    """Entries of a table's column; one that is the same everywhere needs no look-up."""
    return column[0] if (column == column[0]).all() else jnp.asarray(column)[index]


def highway(num_lanes: int = 4, length: float = 10_000.0, speed_limit: float = 30.0) -> Road:
    """Parallel straight lanes along x; lane 0 at y = 0 is the leftmost."""
    if num_lanes < 1:
        raise UserError(f"A highway has {num_lanes} lanes, expected at least 1.")
    ys = lane.WIDTH * np.arange(num_lanes)
    return build([("0", "1", lane.straight((0.0, y), (length, y), speed_limit)) for y in ys])


ACCESS, BEND, SWING, ENTRY = 170.0, 85.0, 5.0, 17.0
"""The roundabout's access roads: how far they reach, the wave length and the amplitude of their bends, the bend's part at an entry."""
RADIUS, OPENING = 20.0, 24.0
"""Radius of the inner lane and half the angle between an entry and the next exit, in degrees."""


def roundabout() -> Road:
    """highway-env's roundabout: two circular lanes driven counter-clockwise on a map (y downwards), four entries and four exits.

    Places are named by direction (s, e, n, w), e for entry or x for exit, and r (road's end) or s (start of its bend).
    """
    return build([*_ring(), *_accesses()])


def _ring() -> list[tuple[str, str, Lane]]:
    a = OPENING
    places = ["se", "ex", "ee", "nx", "ne", "wx", "we", "sx", "se"]
    phases = [
        (90 - a, a),
        (a, -a),
        (-a, a - 90),
        (a - 90, -90 - a),
        (-90 - a, a - 180),
        (a - 180, -180 - a),
        (180 - a, 90 + a),
        (90 + a, 90 - a),
    ]
    return [
        (start, end, lane.arc((0.0, 0.0), RADIUS + lane.WIDTH * i, np.deg2rad(p), np.deg2rad(q), clockwise=False))
        for start, end, (p, q) in zip(places, places[1:], phases, strict=False)
        for i in range(2)
    ]


def _accesses() -> list[tuple[str, str, Lane]]:
    """The south's entry and exit, turned by a quarter three times."""
    half, leave, w = BEND / 2, BEND - ENTRY, 2 * np.pi / BEND
    out = 2 + SWING
    parts = []
    for side, (c, s) in {"s": (1, 0), "e": (0, 1), "n": (-1, 0), "w": (0, -1)}.items():

        def turned(x: float, y: float, c: int = c, s: int = s) -> tuple[float, float]:
            return (c * x + s * y, c * y - s * x)

        parts += [
            (f"{side}er", f"{side}es", lane.straight(turned(2, ACCESS), turned(2, half))),
            (f"{side}es", f"{side}e", lane.sine(turned(out, half), turned(out, half - ENTRY), SWING, w, -np.pi / 2)),
            (f"{side}x", f"{side}xs", lane.sine(turned(-out, leave - half), turned(-out, half), SWING, w, -np.pi / 2 + w * leave)),
            (f"{side}xs", f"{side}xr", lane.straight(turned(-2, half), turned(-2, ACCESS))),
        ]
    return parts


def route(road: Road, start: int, goal: str) -> list[int]:
    """Edges from edge `start` (included) to a place, as few as possible; only `start` where there is no way."""
    origin = road.names[start][1]
    before: dict[str, tuple[str, int] | None] = {origin: None}
    queue = deque([origin])
    while queue and goal not in before:
        here = queue.popleft()
        for edge, (a, b) in sorted(enumerate(road.names), key=lambda item: item[1][1]):
            if a == here and b not in before:
                before[b] = (a, edge)
                queue.append(b)
    path: list[int] = []
    step = before.get(goal)
    while step is not None:
        path.insert(0, step[1])
        step = before[step[0]]
    return [start, *path]


def routes(road: Road, goal: str, room: int = 0) -> np.ndarray:
    """`route` from each edge, padded with NOWHERE to a common length, ``[e, r]``."""
    each = [route(road, edge, goal) for edge in range(len(road.names))]
    longest = max(room, *map(len, each))
    return np.array([edges + [NOWHERE] * (longest - len(edges)) for edges in each], np.int32)
