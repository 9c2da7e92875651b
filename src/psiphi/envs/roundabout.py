"""Roundabout: enter, drive around and leave at the third exit, among others who leave at the first or second; highway-env's in pure JAX.

Places are named as in `traffic.roads`: the ego comes from the south ("ser"); its first exit is the east ("exr"), its second the north
("nxr"), its third the west ("wxr"). What the paper leaves open is a field of `RoundaboutConfig`, with the reason for its default.
"""

import dataclasses
import heapq
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from psiphi.envs.traffic import actions, drive, observe, roads
from psiphi.envs.traffic.control import decide
from psiphi.envs.traffic.observe import Order
from psiphi.envs.traffic.roads import NOWHERE, Road
from psiphi.envs.traffic.vehicles import LENGTH, MAX_SPEED, Cars, Drivers, cars_at, drivers_of, look, own
from psiphi.errors import UserError
from psiphi.types import Env, EnvSpec, TimeStep

ROAD = roads.roundabout()
CLIP = 10.0
"""No entry of an observation is larger, either way."""
EXITS = ("exr", "nxr", "wxr", "sxr")
"""The ends of the exit roads, in the order in which a car from the south passes them."""
Exit = Int[Array, ""] | int
"""One of them, by its place there."""


@dataclasses.dataclass(frozen=True)
class Arrival:
    """Where a car starts."""

    start: str
    end: str
    """The edge it starts on, by its two places."""
    rank: int
    """Its lane there: 0 is the inner one."""
    s: float
    """Metres along the lane, on average."""
    speed: float = 11.0
    """Metres per second, on average; what another car starts with is what it goes on wanting."""


@dataclasses.dataclass(frozen=True)
class RoundaboutConfig:
    """The world, what everybody wants in it, and what the ego is shown and paid."""

    others: tuple[Arrival, ...] = (
        Arrival("ser", "ses", 0, 105.0),
        Arrival("se", "ex", 1, 5.0),
        Arrival("ex", "ee", 1, 15.0),
        Arrival("eer", "ees", 0, 5.0),
    )
    """Where the others start: one enters ahead of the ego, two are in the ring ahead of it, one enters behind it. Among highway-env's four
    (see `like_highway_env`), who never give way, a driver that knows no more than IDM crashes in most episodes."""
    exits: tuple[str, ...] = ("exr", "nxr")
    """Where they go, each drawing one (paper: the first or second exit). A demonstrator is one of these exits."""
    exit_weights: tuple[float, ...] = (1.0, 1.0)
    """How often each is drawn, relative to the others."""
    ego: Arrival = Arrival("ser", "ses", 0, 80.0, 10.0)
    """Where the ego starts: 64 m before the ring, to see others enter and leave first (highway-env: 19 m before it, at 8 m/s)."""
    ego_exit: str = "wxr"
    """Where it must go (paper: the third exit, which is not demonstrated)."""
    ego_target_speed: float = 12.0
    """What IDM would drive in the ego's place, and what others expect of it."""
    place_deviation: float = 2.0
    """Standard deviation of where the others start (highway-env: 2)."""
    speed_deviation: float = 1.0
    """Standard deviation of their speed (highway-env: 2 at a mean of 16 m/s, here 1 at 11)."""
    simulation_frequency: int = 15
    """Sub-steps per second (highway-env: 15); bends need more than the highway's 5."""
    policy_frequency: int = 5
    """Actions per second: with highway-env's 1, low-level commands are not drivable."""
    max_steps: int = 100
    """Time limit in actions, here 20 s: highway-env's 11 s are too short for the third exit. It is no termination (discount 1)."""
    patience: float = 1.0
    """Seconds between two thoughts of changing lanes (highway-env: 1)."""
    max_braking: float = 2.0
    """The braking in m/s^2 that a driver may impose by changing lanes (highway-env: 2)."""
    reverses: bool = False
    """Whether the ego may drive backwards (highway-env: yes)."""
    hidden_ego: bool = False
    """highway-env's quirk: an ego with continuous actions has no target speed; others then expect it to brake without bounds."""
    shoulder: float = 1.0
    """Metres beside a lane that still belong to the road: where lanes meet, a car between them is beside all of them."""
    table: actions.Table = actions.ROUNDABOUT
    """The ego's actions, (acceleration, steering) each (paper: 6 centroids)."""
    same_actions: bool = True
    """Whether the others drive by the ego's table, too: what each wants is snapped to it and held for the action's sub-steps. What they
    show is then a step of the ego's own world. Off: by continuous commands (highway-env), of which the nearest action is only noted."""
    observed: int = 3
    """Others in an observation, and demonstrators watched (paper: 3)."""
    order: Order = "around"
    """Nearest as the crow flies: highway-env's distance along one's own lane ("along") means little between lanes that cross."""
    demonstrator: Literal["goal", "car"] = "goal"
    """Who a demonstrator is: one of `exits`, or one of the others' cars for one episode."""
    progress_weight: float = 0.25
    """Reward per metre that the way to the exit gets shorter than it ever was: about 0.5 per step at 10 m/s. Passing the exit makes the way
    a turn longer; that costs nothing, or a learner not sure to hit the exit would crash before it, and going round again earns nothing."""
    exit_reward: float = 5.0
    """Reward of leaving at the right exit, which terminates."""
    crash_cost: float = 5.0
    """Cost of a crash, of leaving the road or of the wrong exit, each of which terminates."""

    def __post_init__(self):
        _check(self)

    @property
    def frames(self) -> int:
        """Sub-steps per action."""
        return self.simulation_frequency // self.policy_frequency

    @property
    def dt(self) -> float:
        """Seconds per sub-step."""
        return 1 / self.simulation_frequency


def _check(config: RoundaboutConfig) -> None:
    for name in ("simulation_frequency", "policy_frequency", "max_steps", "observed"):
        if not isinstance(getattr(config, name), int) or getattr(config, name) < 1:
            raise UserError(f"Roundabout's {name} is {getattr(config, name)}, expected a whole number of at least 1.")
    if config.simulation_frequency % config.policy_frequency:
        raise UserError(
            f"Roundabout's simulation_frequency is {config.simulation_frequency}, expected a multiple of the policy_frequency, "
            f"{config.policy_frequency}."
        )
    if len(config.others) < config.observed:
        raise UserError(f"Roundabout has {len(config.others)} others, expected at least the {config.observed} in an observation.")
    for place in (*config.exits, config.ego_exit):
        if place not in EXITS:
            raise UserError(f"Roundabout's exit is {place!r}, expected one of {', '.join(EXITS)}.")
    if not config.exits or len(config.exits) != len(config.exit_weights):
        raise UserError(f"Roundabout has {len(config.exits)} exits with {len(config.exit_weights)} weights, expected one for each.")
    if min(config.exit_weights) < 0 or not any(config.exit_weights):
        raise UserError(f"Roundabout's exit_weights are {config.exit_weights}, expected numbers of at least 0, some of them positive.")
    for name in ("place_deviation", "speed_deviation"):
        if not getattr(config, name) >= 0:
            raise UserError(f"Roundabout's {name} is {getattr(config, name)}, expected a number of at least 0.")
    actions.check("Roundabout", config.table)
    if not 0 <= config.ego_target_speed <= MAX_SPEED:
        raise UserError(f"Roundabout's ego_target_speed is {config.ego_target_speed}, expected a speed from 0 to {MAX_SPEED:g}.")
    _check_arrivals(config)


def _check_arrivals(config: RoundaboutConfig) -> None:
    """Every car must start on a lane, and not inside of another."""
    there: list[tuple[tuple[str, str, int], float]] = []
    for arrival in (*config.others, config.ego):
        edge = (arrival.start, arrival.end)
        if edge not in ROAD.names or not 0 <= arrival.rank < ROAD.count[ROAD.names.index(edge)]:
            raise UserError(f"A car starts on lane {arrival.rank} from {arrival.start!r} to {arrival.end!r}, which the roundabout has not.")
        index = ROAD.lane_of(*edge, arrival.rank)
        length, circular = float(ROAD.lanes.length[index]), bool(ROAD.lanes.circular[index])
        if not (circular or 0 <= arrival.s <= length):  # a circle goes on before and behind each of its lanes
            raise UserError(f"A car starts at {arrival.s:g} m from {arrival.start!r} to {arrival.end!r}, but that lane has {length:.1f} m.")
        if not 0 <= arrival.speed <= MAX_SPEED:
            raise UserError(f"A car starts at {arrival.speed} m/s, expected a speed from 0 to {MAX_SPEED:g}.")
        lane = (*edge, arrival.rank)
        if any(lane == other and abs(arrival.s - s) < LENGTH for other, s in there):
            raise UserError(
                f"Two cars start less than a car's length apart on lane {arrival.rank} from {arrival.start!r} to {arrival.end!r}."
            )
        there.append((lane, arrival.s))


def like_highway_env() -> RoundaboutConfig:
    """roundabout-v0's traffic: its four cars at 16 m/s, its three destinations, its place for the ego and its quirk."""
    others = (("we", "sx", 1, 5.0), ("we", "sx", 0, 20.0), ("we", "sx", 0, -20.0), ("eer", "ees", 0, 50.0))
    return RoundaboutConfig(
        others=tuple(Arrival(*place, speed=16.0) for place in others),
        exits=("exr", "sxr", "nxr"),
        exit_weights=(1.0, 1.0, 1.0),
        ego=Arrival("ser", "ses", 0, 125.0, 8.0),
        speed_deviation=2.0,
        reverses=True,
        hidden_ego=True,
        same_actions=False,
    )


# --- The way to an exit --------------------------------------------------------------------------------------------------


def remaining(road: Road, goal: str) -> np.ndarray:
    """Metres from the end of each lane to where the exit road that ends at `goal` begins; infinite where no way leads there, ``[m]``."""
    finish = next(edge for edge, (_, end) in enumerate(road.names) if end == goal)
    length = np.array([road.lanes.length[first] for first in road.first])
    left = np.full(len(road.names), np.inf)
    left[finish] = -length[finish]  # from its end, where it begins is behind
    queue = [(float(left[finish]), finish)]
    while queue:
        far, edge = heapq.heappop(queue)
        for before in np.flatnonzero((road.successors == edge).any(1)).tolist():
            if far + length[edge] < left[before]:
                left[before] = far + length[edge]
                heapq.heappush(queue, (float(left[before]), before))
    return left[road.edge]


def exit_lanes(road: Road) -> np.ndarray:
    """Which exit's road (by its place in EXITS) each lane is, NOWHERE for all others, ``[m]``."""
    return np.array([EXITS.index(road.names[e][1]) if road.names[e][1] in EXITS else NOWHERE for e in road.edge], np.int32)


def way_left(cars: Cars, exit: Exit, before: Array | float) -> Float[Array, ""]:
    """Metres the ego still has to the exit's road, along the lane it is on; on a lane that does not lead there, what it was before.

    None are left on the exit's road, wherever it was entered: else who drives up the road beside it and then turns in is paid for that.
    """
    table = jnp.asarray(np.stack([remaining(ROAD, name) for name in EXITS]), cars.x.dtype)
    lanes = cars.lane[:1]
    s = own(look(ROAD, cars).s[:1], lanes)[0]
    left = (table[exit, lanes] + jnp.asarray(ROAD.lanes.length, cars.x.dtype)[lanes])[0] - s
    return jnp.where(jnp.isfinite(left), jnp.maximum(left, 0), before).astype(cars.x.dtype)


# --- An episode ----------------------------------------------------------------------------------------------------------


class State(NamedTuple):
    """An episode at a moment. Car 0 is the ego; `cars` already holds what the others are about to do."""

    cars: Cars
    drivers: Drivers
    kind: Int[Array, "n"]
    """Which of the config's exits each car takes; the ego's is NO_DEMONSTRATOR."""
    way: Float[Array, ""]
    """The fewest metres that the ego ever had to its exit."""
    t: Int[Array, ""]
    """Actions taken."""


def num_demonstrators(config: RoundaboutConfig) -> int:
    """K."""
    return len(config.exits) if config.demonstrator == "goal" else len(config.others)


def reset(config: RoundaboutConfig, key: Array, exit: Exit) -> State:
    """Everybody near its place, with a route to its exit and with what it is about to do."""
    kind_key, place_key, speed_key, habit_key = jax.random.split(key, 4)
    arrivals = (config.ego, *config.others)
    n = len(arrivals)
    is_other = jnp.arange(n) > 0
    weights = jnp.log(jnp.array(config.exit_weights))
    kind = jnp.where(is_other, jax.random.categorical(kind_key, weights, shape=(n,)), drive.NO_DEMONSTRATOR).astype(jnp.int32)
    lanes = jnp.array([ROAD.lane_of(a.start, a.end, a.rank) for a in arrivals], jnp.int32)
    s = jnp.array([a.s for a in arrivals]) + config.place_deviation * jax.random.normal(place_key, (n,)) * is_other
    speed = jnp.array([a.speed for a in arrivals]) + config.speed_deviation * jax.random.normal(speed_key, (n,)) * is_other
    cars = cars_at(ROAD, lanes, s, speed)
    exponent = jnp.where(is_other, jax.random.uniform(habit_key, (n,), minval=3.5, maxval=4.5), 4.0)
    drivers = _drivers(config, cars, jnp.where(is_other, _exits(config.exits)[kind], exit), exponent)
    cars = decide(ROAD, drivers, cars)
    return State(cars, drivers, kind, way_left(cars, exit, 0.0), jnp.zeros((), jnp.int32))


def _exits(names: tuple[str, ...]) -> Int[Array, "n"]:
    return jnp.array([EXITS.index(name) for name in names], jnp.int32)


def _drivers(config: RoundaboutConfig, cars: Cars, exits: Int[Array, "n"], exponent: Float[Array, "n"]) -> Drivers:
    """Habits, and routes from wherever each car is. The ego has a plan of its own too (see `expert`), of which others know nothing."""
    is_ego = jnp.arange(len(exits)) == 0
    room = max(roads.routes(ROAD, goal).shape[1] for goal in EXITS)
    table = jnp.asarray(np.stack([roads.routes(ROAD, goal, room) for goal in EXITS]), jnp.int32)
    route = table[exits, jnp.asarray(ROAD.edge)[cars.lane]]
    rank = jnp.full_like(route, NOWHERE).at[:, 0].set(jnp.asarray(ROAD.rank, jnp.int32)[cars.lane])
    known = 0.0 if config.hidden_ego else config.ego_target_speed
    habits = drivers_of(jnp.where(is_ego, known, cars.speed), exponent)
    return habits._replace(
        announced=~is_ego,
        max_braking=jnp.full_like(exponent, config.max_braking),
        patience=jnp.full_like(exponent, config.patience),
        route=route,
        route_rank=rank,
    )


def see(config: RoundaboutConfig, cars: Cars, who: Int[Array, "k"]) -> Float[Array, "k c 4"]:
    """What each of `who` is shown: itself on the map (metres/10 from the middle, m/s/10), then its nearest others relative to it."""
    others, seen = observe.nearest(ROAD, cars, who, config.observed, config.order)
    raw = observe.kinematics(cars, who, others)
    scale = (10.0, 10.0, 10.0, 10.0)
    return observe.scaled(raw, seen, centre=(0.0, 0.0, 0.0, 0.0), own=scale, relative=scale, clip=CLIP)


def expert(config: RoundaboutConfig, state: State) -> Int[Array, ""]:
    """The action nearest to what IDM and MOBIL would do on the way to the ego's exit, if they have been obeyed so far."""
    return drive.expert(config.table, state.cars)


class Ending(NamedTuple):
    """Why an episode may end."""

    crashed: Bool[Array, ""]
    off_road: Bool[Array, ""]
    wrong_exit: Bool[Array, ""]
    arrived: Bool[Array, ""]


def ending(config: RoundaboutConfig, cars: Cars, exit: Exit) -> Ending:
    """What has become of the ego; only who is on the road has arrived anywhere."""
    off_road = ~drive.on_road(ROAD, cars, config.shoulder)[0]
    at = jnp.asarray(exit_lanes(ROAD))[cars.lane[0]]
    out = (at != NOWHERE) & ~off_road & ~cars.crashed[0]
    right = at == exit
    return Ending(cars.crashed[0], off_road, out & ~right, out & right)


def make(config: RoundaboutConfig = RoundaboutConfig(), exit: Exit | None = None) -> Env:  # noqa: B008 - a frozen value
    """The environment; `exit` takes the place of the config's `ego_exit`, and may be an argument of a compiled program.

    `TimeStep.extras` holds the fields of `Ending` and the step's demonstrations: `demonstrator`, the numbers of those watched (-1: an
    empty slot), and `demonstration`, their `Demonstration`.
    """
    wheel = drive.Wheel(ROAD, config.table, config.frames, config.dt, config.reverses, config.same_actions, None)
    ego = jnp.zeros(1, jnp.int32)
    goal = EXITS.index(config.ego_exit) if exit is None else exit

    def start(key: Array) -> tuple[State, Array]:
        state = reset(config, key, goal)
        return state, see(config, state.cars, ego)[0]

    def step(state: State, action: Array, key: Array) -> tuple[State, TimeStep]:
        del key  # all that is random is drawn at the start
        cars = drive.take(wheel, state.drivers, state.cars, action)
        end = ending(config, cars, goal)
        failed = end.crashed | end.off_road | end.wrong_exit
        number = state.kind if config.demonstrator == "goal" else jnp.arange(len(state.kind), dtype=jnp.int32) - 1
        watched = drive.watch(ROAD, state.cars, number, config.observed, config.order)
        who, steps = drive.demonstrate(config.table, watched, state.cars, cars, lambda cars, k: see(config, cars, k))
        way = jnp.minimum(state.way, way_left(cars, goal, state.way))
        next_state = State(cars, state.drivers, state.kind, way, state.t + 1)
        paid = config.progress_weight * (state.way - next_state.way) + config.exit_reward * end.arrived - config.crash_cost * failed
        over = failed | end.arrived
        extras = {**end._asdict(), "demonstrator": who, "demonstration": steps}
        last = over | (next_state.t >= config.max_steps)
        return next_state, TimeStep(see(config, cars, ego)[0], paid, 1.0 - over.astype(jnp.float32), last, extras)

    return Env(spec(config), start, step)


def spec(config: RoundaboutConfig) -> EnvSpec:
    """Observation ``float32[observed + 1, 4]``, the table's actions. No symmetry is declared: traffic goes round one way."""
    return EnvSpec((config.observed + 1, 4), jnp.float32, len(config.table), kind="vector")
