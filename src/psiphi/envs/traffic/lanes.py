"""Lanes as columns of numbers: straight, sinusoidal and circular, with coordinates along and across each.

A road never changes, so its lanes are host arrays that become constants of the compiled program.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

WIDTH = 4.0
"""Width of every lane."""
CAR_LENGTH = 5.0
"""How far beyond its ends a lane still counts as the car's lane."""
MARGIN = 1.0
"""How far beside a lane a car still counts as a neighbour on it."""


class Lane(NamedTuple):
    """One lane. A circular lane has a centre, a radius and phases; any other a start, a direction and, if it winds, a sine."""

    x: float
    y: float
    """Where it starts, or the centre of its circle."""
    length: float
    speed_limit: float
    heading: float = 0.0
    cos: float = 1.0
    sin: float = 0.0
    """Unit vector from its start to its end."""
    amplitude: float = 0.0
    pulsation: float = 0.0
    phase: float = 0.0
    """The sine across the straight line, as a function of the distance along it."""
    circular: bool = False
    radius: float = 1.0
    start_phase: float = 0.0
    turn: float = 1.0
    """+1: phases grow along the lane (to the right), -1: they fall (to the left)."""


class Lanes(NamedTuple):
    """m lanes side by side: the fields of `Lane`, each an array ``[m]``."""

    x: Any
    y: Any
    length: Any
    speed_limit: Any
    heading: Any
    cos: Any
    sin: Any
    amplitude: Any
    pulsation: Any
    phase: Any
    circular: Any
    radius: Any
    start_phase: Any
    turn: Any


def straight(start: Sequence[float], end: Sequence[float], speed_limit: float = 20.0) -> Lane:
    """A straight lane between two points."""
    delta = np.subtract(end, start, dtype=float)
    length = float(np.linalg.norm(delta))
    heading = float(np.arctan2(delta[1], delta[0]))
    return Lane(float(start[0]), float(start[1]), length, speed_limit, heading, float(delta[0] / length), float(delta[1] / length))


def sine(start: Sequence[float], end: Sequence[float], amplitude: float, pulsation: float, phase: float, speed_limit: float = 20.0) -> Lane:
    """A lane that swings about the line between two points."""
    return straight(start, end, speed_limit)._replace(amplitude=amplitude, pulsation=pulsation, phase=phase)


def arc(centre: Sequence[float], radius: float, start_phase: float, end_phase: float, clockwise: bool, speed_limit: float = 20.0) -> Lane:
    """A part of a circle, from one phase to another."""
    turn = 1.0 if clockwise else -1.0
    length = radius * (end_phase - start_phase) * turn
    return Lane(centre[0], centre[1], length, speed_limit, circular=True, radius=radius, start_phase=start_phase, turn=turn)


def stack(lanes: Sequence[Lane]) -> Lanes:
    """Lanes as columns."""
    return Lanes(*(np.array(column) for column in zip(*lanes, strict=True)))


def wrap(angle: Array) -> Array:
    """An angle between -pi and pi."""
    return (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi


def pick(lanes: Lanes, index: Array) -> Lanes:
    """The lanes with these numbers; a column that is the same for all lanes needs no look-up."""
    return Lanes(*(column[0] if np.all(column == column[0]) else jnp.asarray(column)[index] for column in lanes))


def is_parallel(lanes: Lanes) -> bool:
    """Whether the distance along one lane is the distance along every lane: the highway, where much less need be computed."""
    same = [lanes.cos, lanes.sin, lanes.length, lanes.x * lanes.cos + lanes.y * lanes.sin]
    return not lanes.circular.any() and not lanes.amplitude.any() and all(np.all(column == column[0]) for column in same)


def _may_be(column: Array | np.ndarray | np.generic) -> bool:
    """Whether some lane may have this at all, as far as is known before the program runs."""
    return isinstance(column, Array) or bool(np.any(column))


def _where(mask: np.ndarray, part: Float[Array, "n p"]) -> Float[Array, "n m"]:
    """What was computed for some lanes only, in its place among all of them, 0 elsewhere."""
    nothing = jnp.zeros_like(part[:, :1])
    return jnp.concatenate([part, nothing], axis=1)[:, np.where(mask, np.cumsum(mask) - 1, part.shape[1])]


def local(lanes: Lanes, x: Float[Array, "n"], y: Float[Array, "n"]) -> tuple[Float[Array, "n m"], Float[Array, "n m"]]:
    """Distance along and across (positive: to the right) every lane, of every point."""
    dx, dy = x[:, None] - lanes.x, y[:, None] - lanes.y
    s = dx * lanes.cos + dy * lanes.sin
    lateral = dy * lanes.cos - dx * lanes.sin
    winds, bends = lanes.amplitude != 0, lanes.circular
    if winds.any():
        wave = lanes.amplitude[winds] * jnp.sin(lanes.pulsation[winds] * s[:, winds] + lanes.phase[winds])
        lateral = lateral - _where(winds, wave)
    if not bends.any():
        return s, lateral
    if len(np.unique(np.stack([lanes.x[bends], lanes.y[bends]]), axis=1).T) == 1:  # one centre: its angles are dear, and the same for all
        dx, dy = (x - lanes.x[bends][0])[:, None], (y - lanes.y[bends][0])[:, None]
    around = lanes.turn * wrap(jnp.arctan2(dy, dx) - lanes.start_phase) * lanes.radius
    off = lanes.turn * (lanes.radius - jnp.sqrt(dx * dx + dy * dy))
    return jnp.where(bends, around, s), jnp.where(bends, off, lateral)


def headings(lanes: Lanes, s: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """The direction of every lane at a distance along each, for each of n cars."""
    winds, bends = lanes.amplitude != 0, lanes.circular
    heading = jnp.broadcast_to(lanes.heading, s.shape)
    if winds.any():
        part = jax.tree.map(lambda column: column[winds], lanes)
        heading = heading + _where(winds, heading_at(part, s[:, winds]) - part.heading)
    return jnp.where(bends, _tangent(lanes, s), heading) if bends.any() else heading


def heading_at(lanes: Lanes, s: Array) -> Array:
    """The direction of each lane at a distance along it; `lanes` and `s` broadcast."""
    heading = lanes.heading
    if _may_be(lanes.amplitude):
        heading = heading + jnp.arctan(lanes.amplitude * lanes.pulsation * jnp.cos(lanes.pulsation * s + lanes.phase))
    if not _may_be(lanes.circular):
        return jnp.broadcast_to(jnp.asarray(heading, s.dtype), jnp.broadcast_shapes(np.shape(heading), s.shape))
    return jnp.where(lanes.circular, _tangent(lanes, s), heading)


def _tangent(lanes: Lanes, s: Array) -> Array:
    return lanes.turn * s / lanes.radius + lanes.start_phase + jnp.pi / 2 * lanes.turn


def position(lanes: Lanes, s: Array, lateral: Array | float = 0.0) -> tuple[Array, Array]:
    """The point at a distance along and across each lane; `lanes`, `s` and `lateral` broadcast."""
    across = lateral + lanes.amplitude * jnp.sin(lanes.pulsation * s + lanes.phase)
    phi = lanes.turn * s / lanes.radius + lanes.start_phase
    radius = lanes.radius - lateral * lanes.turn
    x = jnp.where(lanes.circular, lanes.x + radius * jnp.cos(phi), lanes.x + s * lanes.cos - across * lanes.sin)
    y = jnp.where(lanes.circular, lanes.y + radius * jnp.sin(phi), lanes.y + s * lanes.sin + across * lanes.cos)
    return x, y


def distance(lanes: Lanes, s: Float[Array, "n m"], lateral: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """How far a point is from a lane: beside it plus before or behind it."""
    return jnp.abs(lateral) + jnp.maximum(s - lanes.length, 0) + jnp.maximum(-s, 0)


def closest(lanes: Lanes, s: Float[Array, "n m"], lateral: Float[Array, "n m"], heading: Float[Array, "n"]) -> Int[Array, "n"]:
    """The lane each car is on: the nearest, where a radian of heading counts as a metre."""
    turned = jnp.abs(wrap(heading[:, None] - headings(lanes, s)))
    return jnp.argmin(distance(lanes, s, lateral) + turned, axis=1).astype(jnp.int32)


def covers(lanes: Lanes, s: Float[Array, "n m"], lateral: Float[Array, "n m"], margin: float = 0.0) -> Bool[Array, "n m"]:
    """Whether each lane holds each car, a margin beside it included."""
    return (jnp.abs(lateral) <= WIDTH / 2 + margin) & (s >= -CAR_LENGTH) & (s < lanes.length + CAR_LENGTH)
