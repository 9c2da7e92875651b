"""MOBIL: when to change lanes, and when to give a change up."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from psiphi.envs.traffic import idm, lanes
from psiphi.envs.traffic.neighbours import neighbours
from psiphi.envs.traffic.roads import NOWHERE, Road, at
from psiphi.envs.traffic.routes import leg_of
from psiphi.envs.traffic.vehicles import Cars, Drivers, Scene, along, own

MIN_GAIN = 0.2
"""The acceleration that a lane must promise over the present one. Followers' losses do not count (highway-env's politeness is 0)."""
MIN_SPEED = 1.0
"""A car slower than this does not change lanes."""


def wanted(
    road: Road, cars: Cars, drivers: Drivers, scene: Scene, target_lane: Int[Array, "n"], now: Float[Array, "n"], free: Float[Array, "n"]
) -> Int[Array, "n"]:
    """The lane each driver would steer for if it thought of it now: left is considered, then right, which has the last word.

    `now` is the acceleration expected on the present lane, `free` that on a free road.
    """
    left, to_left = _recommended(road, cars, drivers, scene, target_lane, now, free, -1)
    right, to_right = _recommended(road, cars, drivers, scene, target_lane, now, free, 1)
    return jnp.where(to_right, right, jnp.where(to_left, left, target_lane))


def _recommended(
    road: Road,
    cars: Cars,
    drivers: Drivers,
    scene: Scene,
    target_lane: Int[Array, "n"],
    now: Float[Array, "n"],
    free: Float[Array, "n"],
    side: int,
) -> tuple[Int[Array, "n"], Bool[Array, "n"]]:
    """The lane at a side and whether MOBIL recommends it."""
    me = jnp.arange(cars.lane.shape[0])
    here, count = at(road.rank, cars.lane), at(road.count, at(road.edge, cars.lane))
    rank = here + side
    candidate = jnp.clip(cars.lane + side, 0, len(road.edge) - 1)
    exists = (rank >= 0) & (rank < count)
    near = neighbours(road, scene, candidate)
    follower_free = idm.free_road(cars.speed[near.rear], idm.limited(road, cars, drivers)[near.rear], drivers.exponent)
    imposed = idm.behind(road, cars, drivers, scene, follower_free, near.rear, me, jnp.ones_like(exists))
    safe = jnp.where(near.has_rear, imposed, 0.0) >= -drivers.max_braking
    then = idm.behind(road, cars, drivers, scene, free, me, near.front, near.has_front)
    preferred = leg_of(drivers.route_rank, cars.leg)
    there = at(road.rank, target_lane)
    on_the_way = (jnp.sign(rank - there) == jnp.sign(preferred - there)) & (then >= -drivers.max_braking)
    worth_it = jnp.where(preferred != NOWHERE, on_the_way, then - now >= MIN_GAIN)
    return candidate, exists & _reachable(road, cars, scene, candidate) & safe & worth_it


def _reachable(road: Road, cars: Cars, scene: Scene, candidate: Int[Array, "n"]) -> Bool[Array, "n"]:
    s, lateral = own(scene.s, candidate), own(scene.lateral, candidate)
    beside = (jnp.abs(lateral) <= 2 * lanes.WIDTH) & (s >= 0) & (s < at(road.lanes.length, candidate) + lanes.CAR_LENGTH)
    return beside & (jnp.abs(cars.speed) >= MIN_SPEED)


def abort(
    road: Road,
    cars: Cars,
    drivers: Drivers,
    scene: Scene,
    followed: Int[Array, "n"],
    decided: Int[Array, "n"],
    changing: Bool[Array, "n"],
) -> Int[Array, "n"]:
    """Target lanes after those who are changing lanes (`changing`, into `followed`) have looked whether a car ahead wants there too.

    Drivers decide in the order of the list and see the new decision of those before them (`decided`, unless aborted) but the old one of
    those behind them. As no car depends on a later one, repeating the simultaneous rule until nothing changes gives exactly that.
    """
    order = jnp.arange(cars.lane.shape[0])
    ahead = along(road, scene, cars.lane) - own(scene.s, cars.lane)[:, None]
    close = (ahead > 0) & (ahead < idm.desired_gaps(cars, drivers, scene)) & drivers.announced & (cars.lane != followed[:, None])
    rival = close & (order[:, None] != order) & changing[:, None]
    before = order < order[:, None]

    def again(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        targets, _ = carry
        seen = jnp.where(before, targets, cars.target_lane)
        gives_up = jnp.any(rival & (seen == followed[:, None]), axis=1)
        revised = jnp.where(gives_up, cars.lane, decided)
        return revised, jnp.any(revised != targets)

    return jax.lax.while_loop(lambda carry: carry[1], again, (decided, jnp.ones((), bool)))[0]
