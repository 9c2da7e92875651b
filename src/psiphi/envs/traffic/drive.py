"""What Highway and Roundabout share: the ego at the wheel of car 0, time, and the demonstrations of those who drive around it.

The drivers' commands for the coming moment depend on nothing but the present one, so a state always holds them: what everybody is about
to do is known together with what it sees, and a demonstration with its next action is complete as soon as the step is taken.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from psiphi.envs.traffic import actions
from psiphi.envs.traffic.control import decide
from psiphi.envs.traffic.lanes import covers, local
from psiphi.envs.traffic.observe import Order, nearest
from psiphi.envs.traffic.roads import Road
from psiphi.envs.traffic.simulate import move
from psiphi.envs.traffic.vehicles import Cars, Drivers
from psiphi.types import Demonstration

NOBODY = -1
"""In place of a demonstrator's number: this slot shows nothing."""


class Wheel(NamedTuple):
    """How cars are driven: car 0 by actions of a table, the others by the same actions or by commands of their own."""

    road: Road
    table: actions.Table
    frames: int
    """Sub-steps per action."""
    dt: float
    """Seconds per sub-step."""
    reverses: bool
    """Whether who obeys the table may drive backwards."""
    same_actions: bool
    """Whether the others obey the table, too: what each driver wants is snapped and held for the action's sub-steps."""
    checked: Bool[Array, "n"] | None
    """See `collisions.collide`."""


def take(wheel: Wheel, drivers: Drivers, cars: Cars, action: Array) -> Cars:
    """The world after the ego has held an action for its time, everybody's next command decided.

    Who obeys the table thinks once per action: then one action from one state leads every car to the same next state, whoever drives it.
    """
    if wheel.same_actions:
        drives = drivers.scripted.at[0].set(True)
        action = actions.snap(wheel.table, cars.acceleration, cars.steering).at[0].set(action)
        moved = _repeat(wheel.frames, lambda cars: _obeyed(wheel, cars, drives, action), cars)
        return decide(wheel.road, drivers, moved)
    drives, action = jnp.arange(len(cars.x)) == 0, jnp.full(cars.x.shape, action)
    return _repeat(wheel.frames, lambda cars: decide(wheel.road, drivers, _obeyed(wheel, cars, drives, action)), cars)


def _repeat(times: int, change: Callable[[Cars], Cars], cars: Cars) -> Cars:
    # A loop even over few frames: written out, each of them would have to be compiled.
    return change(cars) if times == 1 else jax.lax.fori_loop(0, times, lambda _, cars: change(cars), cars)


def _obeyed(wheel: Wheel, cars: Cars, drives: Bool[Array, "n"], action: Int[Array, "n"]) -> Cars:
    """A sub-step later: those who drive by the table do what their action says, the others what they were about to do."""
    acceleration, steering = actions.command(wheel.table, action)
    if not wheel.reverses:
        acceleration = jnp.maximum(acceleration, -cars.speed / wheel.dt)
    told = cars._replace(
        acceleration=jnp.where(drives, acceleration.astype(cars.acceleration.dtype), cars.acceleration),
        steering=jnp.where(drives, steering.astype(cars.steering.dtype), cars.steering),
    )
    return move(wheel.road, told, wheel.dt, wheel.checked)


def expert(table: actions.Table, cars: Cars) -> Int[Array, ""]:
    """The action nearest to what IDM and MOBIL would do in the ego's place, if they have driven it so far."""
    return actions.snap(table, cars.acceleration[:1], cars.steering[:1])[0]


def on_road(road: Road, cars: Cars, shoulder: float = 0.0) -> Bool[Array, "n"]:
    """Whether some lane holds each car, with a shoulder beside it."""
    road = road.typed(cars.x.dtype)
    return jnp.any(covers(road.lanes, *local(road.lanes, cars.x, cars.y), shoulder), axis=1)


class Watched(NamedTuple):
    """The demonstrators of a step: the cars nearest to the ego, whether they are in sight, and their numbers as demonstrators."""

    who: Int[Array, "k"]
    number: Int[Array, "k"]


def watch(road: Road, cars: Cars, number: Int[Array, "n"], count: int, order: Order) -> Watched:
    """Whom the ego watches; a car that crashed has nothing to show."""
    who, seen = nearest(road, cars, jnp.zeros(1, jnp.int32), count, order)
    shows = seen[0] & ~cars.crashed[who[0]]
    return Watched(who[0], jnp.where(shows, number[who[0]], NOBODY))


def demonstrate(
    table: actions.Table, watched: Watched, cars: Cars, next_cars: Cars, see: Callable[[Cars, Int[Array, "k"]], Float[Array, "k c 4"]]
) -> tuple[Int[Array, "k"], Demonstration]:
    """What the watched cars saw, did, then saw and are about to do, each from its own seat.

    A car that crashed in this step is nobody: what follows is not its doing. Nobody's task ends within the episode, so discounts are 1.
    """
    who = watched.who
    steps = Demonstration(
        obs=see(cars, who),
        action=actions.snap(table, cars.acceleration[who], cars.steering[who]),
        discount=jnp.ones(who.shape),
        next_obs=see(next_cars, who),
        next_action=actions.snap(table, next_cars.acceleration[who], next_cars.steering[who]),
    )
    return jnp.where(next_cars.crashed[who], NOBODY, watched.number), steps
