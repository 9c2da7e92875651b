"""What a driver sees: itself and the nearest others, as [x, y, vx, vy] each."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from psiphi.envs.traffic import lanes as lane
from psiphi.envs.traffic.roads import Road
from psiphi.envs.traffic.vehicles import Cars

PERCEPTION = 200.0
"""No car sees farther, as in highway-env."""

Order = Literal["along", "around"]
"""What near means: along the lane one is on (highway-env), or as the crow flies."""


def nearest(road: Road, cars: Cars, who: Int[Array, "k"], count: int, order: Order) -> tuple[Int[Array, "k c"], Bool[Array, "k c"]]:
    """The `count` cars nearest to each of `who`, nearest first (equally near: first in the list first), and whether each is in sight."""
    dx, dy = cars.x - cars.x[who][:, None], cars.y - cars.y[who][:, None]
    apart = jnp.sqrt(dx * dx + dy * dy)
    far = (apart >= PERCEPTION) | (who[:, None] == jnp.arange(cars.x.shape[0]))
    gaps = jnp.where(far, jnp.inf, _along(road, cars, who) if order == "along" else apart)
    closest, index = jax.lax.top_k(-gaps, count)
    return index, jnp.isfinite(closest)


def _along(road: Road, cars: Cars, who: Int[Array, "k"]) -> Float[Array, "k n"]:
    """How far every car is from each of `who`, along the latter's lane."""
    if road.parallel:
        return jnp.abs(cars.x - cars.x[who][:, None])
    s = lane.local(road.typed(cars.x.dtype).lanes, cars.x, cars.y)[0].T[cars.lane[who]]
    return jnp.abs(s - jnp.take_along_axis(s, who[:, None], axis=1))


def kinematics(cars: Cars, who: Int[Array, "k"], others: Int[Array, "k c"]) -> Float[Array, "k c1 4"]:
    """[x, y, vx, vy] of each of `who`, then of its others relative to it."""
    every = jnp.stack([cars.x, cars.y, cars.speed * jnp.cos(cars.heading), cars.speed * jnp.sin(cars.heading)], axis=-1)
    mine = every[who][:, None]
    return jnp.concatenate([mine, every[others] - mine], axis=1)


def scaled(
    raw: Float[Array, "k c1 4"],
    seen: Bool[Array, "k c"],
    *,
    centre: tuple[float, ...],
    own: tuple[float, ...],
    relative: tuple[float, ...],
    clip: float,
) -> Float[Array, "k c1 4"]:
    """What a network is shown: one's own row less `centre` by `own`, the others by `relative`, all within `clip`.

    A car that is not there is shown as one far ahead that keeps its distance: zeros would say that it is where I am.
    """
    missing = jnp.array([clip, 0.0, 0.0, 0.0], raw.dtype)
    mine = (raw[:, :1] - jnp.array(centre, raw.dtype)) / jnp.array(own, raw.dtype)
    others = jnp.where(seen[..., None], raw[:, 1:] / jnp.array(relative, raw.dtype), missing)
    return jnp.clip(jnp.concatenate([mine, others], axis=1), -clip, clip)
