"""Who touches whom: separating axes between boxes, now and at the end of the next sub-step, and the impacts of the latter."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from psiphi.envs.traffic.vehicles import LENGTH, WIDTH, Cars

DIAGONAL = math.hypot(LENGTH, WIDTH)


class Boxes(NamedTuple):
    """Cars as boxes, of any common shape: middle, direction and the way of a sub-step."""

    x: Array
    y: Array
    cos: Array
    sin: Array
    dx: Array
    dy: Array


class Projection(NamedTuple):
    """Two boxes a and b on an axis, relative to b's middle; a is swept along its motion relative to b's."""

    between: Array
    """a's middle."""
    half_a: Array | float
    half_b: Array | float
    low: Array
    high: Array
    """a's ends, swept."""


def boxes(cars: Cars, dt: float) -> Boxes:
    """All cars, and how far each gets in `dt` seconds."""
    cos, sin = jnp.cos(cars.heading), jnp.sin(cars.heading)
    return Boxes(cars.x, cars.y, cos, sin, cars.speed * cos * dt, cars.speed * sin * dt)


def collide(cars: Cars, dt: float, checked: Bool[Array, "n"] | None = None) -> Cars:
    """Cars that touch crash; cars that will touch are struck. Pairs of which neither is `checked` are left alone (None: all are checked).

    A car that several others will touch keeps the impact of the last of them in the list.
    """
    order = jnp.arange(cars.x.shape[0])
    every = boxes(cars, dt)
    row, column = jax.tree.map(lambda x: x[:, None], every), jax.tree.map(lambda x: x[None, :], every)
    now, soon = touch(row, column)
    near = _near(cars, dt, checked)
    last = jnp.max(jnp.where(near & soon, order, -1), axis=1)
    struck = last >= 0
    return cars._replace(
        crashed=cars.crashed | jnp.any(near & now, axis=1),
        struck=cars.struck | struck,
        impact=jnp.where(struck[:, None], _impact(every, jnp.maximum(last, 0)), cars.impact),
    )


def _near(cars: Cars, dt: float, checked: Bool[Array, "n"] | None) -> Bool[Array, "n n"]:
    """Pairs that highway-env looks at: their circles meet if the earlier in the list keeps its speed towards the other."""
    order = jnp.arange(cars.x.shape[0])
    dx, dy = cars.x[:, None] - cars.x, cars.y[:, None] - cars.y
    earlier = jnp.where(order[:, None] < order, cars.speed[:, None], cars.speed)
    near = (jnp.sqrt(dx * dx + dy * dy) <= DIAGONAL + earlier * dt) & (order[:, None] != order)
    return near if checked is None else near & (checked[:, None] | checked)


def touch(a: Boxes, b: Boxes) -> tuple[Array, Array]:
    """Whether boxes overlap, and whether they will: no axis along a side of either parts them."""
    now = soon = jnp.ones((), bool)
    for _, _, p in _projections(a, b):
        now = now & (jnp.abs(p.between) <= p.half_a + p.half_b)
        soon = soon & (p.low <= p.half_b) & (p.high >= -p.half_b)
    return now, soon


def push(a: Boxes, b: Boxes) -> tuple[Array, Array]:
    """The shortest way to move a out of b's way, along a side of either.

    highway-env tries the sides of a, then those of b, in the order backwards, right, forwards, left, and keeps the first of equal depths.
    To look along an axis or against it makes a difference where one interval lies within the other, or where nothing lies between.
    """
    first, second, third, fourth = _projections(a, b)
    depth, x, y = jnp.full(jnp.shape(a.x), jnp.inf, a.x.dtype), jnp.zeros_like(a.x), jnp.zeros_like(a.x)
    for axis in [_against(first), second, first, _against(second), _against(third), fourth, third, _against(fourth)]:
        found, towards_x, towards_y = _depth(*axis)
        better = found < depth
        depth, x, y = jnp.where(better, found, depth), jnp.where(better, towards_x, x), jnp.where(better, towards_y, y)
    return depth * x, depth * y


def _impact(every: Boxes, other: Array) -> Float[Array, "n 2"]:
    """Half of the push that parts each car from another one; the earlier in the list is a."""
    mine, theirs = every, jax.tree.map(lambda x: x[other], every)
    earlier = jnp.arange(other.shape[0]) < other
    a = jax.tree.map(lambda x, y: jnp.where(earlier, x, y), mine, theirs)
    b = jax.tree.map(lambda x, y: jnp.where(earlier, y, x), mine, theirs)
    share = jnp.where(earlier, 0.5, -0.5)
    return share[:, None] * jnp.stack(push(a, b), axis=-1)


def _projections(a: Boxes, b: Boxes) -> list[tuple[Array, Array, Projection]]:
    """Both boxes on each of the four axes: a's direction and its normal, b's direction and its normal."""
    aligned, crossed = jnp.abs(a.cos * b.cos + a.sin * b.sin), jnp.abs(a.sin * b.cos - a.cos * b.sin)
    long, wide = LENGTH / 2, WIDTH / 2
    ends, flanks = aligned * long + crossed * wide, crossed * long + aligned * wide
    x, y, dx, dy = a.x - b.x, a.y - b.y, a.dx - b.dx, a.dy - b.dy

    def project(nx: Array, ny: Array, half_a: Array | float, half_b: Array | float) -> tuple[Array, Array, Projection]:
        between, sweep = x * nx + y * ny, dx * nx + dy * ny
        low, high = between - half_a + jnp.minimum(sweep, 0), between + half_a + jnp.maximum(sweep, 0)
        return nx, ny, Projection(between, half_a, half_b, low, high)

    return [
        project(a.cos, a.sin, long, ends),
        project(-a.sin, a.cos, wide, flanks),
        project(b.cos, b.sin, ends, long),
        project(-b.sin, b.cos, flanks, wide),
    ]


def _against(axis: tuple[Array, Array, Projection]) -> tuple[Array, Array, Projection]:
    """The same seen from the other end of the axis."""
    nx, ny, p = axis
    return -nx, -ny, Projection(-p.between, p.half_a, p.half_b, -p.high, -p.low)


def _depth(nx: Array, ny: Array, p: Projection) -> tuple[Array, Array, Array]:
    """How far the intervals overlap, and the direction from b to a."""
    overlap = jnp.abs(jnp.where(p.low < -p.half_b, -p.half_b - p.high, p.low - p.half_b))
    side = jnp.where(p.between > 0, 1.0, -1.0)
    return overlap, side * nx, side * ny
