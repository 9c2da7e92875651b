"""What all drivers do about what they see: plan, steer, accelerate."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from psiphi.envs.traffic import idm, mobil, routes
from psiphi.envs.traffic import lanes as lane
from psiphi.envs.traffic.neighbours import neighbours
from psiphi.envs.traffic.roads import Road
from psiphi.envs.traffic.vehicles import LENGTH, Cars, Drivers, Scene, look, own

HEADING_GAIN, LATERAL_GAIN, PURSUIT = 1 / 0.2, 1 / 0.6, 0.1
"""highway-env's controller: rates of heading and lateral position, and how many seconds ahead it reads the lane's direction."""
MAX_STEERING = jnp.pi / 3


def decide(road: Road, drivers: Drivers, cars: Cars) -> Cars:
    """Every scripted driver's new target lane and command; the others', and the crashed ones', stay."""
    road = road.typed(cars.x.dtype)
    scene = look(road, cars)
    acting = drivers.scripted & ~cars.crashed
    me = jnp.arange(cars.lane.shape[0])
    followed, leg = routes.follow_road(road, cars, drivers, scene, acting)
    cars = cars._replace(leg=leg)
    free = idm.free_road(cars.speed, idm.limited(road, cars, drivers), drivers.exponent)
    ahead = neighbours(road, scene, cars.lane)
    now = idm.behind(road, cars, drivers, scene, free, me, ahead.front, ahead.has_front)
    target_lane, timer = _plan(road, drivers, cars, scene, followed, now, free)
    ahead_there = neighbours(road, scene, target_lane)
    there = idm.behind(road, cars, drivers, scene, free, me, ahead_there.front, ahead_there.has_front)
    acceleration = jnp.where(cars.lane != target_lane, jnp.minimum(now, there), now)
    return cars._replace(
        target_lane=target_lane,
        timer=timer,
        acceleration=jnp.where(acting, jnp.clip(acceleration, -idm.MAX_ACCELERATION, idm.MAX_ACCELERATION), cars.acceleration),
        steering=jnp.where(acting, steer(road, cars, scene, target_lane), cars.steering),
    )


def _plan(
    road: Road, drivers: Drivers, cars: Cars, scene: Scene, followed: Int[Array, "n"], now: Float[Array, "n"], free: Float[Array, "n"]
) -> tuple[Int[Array, "n"], Float[Array, "n"]]:
    """Target lanes and timers after everybody has thought of changing lanes, or of not completing a change."""
    acting = drivers.scripted & ~cars.crashed
    changing = acting & (cars.lane != followed)
    thinking = acting & ~changing & (cars.timer > drivers.patience)
    decided = jnp.where(thinking, mobil.wanted(road, cars, drivers, scene, followed, now, free), followed)
    edge = jnp.asarray(road.edge)
    side_by_side = changing & (edge[cars.lane] == edge[followed]) if len(road.names) > 1 else changing
    return mobil.abort(road, cars, drivers, scene, followed, decided, side_by_side), jnp.where(thinking, 0.0, cars.timer)


def steer(road: Road, cars: Cars, scene: Scene, target_lane: Int[Array, "n"]) -> Float[Array, "n"]:
    """The steering angle that leads to a lane's middle: lateral error to lateral speed to heading to heading rate to angle."""
    table = lane.pick(road.lanes, target_lane)
    s, lateral = own(scene.s, target_lane), own(scene.lateral, target_lane)
    speed = idm.not_zero(cars.speed)
    bend = jnp.clip(jnp.arcsin(jnp.clip(-LATERAL_GAIN * lateral / speed, -1, 1)), -jnp.pi / 4, jnp.pi / 4)
    heading = lane.heading_at(table, s + cars.speed * PURSUIT) + bend
    rate = HEADING_GAIN * lane.wrap(heading - cars.heading)
    sine = jnp.clip(LENGTH / 2 / speed * rate, -1, 1)
    # highway-env's arctan(2 tan(arcsin(sine))); in float32 the tangent of the rounded pi/2 would have the wrong sign.
    return jnp.clip(jnp.arctan2(2 * sine, jnp.sqrt((1 - sine) * (1 + sine))), -MAX_STEERING, MAX_STEERING)
