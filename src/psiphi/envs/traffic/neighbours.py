"""Who drives ahead and behind on a lane."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from psiphi.envs.traffic.roads import Road
from psiphi.envs.traffic.vehicles import Scene, along, own


class Neighbours(NamedTuple):
    """The car ahead and the car behind, each with whether there is one."""

    front: Int[Array, "n"]
    has_front: Bool[Array, "n"]
    rear: Int[Array, "n"]
    has_rear: Bool[Array, "n"]


def neighbours(road: Road, scene: Scene, lanes: Int[Array, "n"]) -> Neighbours:
    """Each car's neighbours on a lane of its choice, where others count up to a metre beside it. Abreast is ahead.

    Of several at the same distance the last in the list is ahead, the first behind, as highway-env's search has it.
    """
    n = scene.s.shape[0]
    order = jnp.arange(n, dtype=jnp.int32)
    here, there = own(scene.s, lanes)[:, None], along(road, scene, lanes)
    present = scene.covers.T[lanes] & (order[:, None] != order)
    ahead, behind = present & (here <= there), present & (there < here)
    nearest = _masked(jnp.min, there, ahead, jnp.inf)
    latest = _masked(jnp.max, there, behind, -jnp.inf)
    front = jnp.max(jnp.where(ahead & (there == nearest), order, 0), axis=1)
    rear = jnp.min(jnp.where(behind & (there == latest), order, n - 1), axis=1)
    return Neighbours(front, jnp.isfinite(nearest[:, 0]), rear, jnp.isfinite(latest[:, 0]))


def _masked(extremum, values: Float[Array, "n n"], mask: Bool[Array, "n n"], otherwise: float) -> Float[Array, "n 1"]:
    return extremum(jnp.where(mask, values, otherwise), axis=1, keepdims=True)
