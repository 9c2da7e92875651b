"""How cars move: a bicycle model, impacts, and the brake of those who crashed."""

import jax.numpy as jnp

from psiphi.envs.traffic import lanes as lane
from psiphi.envs.traffic.roads import Road
from psiphi.envs.traffic.vehicles import LENGTH, MAX_SPEED, Cars


def command(cars: Cars) -> Cars:
    """The command as it is carried out: a crashed car goes straight and slows down, no car accelerates beyond the maximal speed."""
    acceleration = jnp.where(cars.crashed, -cars.speed, cars.acceleration)
    acceleration = jnp.where(cars.speed > MAX_SPEED, jnp.minimum(acceleration, MAX_SPEED - cars.speed), acceleration)
    acceleration = jnp.where(cars.speed < -MAX_SPEED, jnp.maximum(acceleration, -MAX_SPEED - cars.speed), acceleration)
    return cars._replace(acceleration=acceleration, steering=jnp.where(cars.crashed, 0.0, cars.steering))


def integrate(road: Road, cars: Cars, dt: float) -> Cars:
    """Everybody a moment later. An impact moves its car once and makes it crashed."""
    cars, road = command(cars), road.typed(cars.x.dtype)
    slip = jnp.arctan(0.5 * jnp.tan(cars.steering))
    pushed = jnp.where(cars.struck[:, None], cars.impact, 0.0)
    x = cars.x + cars.speed * jnp.cos(cars.heading + slip) * dt + pushed[:, 0]
    y = cars.y + cars.speed * jnp.sin(cars.heading + slip) * dt + pushed[:, 1]
    heading = cars.heading + cars.speed * jnp.sin(slip) / (LENGTH / 2) * dt
    return cars._replace(
        x=x,
        y=y,
        heading=heading,
        speed=cars.speed + cars.acceleration * dt,
        lane=lane.closest(road.lanes, *lane.local(road.lanes, x, y), heading),
        timer=cars.timer + dt,
        crashed=cars.crashed | cars.struck,
        struck=jnp.zeros_like(cars.struck),
    )
