"""One sub-step of traffic: all drivers decide, all cars move, collisions are noted."""

from jax import Array
from jaxtyping import Bool

from psiphi.envs.traffic.collisions import collide
from psiphi.envs.traffic.control import decide
from psiphi.envs.traffic.kinematics import integrate
from psiphi.envs.traffic.roads import Road
from psiphi.envs.traffic.vehicles import Cars, Drivers


def move(road: Road, cars: Cars, dt: float, checked: Bool[Array, "n"] | None = None) -> Cars:
    """Carry out the commands for `dt` seconds. See `collide` for `checked`."""
    return collide(integrate(road, cars, dt), dt, checked)


def substep(road: Road, drivers: Drivers, cars: Cars, dt: float, checked: Bool[Array, "n"] | None = None) -> Cars:
    """highway-env's sub-step: the scripted drivers decide, then everybody moves. A car that is not scripted repeats its command."""
    return move(road, decide(road, drivers, cars), dt, checked)
