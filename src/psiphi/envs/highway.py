"""Highway: drive among others on a straight road, at a speed and in a lane of one's own, with highway-env's traffic in pure JAX.

The paper's three scenarios are `single_task()` (the others want what the ego wants), `adversarial()` (the others are parked) and
`multi_task()` (the others want other speeds, lanes and distances). What the paper leaves open is a field of `HighwayConfig`, with the
reason for its default.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from psiphi.envs.traffic import actions, drive, observe, roads
from psiphi.envs.traffic import lanes as lane
from psiphi.envs.traffic.control import decide
from psiphi.envs.traffic.observe import Order
from psiphi.envs.traffic.roads import NOWHERE, Road
from psiphi.envs.traffic.vehicles import LENGTH, MAX_SPEED, Cars, Drivers, cars_at, look
from psiphi.errors import UserError
from psiphi.types import Env, EnvSpec, TimeStep

ROAD_LENGTH = 10_000.0
CLIP = 6.0
"""No entry of an observation is larger, either way."""


@dataclasses.dataclass(frozen=True)
class Goal:
    """What a driver wants."""

    speed: tuple[float, float]
    """Target speed in m/s, uniform between the two."""
    lane: int | None = None
    """Preferred lane, 0 the leftmost; None: whichever is faster (MOBIL's incentive)."""
    time_gap: float = 1.5
    """Seconds to the car ahead (IDM's tau; highway-env: 1.5)."""
    jam_distance: float = 10.0
    """Metres to the car ahead in a jam, centre to centre (IDM's d0; highway-env: 10)."""
    weight: float = 1.0
    """How often this goal is drawn, relative to the others."""
    parked: bool = False
    """Stands still for ever."""


def goal(speed: float, lane: int, time_gap: float = 1.5) -> Goal:
    """A goal with one speed."""
    return Goal((speed, speed), lane, time_gap)


@dataclasses.dataclass(frozen=True)
class HighwayConfig:
    """The world, what everybody wants in it, and what the ego is shown and paid. The default is the multi-task scenario."""

    lanes: int = 4
    """Lanes (highway-env: 4)."""
    cars: int = 21
    """Cars, the ego included: highway-env's fast variant has 20 others; 50 only cost time, as those far away are never seen."""
    goals: tuple[Goal, ...] = (goal(30, 0, 1.0), goal(26, 1, 1.5), goal(22, 2, 2.0), goal(26, 3, 1.5))
    """What the others want; each car draws one. A demonstrator is one of these goals."""
    ego: Goal = goal(30, 3, 1.0)
    """What the ego is paid for; no other car wants it, but some share its speed and some its lane."""
    density: float = 0.5
    """Cars per distance, relative to highway-env's: high enough that one must plan around others, low enough that goals can be met."""
    ego_rank: int = 5
    """How many cars start behind the ego: at the very back (highway-env: 0) the demonstrators drive away and are not seen again."""
    ego_spacing: float = 1.0
    """The ego's distance to the car behind it, relative to the others' distances (highway-env: 2)."""
    in_goal_lane: float = 0.5
    """How many start in the lane they want: if none did, half of what is seen were lane changes; if all did, none would show one."""
    deficit: tuple[float, float] = (0.0, 12.0)
    """Everybody starts slower than wanted by so much, uniform between the two: else none would show how to accelerate."""
    ego_speed: tuple[float, float] | None = None
    """The ego's speed at the start, uniform between the two; None: as the others'."""
    simulation_frequency: int = 5
    """Sub-steps per second (highway-env: 15; its fast variant: 5)."""
    policy_frequency: int = 5
    """Actions per second: commands held for a whole second are not drivable even for the controller that wants them."""
    max_steps: int = 100
    """Time limit in actions, here 20 s: enough to reach one's lane and speed and stay there. It is no termination (discount 1)."""
    patience: float = 0.0
    """Seconds between two thoughts of changing lanes (highway-env: 1). A timer is hidden from an observer, who could not predict
    the moment of a lane change; 0 makes drivers functions of what there is to see."""
    max_braking: float = 5.0
    """The braking in m/s^2 that a driver may impose by changing lanes (highway-env: 2): at 2 many never reach their lane."""
    reverses: bool = False
    """Whether the ego may drive backwards (highway-env: yes); here braking ends at a standstill."""
    hidden_ego: bool = False
    """highway-env's quirk: an ego with continuous actions has no target speed, others then expect it to brake without bounds and never
    change lanes in front of it. Off: they know its target speed."""
    all_collide: bool = True
    """Whether the others can collide with each other too (highway-env: yes; its fast variant: no)."""
    table: actions.Table = actions.HIGHWAY
    """The ego's actions, (acceleration, steering) each (paper: 9 centroids)."""
    same_actions: bool = True
    """Whether the others drive by the ego's table, too: what each wants is snapped to it and held for the action's sub-steps. What they
    show is then a step of the ego's own world. Off: by continuous commands (highway-env), of which the nearest action is only noted."""
    observed: int = 5
    """Others in an observation, and demonstrators watched (paper: 5)."""
    order: Order = "along"
    """Nearest along the road (highway-env), or as the crow flies ("around")."""
    demonstrator: Literal["goal", "car"] = "goal"
    """Who a demonstrator is: one of `goals` (a car is only seen for some 100 steps), or one car for one episode."""
    speed_weight: float = 0.5
    """Reward per step at the target speed; less by the distance from it."""
    speed_width: float = 10.0
    """Metres per second off the target speed at which nothing of it is left."""
    lane_weight: float = 0.5
    """Reward per step in the middle of the preferred lane; less by the distance from it."""
    lane_width: float = 6.0
    """Metres off that middle at which nothing is left: 1.5 lanes, so that the next lane is a step on the way."""
    gap_weight: float = 0.3
    """Cost per step of following too closely."""
    gap_share: float = 0.5
    """Too close: bumper to bumper less than this share of the ego's time gap at its speed."""
    crash_cost: float = 1.0
    """Cost of a crash or of leaving the road, either of which terminates: little beside all that is then missed. A much
    larger cost is most of the reward's variance, and whoever models the reward (PsiPhi-learning does) learns little else."""

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


def _check(config: HighwayConfig) -> None:
    for name in ("lanes", "cars", "simulation_frequency", "policy_frequency", "max_steps", "observed"):
        if not isinstance(getattr(config, name), int) or getattr(config, name) < 1:
            raise UserError(f"Highway's {name} is {getattr(config, name)}, expected a whole number of at least 1.")
    if config.cars <= config.observed:
        raise UserError(f"Highway has {config.cars} cars, expected more than the {config.observed} others in an observation.")
    if config.simulation_frequency % config.policy_frequency:
        raise UserError(
            f"Highway's simulation_frequency is {config.simulation_frequency}, expected a multiple of the policy_frequency, "
            f"{config.policy_frequency}."
        )
    for name in ("density", "ego_spacing", "speed_width", "lane_width", "max_braking"):
        if not getattr(config, name) > 0:
            raise UserError(f"Highway's {name} is {getattr(config, name)}, expected a positive number.")
    if not 0 <= config.in_goal_lane <= 1:
        raise UserError(f"Highway's in_goal_lane is {config.in_goal_lane}, expected a share from 0 to 1.")
    for name, span in (("deficit", config.deficit), ("ego_speed", config.ego_speed or (0.0, 0.0))):
        if not 0 <= span[0] <= span[1] <= MAX_SPEED:
            raise UserError(f"Highway's {name} is {span}, expected a range within 0 and {MAX_SPEED:g} m/s.")
    if not 0 <= config.ego_rank < config.cars:
        raise UserError(f"Highway's ego_rank is {config.ego_rank}, expected a number from 0 to {config.cars - 1}.")
    actions.check("Highway", config.table)
    _check_goals(config)
    _check_room(config)


def _check_goals(config: HighwayConfig) -> None:
    """What is wanted must be possible on this road."""
    if not config.goals:
        raise UserError("Highway's goals are empty, expected at least one goal for the others.")
    for wish in (*config.goals, config.ego):
        if wish.lane is not None and not 0 <= wish.lane < config.lanes:
            raise UserError(f"A goal's lane is {wish.lane}, expected a lane from 0 to {config.lanes - 1}.")
        if not 0 <= wish.speed[0] <= wish.speed[1] <= MAX_SPEED:
            raise UserError(f"A goal's speed is {wish.speed}, expected a range within 0 and {MAX_SPEED:g} m/s.")
        for name in ("time_gap", "jam_distance", "weight"):
            if not getattr(wish, name) >= 0:
                raise UserError(f"A goal's {name} is {getattr(wish, name)}, expected a number of at least 0.")
    if not any(wish.weight for wish in config.goals):
        raise UserError("Every goal's weight is 0, expected a positive one, as each car draws its goal by weight.")
    if config.ego.lane is None:
        raise UserError("The ego's goal has no lane, expected one from 0, as its reward measures the distance to it.")


def _check_room(config: HighwayConfig) -> None:
    """The cars must fit on the road at the start, apart from each other, and not reach its end."""
    fastest = max(wish.speed[1] for wish in (*config.goals, config.ego))
    longest = 1.1 * _spacing(config, fastest) * (config.cars + 3 * config.ego_spacing)
    travel = MAX_SPEED * config.max_steps / config.policy_frequency
    if longest + travel > ROAD_LENGTH:
        raise UserError(
            f"{config.cars} cars at density {config.density:g} need up to {longest + travel:,.0f} m with the way they drive, but the road "
            f"has {ROAD_LENGTH:,.0f} m; expected fewer cars, a higher density or fewer steps."
        )
    if 0.9 * _spacing(config, 0.0) < LENGTH:
        raise UserError(
            f"At density {config.density:g} on {config.lanes} lanes slow cars would start {0.9 * _spacing(config, 0.0):.1f} m apart, but "
            f"expected at least a car's length, {LENGTH:g} m."
        )


def _spacing(config: HighwayConfig, speed):
    """highway-env's mean distance from one car to the next along the road, whatever their lanes."""
    return (12.0 + speed) * math.exp(-5 / 40 * config.lanes) / config.density


# --- Scenarios -----------------------------------------------------------------------------------------------------------


def single_task() -> HighwayConfig:
    """Everybody wants the same: an inner lane (at an edge, an imitator's small errors lead off the road), which they must share."""
    wish = goal(26, 2)
    return HighwayConfig(goals=(wish,), ego=wish)


def adversarial() -> HighwayConfig:
    """The others are parked on all lanes; the ego must accelerate and reach a lane between them.

    The speed's reward is 30 m/s wide, as within 10 of the target nothing is gained at first and standing still is safest.
    """
    parked = Goal((0.0, 0.0), parked=True)
    return HighwayConfig(
        goals=(parked,), ego=goal(20, 2), density=0.25, ego_rank=0, deficit=(0.0, 0.0), ego_speed=(8.0, 15.0), speed_width=30.0
    )


def multi_task() -> HighwayConfig:
    """Four kinds of drivers, and an ego that shares its speed with one and its lane with another."""
    return HighwayConfig()


def like_highway_env(cars: int = 51, lanes: int = 4, density: float = 1.0) -> HighwayConfig:
    """highway-v0's traffic: no preferred lanes, its spawn, its timer, its quirk and its frequencies for continuous actions."""
    others = Goal((21.0, 24.0))
    return HighwayConfig(
        lanes=lanes,
        cars=cars,
        goals=(others,),
        ego=Goal((25.0, 25.0), lane=0),
        density=density,
        ego_rank=0,
        ego_spacing=2.0,
        in_goal_lane=0.0,
        deficit=(0.0, 0.0),
        simulation_frequency=15,
        policy_frequency=1,
        max_steps=40,
        patience=1.0,
        max_braking=2.0,
        reverses=True,
        hidden_ego=True,
        same_actions=False,
    )


SCENARIOS: dict[str, Callable[[], HighwayConfig]] = {"single-task": single_task, "adversarial": adversarial, "multi-task": multi_task}
"""The paper's three, by name."""


# --- An episode ----------------------------------------------------------------------------------------------------------


class State(NamedTuple):
    """An episode at a moment. Car 0 is the ego; `cars` already holds what the others are about to do."""

    cars: Cars
    drivers: Drivers
    kind: Int[Array, "n"]
    """Which of the config's goals each car has; the ego's is NO_DEMONSTRATOR."""
    t: Int[Array, ""]
    """Actions taken."""


def num_demonstrators(config: HighwayConfig) -> int:
    """K."""
    return len(config.goals) if config.demonstrator == "goal" else config.cars - 1


Wish = Float[Array, "2"]
"""A target speed in m/s and a lane that are numbers of the program, not of the config: one compiled program serves all goals."""


def reset(config: HighwayConfig, road: Road, key: Array, wish: Wish | None = None) -> State:
    """Cars one behind the other, each in a random lane or the one it wants, with what they are about to do."""
    kind_key, speed_key, habit_key, place_key = jax.random.split(key, 4)
    kind = _kinds(config, kind_key)
    wishes = (*config.goals, config.ego)  # the ego's number is -1: the last
    low, high = (jnp.array([wish.speed[end] for wish in wishes])[kind] for end in (0, 1))
    target_speed = low + (high - low) * jax.random.uniform(speed_key, kind.shape)
    drivers = _drivers(config, kind, target_speed, habit_key)
    drivers = drivers if wish is None else _led_to(drivers, wish)
    cars = _place(config, road, kind, target_speed, place_key)
    return State(decide(road, drivers, cars), drivers, kind, jnp.zeros((), jnp.int32))


def _kinds(config: HighwayConfig, key: Array) -> Int[Array, "n"]:
    weights = jnp.log(jnp.array([wish.weight for wish in config.goals]))
    kind = jax.random.categorical(key, weights, shape=(config.cars,)).astype(jnp.int32)
    return kind.at[0].set(drive.NO_DEMONSTRATOR)


def _drivers(config: HighwayConfig, kind: Int[Array, "n"], target_speed: Float[Array, "n"], key: Array) -> Drivers:
    """The others with highway-env's random exponents. The ego has a plan of its own too (see `expert`), of which others know nothing."""
    wishes = (*config.goals, config.ego)

    def each(values: list) -> Array:
        return jnp.array(values)[kind]

    is_ego = kind == drive.NO_DEMONSTRATOR
    ranks = each([NOWHERE if wish.lane is None else wish.lane for wish in wishes])
    moves = each([not wish.parked for wish in wishes])
    known = jnp.where(is_ego & config.hidden_ego, 0.0, target_speed)
    return Drivers(
        scripted=moves,
        announced=moves & ~is_ego,
        target_speed=known,
        exponent=jnp.where(is_ego, 4.0, jax.random.uniform(key, kind.shape, minval=3.5, maxval=4.5)),
        jam_distance=each([wish.jam_distance for wish in wishes]),
        time_gap=each([wish.time_gap for wish in wishes]),
        max_braking=jnp.full(kind.shape, config.max_braking),
        patience=jnp.full(kind.shape, config.patience),
        route=jnp.where(ranks == NOWHERE, NOWHERE, 0)[:, None].astype(jnp.int32),
        route_rank=ranks[:, None].astype(jnp.int32),
    )


def _led_to(drivers: Drivers, wish: Wish) -> Drivers:
    """The ego's plan towards another goal."""
    return drivers._replace(
        target_speed=drivers.target_speed.at[0].set(wish[0]), route_rank=drivers.route_rank.at[0].set(wish[1].astype(jnp.int32))
    )


def _place(config: HighwayConfig, road: Road, kind: Int[Array, "n"], target_speed: Float[Array, "n"], key: Array) -> Cars:
    """Speeds, lanes and places at the start."""
    deficit_key, ego_key, lane_key, wish_key, gap_key = jax.random.split(key, 5)
    low, high = config.deficit
    speed = jnp.maximum(target_speed - jax.random.uniform(deficit_key, kind.shape, minval=low, maxval=high), 0.0)
    if config.ego_speed is not None:
        low, high = config.ego_speed
        speed = speed.at[0].set(jax.random.uniform(ego_key, minval=low, maxval=high))
    wanted = jnp.array([-1 if wish.lane is None else wish.lane for wish in (*config.goals, config.ego)])[kind]
    anywhere = jax.random.randint(lane_key, kind.shape, 0, config.lanes)
    granted = (wanted >= 0) & (jax.random.uniform(wish_key, kind.shape) < config.in_goal_lane) & (kind != drive.NO_DEMONSTRATOR)
    lanes = jnp.where(granted, wanted, anywhere).astype(jnp.int32)
    gap = _spacing(config, speed) * jnp.where(kind == drive.NO_DEMONSTRATOR, config.ego_spacing * config.density, 1.0)
    queue = np.array([*range(1, config.ego_rank + 1), 0, *range(config.ego_rank + 1, config.cars)])
    steps = gap * jax.random.uniform(gap_key, kind.shape, minval=0.9, maxval=1.1)
    s = jnp.zeros_like(gap).at[queue].set(jnp.cumsum(steps[queue])) + 3 * gap[queue[0]]
    return cars_at(road, lanes, s, speed)


def see(config: HighwayConfig, road: Road, cars: Cars, who: Int[Array, "k"]) -> Float[Array, "k c 4"]:
    """What each of `who` is shown: itself, then its nearest others relative to it.

    y/2, dx/50, dy/2, dv/10, own speed less 25; one's own x says nothing on an endless road and is 0. highway-env's y/16 would hide the
    drift that a small steering angle causes.
    """
    others, seen = observe.nearest(road, cars, who, config.observed, config.order)
    raw = observe.kinematics(cars, who, others)
    raw = raw.at[:, 0, 0].set(0.0)
    middle = lane.WIDTH * (config.lanes - 1) / 2
    scale = (50.0, 2.0, 10.0, 10.0)
    return observe.scaled(raw, seen, centre=(0.0, middle, 25.0, 0.0), own=scale, relative=scale, clip=CLIP)


def expert(config: HighwayConfig, state: State) -> Int[Array, ""]:
    """The action nearest to what IDM and MOBIL would do for the ego's goal, in an episode in which they have been obeyed so far."""
    return drive.expert(config.table, state.cars)


def too_close(config: HighwayConfig, road: Road, cars: Cars) -> Bool[Array, ""]:
    """Whether the car ahead of the ego is nearer than is safe."""
    scene = look(road, cars)
    ahead = scene.covers[:, cars.lane[0]] & (cars.x > cars.x[0])
    gap = jnp.min(jnp.where(ahead, cars.x - cars.x[0], jnp.inf)) - LENGTH
    return gap < config.gap_share * config.ego.time_gap * cars.speed[0]


def reward(config: HighwayConfig, road: Road, cars: Cars, failed: Array, wish: Wish | None = None) -> Float[Array, ""]:
    """What the ego is paid in a state it has reached, for the config's goal or for another speed and lane."""
    assert config.ego.lane is not None
    target, rank = (sum(config.ego.speed) / 2, config.ego.lane) if wish is None else (wish[0], wish[1])
    speed = jnp.clip(1 - jnp.abs(cars.speed[0] - target) / config.speed_width, 0, 1)
    place = jnp.clip(1 - jnp.abs(cars.y[0] - lane.WIDTH * rank) / config.lane_width, 0, 1)
    good = config.speed_weight * speed + config.lane_weight * place
    return good - config.gap_weight * too_close(config, road, cars) - config.crash_cost * failed


def make(config: HighwayConfig, wish: Wish | None = None) -> Env:
    """The environment, with the config's goal for the ego or another one; all goals start alike.

    `TimeStep.extras` holds `crashed`, `off_road`, and the step's demonstrations: `demonstrator`, the numbers of those watched
    (NO_DEMONSTRATOR: an empty slot), and `demonstration`, their `Demonstration`.
    """
    road = roads.highway(config.lanes, ROAD_LENGTH)
    checked = None if config.all_collide else jnp.arange(config.cars) == 0
    wheel = drive.Wheel(road, config.table, config.frames, config.dt, config.reverses, config.same_actions, checked)
    ego = jnp.zeros(1, jnp.int32)

    def start(key: Array) -> tuple[State, Array]:
        state = reset(config, road, key, wish)
        return state, see(config, road, state.cars, ego)[0]

    def step(state: State, action: Array, key: Array) -> tuple[State, TimeStep]:
        del key  # all that is random is drawn at the start
        cars = drive.take(wheel, state.drivers, state.cars, action)
        crashed, off_road = cars.crashed[0], ~drive.on_road(road, cars)[0]
        failed = crashed | off_road
        number = state.kind if config.demonstrator == "goal" else jnp.arange(config.cars, dtype=jnp.int32) - 1
        watched = drive.watch(road, state.cars, number, config.observed, config.order)
        who, steps = drive.demonstrate(config.table, watched, state.cars, cars, lambda cars, k: see(config, road, cars, k))
        next_state = State(cars, state.drivers, state.kind, state.t + 1)
        extras = {"crashed": crashed, "off_road": off_road, "demonstrator": who, "demonstration": steps}
        discount = 1.0 - failed.astype(jnp.float32)
        last = failed | (next_state.t >= config.max_steps)
        paid = reward(config, road, cars, failed, wish)
        return next_state, TimeStep(see(config, road, cars, ego)[0], paid, discount, last, extras)  # pyright: ignore[reportArgumentType]

    return Env(spec(config), start, step)


def spec(config: HighwayConfig) -> EnvSpec:
    """Observation ``float32[observed + 1, 4]``, the table's actions. No symmetry is declared: goals have a side."""
    return EnvSpec((config.observed + 1, 4), jnp.float32, len(config.table), kind="vector")
