"""Our traffic and highway-env's, side by side: the same cars at every sub-step, in float64 to 1e-9.

pytest tests/test_traffic_parity.py              # some seeds
pytest tests/test_traffic_parity.py -m slow      # at least 20 seeds of 150 sub-steps of each kind
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

highway_env = pytest.importorskip("highway_env")

import gymnasium  # noqa: E402
from highway_env.envs.common.observation import observation_factory  # noqa: E402
from highway_env.envs.roundabout_env import RoundaboutEnv  # noqa: E402
from scipy.stats import kstest  # noqa: E402

from psiphi.envs import highway as psiphi_highway  # noqa: E402
from psiphi.envs.traffic import control, drive, lanes, observe, roads, simulate  # noqa: E402
from psiphi.envs.traffic.roads import NOWHERE, Road  # noqa: E402
from psiphi.envs.traffic.vehicles import Cars, Drivers  # noqa: E402

TOLERANCE = 1e-9
FREQUENCY = 15
ROUTE_ROOM = 14
HIGHWAY, ROUNDABOUT = roads.highway(4), roads.roundabout()
PROGRAMS = {
    road.parallel: jax.jit(lambda drivers, cars, road=road: simulate.substep(road, drivers, cars, 1 / FREQUENCY))
    for road in (HIGHWAY, ROUNDABOUT)
}
REAL = ("x", "y", "heading", "speed", "timer")
WHOLE = ("lane", "target_lane", "crashed", "struck")


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


# --- highway-env's cars as ours ------------------------------------------------------------------------------------------


def lane_number(road: Road, index: tuple[str, str, int]) -> int:
    return road.lane_of(index[0], index[1], int(index[2]))


def cars_of(env: Any, road: Road) -> Cars:
    """Positions to flags; a car without a target lane (the ego) is given the lane it is on."""
    cars = env.road.vehicles

    def column(get, dtype: type = np.float64) -> jax.Array:
        return jnp.asarray(np.array([get(car) for car in cars], dtype))

    return Cars(
        x=column(lambda c: c.position[0]),
        y=column(lambda c: c.position[1]),
        heading=column(lambda c: c.heading),
        speed=column(lambda c: c.speed),
        lane=column(lambda c: lane_number(road, c.lane_index), np.int32),
        target_lane=column(lambda c: lane_number(road, getattr(c, "target_lane_index", c.lane_index)), np.int32),
        leg=column(lambda c: 0, np.int32),
        timer=column(lambda c: getattr(c, "timer", 0.0)),
        acceleration=column(lambda c: c.action["acceleration"]),
        steering=column(lambda c: c.action["steering"]),
        crashed=column(lambda c: c.crashed, bool),
        struck=column(lambda c: c.impact is not None, bool),
        impact=jnp.asarray(np.array([np.zeros(2) if c.impact is None else c.impact for c in cars])),
    )


def drivers_of(env: Any, road: Road) -> Drivers:
    """Highway-env's ego has no target speed and no target lane: 0, and nobody knows it."""
    cars = env.road.vehicles
    route, rank = np.full((2, len(cars), ROUTE_ROOM), NOWHERE, np.int32)
    for i, car in enumerate(cars):
        for k, (start, end, wanted) in enumerate(getattr(car, "route", None) or []):
            route[i, k] = road.edge_of(start, end)
            rank[i, k] = NOWHERE if wanted is None else wanted

    def column(name: str, otherwise: float) -> jax.Array:
        return jnp.asarray(np.array([getattr(car, name, otherwise) for car in cars], np.float64))

    scripted = jnp.asarray(np.array([hasattr(car, "target_lane_index") for car in cars]))
    return Drivers(
        scripted=scripted,
        announced=scripted,
        target_speed=column("target_speed", 0.0),
        exponent=column("DELTA", 4.0),
        jam_distance=column("DISTANCE_WANTED", 10.0),
        time_gap=column("TIME_WANTED", 1.5),
        max_braking=column("LANE_CHANGE_MAX_BRAKING_IMPOSED", 2.0),
        patience=column("LANE_CHANGE_DELAY", 1.0),
        route=jnp.asarray(route),
        route_rank=jnp.asarray(rank),
    )


# --- Side by side --------------------------------------------------------------------------------------------------------


class Report(NamedTuple):
    """What a comparison met."""

    worst: float
    """The largest difference of a real number."""
    broken: list[str]
    """What differed first, if anything did."""
    lane_changes: int
    """How often a target lane changed."""
    crashed: int
    """Cars that had crashed in the end."""


EGO = {"idle": (0.0, 0.0), "mild": (0.3, 0.02), "wild": (1.0, 0.2)}
"""How far the ego's random throttle and steering go, in highway-env's units."""


def compare(env: Any, road: Road, ego: str, substeps: int, seed: int, *, resynchronise: bool = False) -> Report:
    """Let both drive from where highway-env is until they differ; synchronised never again, or before each sub-step."""
    rng = np.random.default_rng(seed)
    drivers, cars = drivers_of(env, road), cars_of(env, road)
    advance = PROGRAMS[road.parallel]
    worst, changes, before = 0.0, 0, np.asarray(cars.target_lane)
    for step in range(substeps):
        if resynchronise:
            drivers, cars = drivers_of(env, road), cars_of(env, road)
        action = rng.uniform(-1, 1, 2) * EGO[ego]
        command = env.action_type.get_action(action)
        cars = advance(
            drivers,
            cars._replace(
                acceleration=cars.acceleration.at[0].set(command["acceleration"]), steering=cars.steering.at[0].set(command["steering"])
            ),
        )
        env._simulate(action)
        theirs = cars_of(env, road)
        cars = cars._replace(target_lane=cars.target_lane.at[0].set(theirs.target_lane[0]), timer=cars.timer.at[0].set(0.0))
        worst = max(worst, *(float(jnp.max(jnp.abs(getattr(cars, name) - getattr(theirs, name)))) for name in REAL))
        broken = [name for name in WHOLE if (getattr(cars, name) != getattr(theirs, name)).any()]
        if broken or worst > TOLERANCE:
            return Report(worst, [f"sub-step {step}", *broken], changes, int(theirs.crashed.sum()))
        changes += int((np.asarray(theirs.target_lane) != before)[1:].sum())
        before = np.asarray(theirs.target_lane)
    return Report(worst, [], changes, int(cars.crashed.sum()))


def highway(seed: int, cars: int, density: float, preferences: bool) -> Any:
    """highway-v0 with continuous actions; with preferences, each car gets a lane, a speed and a following distance of its own."""
    env = gymnasium.make(
        "highway-v0",
        config={
            "vehicles_count": cars,
            "vehicles_density": density,
            "policy_frequency": FREQUENCY,
            "simulation_frequency": FREQUENCY,
            "duration": 1e9,
            "action": {"type": "ContinuousAction"},
        },
    ).unwrapped
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    for car in env.road.vehicles[1:] if preferences else []:  # pyright: ignore[reportAttributeAccessIssue]
        car.route = [("0", "1", int(rng.integers(4)))]
        car.target_speed = float(rng.uniform(18, 32))
        car.TIME_WANTED = float(rng.uniform(0.8, 2.0))
        car.DISTANCE_WANTED = float(rng.uniform(8, 12))
        car.LANE_CHANGE_MAX_BRAKING_IMPOSED = float(rng.choice([2.0, 5.0]))
    return env


def roundabout(seed: int) -> Any:
    """roundabout-v0 with continuous actions, which its own reward does not survive."""
    env = gymnasium.make(
        "roundabout-v0",
        config={
            "policy_frequency": FREQUENCY,
            "simulation_frequency": FREQUENCY,
            "duration": 1e9,
            "action": {"type": "ContinuousAction"},
        },
    ).unwrapped
    env.reset(seed=seed)
    return env


@pytest.fixture
def any_action_is_fine(monkeypatch):
    monkeypatch.setattr(RoundaboutEnv, "_rewards", lambda self, action: {"on_road_reward": 1.0})
    monkeypatch.setattr(logging.getLogger("highway_env.road.road"), "disabled", True)


# --- The claims ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "density", "ego", "preferences"), [(0, 1.0, "idle", False), (3, 3.0, "wild", True)])
def test_highway_is_highway_env(seed, density, ego, preferences):
    report = compare(highway(seed, 20, density, preferences), HIGHWAY, ego, 150, seed)
    assert report.broken == []
    assert report.lane_changes > 0


@pytest.mark.parametrize("seed", [0, 1])
def test_roundabout_is_highway_env(seed, any_action_is_fine):
    report = compare(roundabout(seed), ROUNDABOUT, "mild", 150, seed)
    assert report.broken == []
    assert report.lane_changes > 0


def agrees(make: Callable[[], Any], road: Road, ego: str, seed: int) -> bool:
    """Equal to the end, or, where a pile-up blows rounding up until it shows, equal in each of its sub-steps by itself."""
    report = compare(make(), road, ego, 150, seed)
    if report.broken == []:
        return True
    print(f"seed {seed}: apart at {report.broken} by {report.worst:.1e}, {report.crashed} cars crashed; sub-step by sub-step:", end=" ")
    single = compare(make(), road, ego, 150, seed, resynchronise=True)
    print(f"{single.worst:.1e} {single.broken}")
    return report.crashed > 0 and single.broken == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 124))
def test_highway_is_highway_env_whatever_the_traffic(seed):
    """20 to 50 cars, densities 1 to 3, an idle, mild or wild ego, with and without preferred lanes, speeds and distances."""
    cars, density, ego = (20, 30, 40, 50)[seed % 4], (1.0, 2.0, 3.0)[seed % 3], ("idle", "mild", "wild")[seed // 2 % 3]
    assert agrees(lambda: highway(seed, cars, density, seed % 5 > 1), HIGHWAY, ego, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 124))
def test_roundabout_is_highway_env_whatever_the_traffic(seed, any_action_is_fine):
    assert agrees(lambda: roundabout(seed), ROUNDABOUT, ("idle", "mild", "wild")[seed % 3], seed)


def test_lanes_are_where_highway_env_has_them(any_action_is_fine):
    """Coordinates of points all over the map, on every lane, in highway-env's order."""
    theirs = roundabout(0).road.network.lanes_list()
    points = np.random.default_rng(0).uniform(-120, 120, (100, 2))
    expected = np.array([[one.local_coordinates(p) for one in theirs] for p in points])
    s, lateral = jax.jit(lambda x, y: lanes.local(ROUNDABOUT.lanes, x, y))(*jnp.asarray(points.T))
    np.testing.assert_allclose(np.stack([s, lateral], axis=-1), expected, atol=1e-9)
    np.testing.assert_allclose(ROUNDABOUT.lanes.length, [one.length for one in theirs], atol=1e-9)


def test_routes_are_highway_envs(any_action_is_fine):
    network = roundabout(0).road.network
    for goal in ("exr", "sxr", "nxr", "wxr"):
        for start, edges in enumerate(roads.routes(ROUNDABOUT, goal)):
            path = network.shortest_path(ROUNDABOUT.names[start][1], goal) if ROUNDABOUT.names[start][1] in network.graph else []
            expected = [ROUNDABOUT.names[start], *zip(path, path[1:], strict=False)]
            assert [ROUNDABOUT.names[e] for e in edges if e != NOWHERE] == expected


@pytest.mark.parametrize(("world", "cars"), [("highway", 20), ("roundabout", 4)])
def test_observations_are_highway_envs(world, cars, any_action_is_fine):
    """The nearest others in its order, relative to the ego, in metres, behind it too."""
    road = HIGHWAY if world == "highway" else ROUNDABOUT
    env = highway(7, cars, 1.5, False) if world == "highway" else roundabout(7)
    kinematics = {"type": "Kinematics", "vehicles_count": 5, "features": ["x", "y", "vx", "vy"], "normalize": False}
    observer = observation_factory(env, {**kinematics, "absolute": False, "see_behind": True})
    observer.observer_vehicle = env.vehicle

    @jax.jit
    def see(cars):
        ego = jnp.zeros(1, np.int32)
        others, seen = observe.nearest(road, cars, ego, 4, "along")
        return observe.kinematics(cars, ego, others)[0], seen[0]

    for _ in range(5):
        shown, seen = see(cars_of(env, road))
        ours = np.where(np.append(True, seen)[:, None], shown, 0)  # zeros are highway-env's way to show nobody
        np.testing.assert_allclose(ours, observer.observe(), rtol=1e-6, atol=1e-6)
        for _ in range(10):
            env._simulate(np.array([0.1, 0.01]))


def test_an_action_is_held_as_in_highway_env():
    """A whole step of the environments' own code: 15 sub-steps under one action, others' commands decided one sub-step ahead."""
    env = highway(1, 20, 1.0, False)
    env.configure({"policy_frequency": 1})
    action = np.array([0.4, 0.005])
    command = env.action_type.get_action(action)
    table = ((0.0, 0.0), (float(command["acceleration"]), float(command["steering"])))
    wheel = drive.Wheel(HIGHWAY, table, FREQUENCY, 1 / FREQUENCY, True, False, None)
    drivers, start = drivers_of(env, HIGHWAY), cars_of(env, HIGHWAY)
    ours = jax.jit(lambda cars: drive.take(wheel, drivers, control.decide(HIGHWAY, drivers, cars), jnp.array(1)))(start)
    env._simulate(action)
    theirs = cars_of(env, HIGHWAY)
    for name in ("x", "y", "heading", "speed", "lane", "crashed"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=TOLERANCE)


def test_cars_start_as_in_highway_env():
    """Gaps along the road, lanes and speeds from the same distributions (Kolmogorov-Smirnov), timers from the same places."""
    config = psiphi_highway.like_highway_env(cars=21)
    states = jax.jit(jax.vmap(lambda key: psiphi_highway.reset(config, HIGHWAY, key)))(jax.random.split(jax.random.key(0), 40))
    env = highway(0, 20, 1.0, False)
    theirs = []
    for seed in range(40):
        env.reset(seed=seed)
        theirs.append(cars_of(env, HIGHWAY))
    theirs = jax.tree.map(lambda *x: np.stack(x), *theirs)
    for pick in (lambda c: np.diff(c.x, axis=1), lambda c: c.x[:, 0], lambda c: c.lane[:, 1:], lambda c: c.speed[:, 1:]):
        assert kstest(np.ravel(pick(states.cars)), np.ravel(pick(theirs))).pvalue > 1e-3
    assert (states.cars.speed[:, 0] == 25).all() and (theirs.speed[:, 0] == 25).all()
    np.testing.assert_allclose(theirs.timer[:, 1:], ((theirs.x + theirs.y) * np.pi % 1.0)[:, 1:])


def test_single_precision_stays_close():
    """Ten seconds of traffic in float32 beside float64: centimetres apart at most, and nobody decides otherwise."""
    env = highway(0, 20, 1.0, False)
    drivers, cars = drivers_of(env, HIGHWAY), cars_of(env, HIGHWAY)
    narrow = jax.tree.map(lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x, (drivers, cars))
    with jax.enable_x64(False):
        short_drivers, short = jax.tree.map(jnp.asarray, jax.device_get(narrow))
        advance = jax.jit(lambda drivers, cars: simulate.substep(HIGHWAY, drivers, cars, 1 / FREQUENCY))
        for _ in range(150):
            short = advance(short_drivers, short)
        assert short.x.dtype == jnp.float32
    for _ in range(150):
        cars = PROGRAMS[True](drivers, cars)
    drift = np.abs(np.asarray(short.x, np.float64) - np.asarray(cars.x)).max()
    assert drift < 0.1, drift
    assert (np.asarray(short.target_lane) == np.asarray(cars.target_lane)).all()
