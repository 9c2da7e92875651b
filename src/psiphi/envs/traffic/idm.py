"""The Intelligent Driver Model: how hard to accelerate behind the car ahead."""

import math

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from psiphi.envs.traffic.roads import Road, at
from psiphi.envs.traffic.vehicles import Cars, Drivers, Scene

COMFORT_ACCELERATION, COMFORT_BRAKING = 3.0, 5.0
MAX_ACCELERATION = 6.0
SMALLEST = 1e-2
"""Nothing is divided by less."""


def not_zero(x: Array) -> Array:
    """The same, kept away from zero on its own side of it."""
    return jnp.where(jnp.abs(x) > SMALLEST, x, jnp.where(x >= 0, SMALLEST, -SMALLEST))


def free_road(speed: Array, target_speed: Array, exponent: Array) -> Array:
    """Acceleration towards the target speed, with no car ahead."""
    return COMFORT_ACCELERATION * (1 - jnp.power(jnp.maximum(speed, 0) / jnp.abs(not_zero(target_speed)), exponent))


def desired_gap(jam_distance: Array, time_gap: Array, speed: Array, closing: Array) -> Array:
    """The distance, centre to centre, that a driver wants to a car which it approaches at speed `closing`."""
    return jam_distance + speed * time_gap + speed * closing / (2 * math.sqrt(COMFORT_ACCELERATION * COMFORT_BRAKING))


def interaction(gap: Array, distance: Array) -> Array:
    """What the car ahead takes from the acceleration."""
    return COMFORT_ACCELERATION * jnp.square(gap / not_zero(distance))


def limited(road: Road, cars: Cars, drivers: Drivers) -> Float[Array, "n"]:
    """Target speeds within the limit of the lane each car is on."""
    return jnp.clip(drivers.target_speed, 0, at(road.lanes.speed_limit, cars.lane))


def behind(
    road: Road,
    cars: Cars,
    drivers: Drivers,
    scene: Scene,
    free: Float[Array, "n"],
    follower: Int[Array, "n"],
    leader: Int[Array, "n"],
    has_leader: Bool[Array, "n"],
) -> Float[Array, "n"]:
    """The acceleration that driver i expects of car `follower[i]` behind car `leader[i]`, given the former's on a free road.

    Driver i takes its own habits (d0, tau, delta) for everybody's. The distance is along the follower's lane.
    """
    cos, sin, speed = scene.cos[follower], scene.sin[follower], cars.speed[follower]
    closing = (scene.vx[follower] - scene.vx[leader]) * cos + (scene.vy[follower] - scene.vy[leader]) * sin
    gap = desired_gap(drivers.jam_distance, drivers.time_gap, speed, closing)
    if road.parallel:
        distance = scene.s[leader, 0] - scene.s[follower, 0]
    else:
        lanes = cars.lane[follower]
        distance = scene.s[leader, lanes] - scene.s[follower, lanes]
    return jnp.where(has_leader, free - interaction(gap, distance), free)


def desired_gaps(cars: Cars, drivers: Drivers, scene: Scene) -> Float[Array, "n n"]:
    """Row i: the distance that i wants to each car, were it ahead."""
    dvx, dvy = scene.vx[:, None] - scene.vx, scene.vy[:, None] - scene.vy
    closing = dvx * scene.cos[:, None] + dvy * scene.sin[:, None]
    return desired_gap(drivers.jam_distance[:, None], drivers.time_gap[:, None], cars.speed[:, None], closing)
