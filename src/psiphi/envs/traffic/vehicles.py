"""What a car is at a moment, and what its driver is for good."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from psiphi.envs.traffic import lanes as lane
from psiphi.envs.traffic.roads import NOWHERE, Road

LENGTH, WIDTH = 5.0, 2.0
"""Every car's size."""
MAX_SPEED = 40.0
"""No car is driven faster, forwards or backwards."""


class Cars(NamedTuple):
    """n cars at a moment. Their order matters where highway-env goes through its list: aborted lane changes and impacts."""

    x: Float[Array, "n"]
    y: Float[Array, "n"]
    heading: Float[Array, "n"]
    speed: Float[Array, "n"]
    lane: Int[Array, "n"]
    """The lane it is on: the closest."""
    target_lane: Int[Array, "n"]
    """The lane its driver steers for; another one than `lane` while it changes lanes."""
    leg: Int[Array, "n"]
    """The edges of its route that it has left behind."""
    timer: Float[Array, "n"]
    """Seconds since its driver last thought of changing lanes."""
    acceleration: Float[Array, "n"]
    steering: Float[Array, "n"]
    """The command, kept until the next one."""
    crashed: Bool[Array, "n"]
    struck: Bool[Array, "n"]
    """Whether `impact` will move it in the next sub-step."""
    impact: Float[Array, "n 2"]


class Drivers(NamedTuple):
    """What each car's driver wants and how, constant through an episode."""

    scripted: Bool[Array, "n"]
    """Whether IDM and MOBIL give the commands; a car without is left its last command."""
    announced: Bool[Array, "n"]
    """Whether others know its target lane and abort a change into it."""
    target_speed: Float[Array, "n"]
    """What it would drive on a free road; the lane's limit cuts it."""
    exponent: Float[Array, "n"]
    """IDM's delta: how late it stops accelerating towards its target speed."""
    jam_distance: Float[Array, "n"]
    """IDM's d0: the distance, centre to centre, that it leaves in a jam."""
    time_gap: Float[Array, "n"]
    """IDM's tau: the seconds that it leaves to the car ahead."""
    max_braking: Float[Array, "n"]
    """The braking it dares to impose, on itself or its new follower, by a lane change."""
    patience: Float[Array, "n"]
    """Seconds between two thoughts of changing lanes."""
    route: Int[Array, "n r"]
    """Edges to follow, padded with NOWHERE."""
    route_rank: Int[Array, "n r"]
    """The lane it wants on each of them (NOWHERE: any)."""


class Scene(NamedTuple):
    """What the drivers see of a moment, computed once: each car on each lane, and velocities."""

    s: Float[Array, "n m"]
    lateral: Float[Array, "n m"]
    covers: Bool[Array, "n m"]
    """Whether a car counts as a neighbour on a lane."""
    cos: Float[Array, "n"]
    sin: Float[Array, "n"]
    vx: Float[Array, "n"]
    vy: Float[Array, "n"]


def look(road: Road, cars: Cars) -> Scene:
    """The scene of a moment."""
    road = road.typed(cars.x.dtype)
    s, lateral = lane.local(road.lanes, cars.x, cars.y)
    cos, sin = jnp.cos(cars.heading), jnp.sin(cars.heading)
    return Scene(s, lateral, lane.covers(road.lanes, s, lateral, lane.MARGIN), cos, sin, cars.speed * cos, cars.speed * sin)


def along(road: Road, scene: Scene, lanes: Int[Array, "n"]) -> Float[Array, "n n"]:
    """Row i: the distance of every car along the lane that i considers."""
    if road.parallel:
        return jnp.broadcast_to(scene.s[:, 0], (scene.s.shape[0],) * 2)
    return scene.s.T[lanes]


def own(table: Array, lanes: Int[Array, "n"]) -> Array:
    """Each car's own entry in a table ``[n, m]``, for a lane of its own."""
    return jnp.take_along_axis(table, lanes[:, None], axis=1)[:, 0]


def cars_at(
    road: Road, lanes: Int[Array, "n"], s: Float[Array, "n"], speed: Float[Array, "n"], lateral: Float[Array, "n"] | float = 0.0
) -> Cars:
    """Cars on the middle of lanes (or beside it), in the lanes' direction, with no command and highway-env's first timer."""
    road = road.typed(s.dtype)
    table = lane.pick(road.lanes, lanes)
    x, y = lane.position(table, s, lateral)
    heading = jnp.broadcast_to(jnp.asarray(lane.heading_at(table, s), s.dtype), s.shape)
    zero, no = jnp.zeros_like(s), jnp.zeros(s.shape, bool)
    here = lane.closest(road.lanes, *lane.local(road.lanes, x, y), heading)
    timer = ((x + y) * jnp.pi) % 1.0
    return Cars(x, y, heading, speed, here, here, jnp.zeros_like(here), timer, zero, zero, no, no, jnp.zeros((*s.shape, 2), s.dtype))


def drivers_of(target_speed: Float[Array, "n"], exponent: Float[Array, "n"]) -> Drivers:
    """Drivers with highway-env's habits and nowhere to go."""
    like = jnp.zeros_like(target_speed)
    yes = jnp.ones(like.shape, bool)
    nowhere = jnp.full((*like.shape, 1), NOWHERE, jnp.int32)
    return Drivers(yes, yes, target_speed, exponent, like + 10.0, like + 1.5, like + 2.0, like + 1.0, nowhere, nowhere)
