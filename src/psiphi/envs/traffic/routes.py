"""What comes after the end of a lane."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from psiphi.envs.traffic import lanes as lane
from psiphi.envs.traffic.roads import NOWHERE, Road, at
from psiphi.envs.traffic.vehicles import LENGTH, Cars, Drivers, Scene, own


def follow_road(
    road: Road, cars: Cars, drivers: Drivers, scene: Scene, acting: Bool[Array, "n"]
) -> tuple[Int[Array, "n"], Int[Array, "n"]]:
    """Target lanes and legs after each driver has looked whether the lane it steers for ends."""
    s = own(scene.s, cars.target_lane)
    ending = acting & (s > at(road.lanes.length, cars.target_lane) - LENGTH / 2)
    edge = at(road.edge, cars.target_lane)
    leg = jnp.where(ending & (leg_of(drivers.route, cars.leg) == edge), cars.leg + 1, cars.leg)
    if (road.successors == NOWHERE).all():
        return cars.target_lane, leg
    planned, rank = leg_of(drivers.route, leg), leg_of(drivers.route_rank, leg)
    on_route = jnp.asarray(_leads_to(road))[edge, planned] & (planned != NOWHERE)
    table = lane.pick(road.lanes, cars.target_lane)
    away = lane.distance(road.lanes, *lane.local(road.lanes, *lane.position(table, s)))
    ahead = jnp.where(on_route, _entered(road, cars.target_lane, planned, rank, away), _nearest(road, cars.target_lane, away))
    return jnp.where(ending, ahead, cars.target_lane).astype(cars.lane.dtype), leg


def leg_of(table: Int[Array, "n r"], leg: Int[Array, "n"]) -> Int[Array, "n"]:
    """The current entry of each route, NOWHERE after its end."""
    room = table.shape[1]
    return jnp.where(leg < room, own(table, jnp.minimum(leg, room - 1)), NOWHERE)


def _leads_to(road: Road):
    """``[e, e]``: whether the second edge begins where the first ends."""
    return (road.successors[:, :, None] == range(len(road.names))).any(1)


def _entered(
    road: Road, lanes: Int[Array, "n"], edge: Int[Array, "n"], rank: Int[Array, "n"] | int, away: Float[Array, "n m"]
) -> Int[Array, "n"]:
    """The lane on which a car enters an edge: the same one where there are as many, the planned one if any, else the closest."""
    count, first = jnp.asarray(road.count), jnp.asarray(road.first)
    kept = first[edge] + jnp.where(rank == NOWHERE, jnp.asarray(road.rank)[lanes], rank)
    closest = jnp.argmin(jnp.where(road.edge == edge[:, None], away, jnp.inf), axis=1)
    return jnp.where(count[jnp.asarray(road.edge)[lanes]] == count[edge], kept, closest)


def _nearest(road: Road, lanes: Int[Array, "n"], away: Float[Array, "n m"]) -> Int[Array, "n"]:
    """Without a plan: the closest of the lanes on which the car would enter the edges that follow; at the road's end, the lane it has."""
    following = jnp.asarray(road.successors)[jnp.asarray(road.edge)[lanes]]
    entered = [_entered(road, lanes, following[:, k], NOWHERE, away) for k in range(following.shape[1])]
    options = jnp.stack(entered, axis=1)
    gaps = jnp.where(following == NOWHERE, jnp.inf, jnp.take_along_axis(away, options, axis=1))
    return jnp.where(following[:, 0] == NOWHERE, lanes, own(options, jnp.argmin(gaps, axis=1)))
