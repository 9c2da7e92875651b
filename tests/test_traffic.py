"""The traffic rules by hand: IDM, MOBIL, neighbours, collisions, lanes, routes, observations; mirrors; and the table of actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psiphi.envs.traffic import actions, centroids, collisions, control, idm, lanes, observe, roads, simulate
from psiphi.envs.traffic.neighbours import neighbours
from psiphi.envs.traffic.roads import NOWHERE
from psiphi.envs.traffic.vehicles import Cars, Drivers, cars_at, drivers_of, look
from psiphi.errors import UserError

HIGHWAY, ROUNDABOUT = roads.highway(4), roads.roundabout()


ROOM = 5
"""Cars in every test, those that matter first; one size is compiled once. The rest is far behind, off the road."""


def on_lanes(*placed: tuple[int, float, float]) -> Cars:
    """Cars on the highway as (lane, x, speed)."""
    rest = [(0, -1000.0 - 300 * i, 0.0) for i in range(ROOM - len(placed))]
    lane, x, speed = (jnp.array(column) for column in zip(*placed, *rest, strict=True))
    return cars_at(HIGHWAY, lane.astype(jnp.int32), x.astype(jnp.float32), speed.astype(jnp.float32))


def wishing(speeds: list[float], preferred: list[int] | None = None) -> Drivers:
    """Drivers with target speeds and preferred lanes who think of changing lanes at every moment."""
    drivers = drivers_of(jnp.array(speeds + [0.0] * (ROOM - len(speeds))), jnp.full(ROOM, 4.0))
    preferred = preferred or []
    ranks = jnp.array(preferred + [NOWHERE] * (ROOM - len(preferred)), jnp.int32)[:, None]
    return drivers._replace(patience=jnp.zeros(ROOM), route=jnp.where(ranks < 0, NOWHERE, 0), route_rank=ranks)


decide = jax.jit(lambda drivers, cars: control.decide(HIGHWAY, drivers, cars))
collide = jax.jit(lambda cars: collisions.collide(cars, 0.1))


# --- IDM -----------------------------------------------------------------------------------------------------------------


def test_idm_by_hand():
    """20 m/s behind 15 m/s at 40 m, target 25, delta 4: 3 (1 - 0.8^4) - 3 ((10 + 30 + 100 / (2 sqrt 15)) / 40)^2."""
    cars = decide(wishing([25.0, 15.0]), on_lanes((1, 100.0, 20.0), (1, 140.0, 15.0)))
    gap = 10 + 20 * 1.5 + 20 * 5 / (2 * 15**0.5)
    assert float(cars.acceleration[0]) == pytest.approx(3 * (1 - 0.8**4) - 3 * (gap / 40) ** 2, abs=1e-4)
    assert float(cars.acceleration[1]) == pytest.approx(0.0, abs=1e-5)


def test_idm_brakes_by_at_most_six():
    assert float(decide(wishing([25.0, 1.0]), on_lanes((1, 100.0, 25.0), (1, 110.0, 1.0))).acceleration[0]) == -6.0


def test_the_speed_limit_cuts_the_target_speed():
    fast = decide(wishing([38.0]), on_lanes((0, 0.0, 30.0)))
    assert float(fast.acceleration[0]) == pytest.approx(0.0, abs=1e-5)


@given(x=st.floats(-1, 1, width=32, allow_subnormal=False))
def test_nothing_is_divided_by_less_than_a_hundredth(x):
    kept = float(idm.not_zero(jnp.float32(x)))
    assert abs(kept) >= np.float32(0.01) and (kept > 0) == (x >= 0)


# --- Neighbours ----------------------------------------------------------------------------------------------------------


def test_neighbours_by_hand():
    """Cars at 0, 30, 30, 60 in lanes 1, 1, 1, 2; the list's later one of two abreast is ahead, its earlier one behind."""
    cars = on_lanes((1, 0.0, 20.0), (1, 30.0, 20.0), (1, 30.0, 20.0), (2, 60.0, 20.0))
    near = jax.jit(lambda cars, lanes: neighbours(HIGHWAY, look(HIGHWAY, cars), lanes))(cars, jnp.array([1, 2, 1, 1, 0], jnp.int32))
    assert near.front[0] == 2 and near.has_front[0] and not near.has_rear[0]
    assert near.front[1] == 3 and not near.has_rear[1]
    assert near.front[2] == 1 and near.rear[2] == 0
    assert near.rear[3] == 1 and not near.has_front[3]


# --- MOBIL ---------------------------------------------------------------------------------------------------------------


def test_mobil_overtakes_a_slow_car_on_the_right_if_both_sides_are_free():
    cars = decide(wishing([30.0, 10.0]), on_lanes((1, 100.0, 25.0), (1, 130.0, 10.0)))
    assert int(cars.target_lane[0]) == 2


def test_mobil_stays_where_a_follower_would_have_to_brake():
    slow, late = (1, 130.0, 10.0), (100.0 - 8.0, 30.0)
    crowded = on_lanes((1, 100.0, 25.0), slow, (2, *late), (0, *late))
    assert int(decide(wishing([30.0, 10.0, 30.0, 30.0]), crowded).target_lane[0]) == 1


def test_mobil_waits_for_its_timer():
    cars = on_lanes((1, 100.0, 25.0), (1, 130.0, 10.0))._replace(timer=jnp.full(ROOM, 0.9))
    patient = wishing([30.0, 10.0])._replace(patience=jnp.ones(ROOM))
    waiting = decide(patient, cars)
    assert int(waiting.target_lane[0]) == 1 and float(waiting.timer[0]) == pytest.approx(0.9)
    ready = decide(patient, cars._replace(timer=jnp.full(ROOM, 1.1)))
    assert int(ready.target_lane[0]) == 2 and float(ready.timer[0]) == 0.0


def test_a_preferred_lane_needs_no_gain():
    assert int(decide(wishing([25.0], [0]), on_lanes((2, 100.0, 25.0))).target_lane[0]) == 1


def changing(targets: list[int], cars: Cars) -> Cars:
    return cars._replace(target_lane=cars.target_lane.at[: len(targets)].set(jnp.array(targets, jnp.int32)))


def test_a_lane_change_is_aborted_in_the_order_of_the_list():
    """Of two that change into lane 1 the one behind gives up, whatever its place in the list. Of three, the rearmost, who comes last in the
    list, sees that the middle one has given up; were it first, it would still see it come and give up too."""
    front, middle, rear = (0, 130.0, 10.0), (2, 110.0, 10.0), (0, 90.0, 10.0)
    drivers = wishing([10.0] * 3)
    assert decide(drivers, changing([1, 1], on_lanes(middle, front))).target_lane[:2].tolist() == [2, 1]
    assert decide(drivers, changing([1, 1], on_lanes(front, middle))).target_lane[:2].tolist() == [1, 2]
    assert decide(drivers, changing([1, 1, 1], on_lanes(front, middle, rear))).target_lane[:3].tolist() == [1, 2, 1]
    assert decide(drivers, changing([1, 1, 1], on_lanes(rear, middle, front))).target_lane[:3].tolist() == [0, 2, 1]


# --- Collisions ----------------------------------------------------------------------------------------------------------


def test_boxes_that_overlap_crash():
    cars = collide(on_lanes((1, 100.0, 0.0), (1, 104.9, 0.0), (1, 110.1, 0.0)))
    assert cars.crashed[:3].tolist() == [True, True, False]
    assert float(cars.impact[0, 0]) == pytest.approx(-0.05, abs=1e-4) and float(cars.impact[1, 0]) == pytest.approx(0.05, abs=1e-4)


def test_boxes_that_will_overlap_are_struck_but_not_crashed():
    """One metre apart and closing at 20 m/s: after 0.1 s they overlap by a metre, half of which each is pushed."""
    cars = collide(on_lanes((1, 100.0, 20.0), (1, 106.0, 0.0)))
    assert not cars.crashed.any() and cars.struck[:2].all()
    np.testing.assert_allclose(cars.impact[:2], [[-0.5, 0.0], [0.5, 0.0]], atol=1e-5)


def test_lanes_beside_each_other_are_apart():
    assert not collide(on_lanes((0, 100.0, 30.0), (1, 100.0, 20.0))).struck.any()


@settings(max_examples=50)
@given(
    x=st.floats(-7, 7, width=32),
    y=st.floats(-7, 7, width=32),
    turn=st.floats(-3, 3, width=32),
)
def test_boxes_overlap_as_points_say(x, y, turn):
    """Against a grid of points in the second box: one within the first, away from its border, is an overlap; none is next to none."""
    now, _ = collisions.touch(*(collisions.Boxes(*(jnp.float32(v) for v in box)) for box in _two_boxes(x, y, turn)))
    along, across = np.meshgrid(np.linspace(-2.5, 2.5, 101), np.linspace(-1, 1, 41))
    px, py = x + along * np.cos(turn) - across * np.sin(turn), y + along * np.sin(turn) + across * np.cos(turn)
    inside = np.maximum(np.abs(px) - 2.5, np.abs(py) - 1)
    if abs(inside.min()) > 0.06:
        assert bool(now) == (inside.min() < 0)


def _two_boxes(x, y, turn):
    return (0.0, 0.0, 1.0, 0.0, 0.0, 0.0), (x, y, np.cos(turn), np.sin(turn), 0.0, 0.0)


# --- Lanes and routes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("road", [HIGHWAY, ROUNDABOUT])
def test_a_point_on_a_lane_has_the_coordinates_it_was_made_from(road):
    @jax.jit
    def there_and_back(index, s, lateral):
        return lanes.local(road.lanes, *lanes.position(lanes.pick(road.lanes, index), s, lateral))

    lateral = jnp.array([-1.0, 0.0, 1.5])
    for index in range(len(road.edge)):
        s = jnp.array([0.1, 0.4, 0.9]) * min(road.lanes.length[index], 100.0)
        along, across = there_and_back(jnp.array([index] * 3), s, lateral)
        np.testing.assert_allclose(along[:, index], s, atol=2e-3)
        np.testing.assert_allclose(across[:, index], lateral, atol=2e-3)


def test_the_roundabout_has_32_lanes_on_24_edges_that_join():
    assert len(ROUNDABOUT.edge) == 32 and len(ROUNDABOUT.names) == 24
    for edge, following in enumerate(ROUNDABOUT.successors):
        for after in following[following != NOWHERE]:
            assert ROUNDABOUT.names[edge][1] == ROUNDABOUT.names[after][0]


def test_routes_are_shortest():
    names = [ROUNDABOUT.names[e] for e in roads.route(ROUNDABOUT, ROUNDABOUT.edge_of("ser", "ses"), "nxr")]
    assert names == [("ser", "ses"), ("ses", "se"), ("se", "ex"), ("ex", "ee"), ("ee", "nx"), ("nx", "nxs"), ("nxs", "nxr")]
    dead_end = ROUNDABOUT.edge_of("exs", "exr")
    assert roads.route(ROUNDABOUT, dead_end, "nxr") == [dead_end]


def test_a_highway_without_lanes_is_refused():
    with pytest.raises(UserError, match="0 lanes"):
        roads.highway(0)


# --- Steering ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [-1, 1])
def test_a_wheel_turned_to_its_end_points_to_the_right_side(side):
    """In single precision the tangent of pi/2 has the wrong sign; a slow car far from its lane needs exactly that angle."""
    cars = changing([2 + side], on_lanes((2, 100.0, 2.0)))
    cars = cars._replace(heading=cars.heading - 0.5 * side)
    assert float(decide(wishing([20.0]), cars).steering[0]) * side > 1.0


# --- The whole -----------------------------------------------------------------------------------------------------------


def test_mirroring_the_road_mirrors_the_trajectory():
    """Cars that brake, steer and bump; lane changes apart, where left and right are not alike (right has the last word)."""
    start = on_lanes((0, 50.0, 20.0), (1, 60.0, 25.0), (3, 62.0, 30.0), (3, 90.0, 10.0), (2, 95.0, 22.0))
    start = start._replace(y=start.y + jnp.array([0.5, -0.7, 0.2, 0.0, 1.1]), heading=jnp.array([0.05, -0.1, 0.0, 0.02, 0.1]))
    drivers = drivers_of(jnp.array([25.0, 25.0, 30.0, 12.0, 28.0]), jnp.full(5, 4.0))._replace(patience=jnp.full(5, jnp.inf))

    def reflected(cars: Cars) -> Cars:
        return cars._replace(
            y=12.0 - cars.y, heading=-cars.heading, lane=3 - cars.lane, target_lane=3 - cars.target_lane, steering=-cars.steering,
            impact=cars.impact * jnp.array([1.0, -1.0]),
        )  # fmt: skip

    advance = jax.jit(lambda cars: simulate.substep(HIGHWAY, drivers, cars, 0.1))
    cars, image = start, reflected(start)
    for _ in range(40):
        cars, image = advance(cars), advance(image)
    for ours, theirs in zip(cars, reflected(image), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-3)
    assert cars.crashed.any() and not cars.crashed.all()


def test_nearest_first_and_nobody_beyond_sight():
    cars = on_lanes((1, 500.0, 20.0), (0, 460.0, 20.0), (2, 510.0, 20.0), (3, 490.0, 20.0), (1, 800.0, 20.0))
    index, seen = observe.nearest(HIGHWAY, cars, jnp.array([0], jnp.int32), 4, "along")
    assert index[0, :3].tolist() == [2, 3, 1] and seen.tolist() == [[True, True, True, False]]
    around, _ = observe.nearest(HIGHWAY, cars, jnp.array([0], jnp.int32), 4, "around")
    assert around[0, :3].tolist() == [2, 3, 1]  # (10, 4) is nearer than (-10, 8)
    raw = observe.kinematics(cars, jnp.array([0], jnp.int32), index)
    np.testing.assert_allclose(raw[0, :2], [[500, 4, 20, 0], [10, 4, 0, 0]])


def test_a_missing_car_is_far_away_and_not_on_top_of_me():
    raw = jnp.zeros((1, 3, 4)).at[0, 1].set(jnp.array([25.0, 4.0, -5.0, 0.0]))
    shown = observe.scaled(raw, jnp.array([[True, False]]), centre=(0, 0, 0, 0), own=(1, 1, 1, 1), relative=(50, 2, 10, 10), clip=6.0)
    np.testing.assert_allclose(shown[0], [[0, 0, 0, 0], [0.5, 2.0, -0.5, 0.0], [6.0, 0, 0, 0]])


# --- Actions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [actions.HIGHWAY, actions.ROUNDABOUT])
def test_every_action_is_nearest_to_itself(table):
    acceleration, steering = jnp.array(table).T
    assert actions.snap(table, acceleration, steering).tolist() == list(range(len(table)))


def test_there_are_nine_and_six_actions():
    assert (len(actions.HIGHWAY), len(actions.ROUNDABOUT)) == (9, 6)


def test_kmeans_finds_clusters_and_orders_them():
    values = np.concatenate([np.linspace(4, 6, 50), np.linspace(-1, 1, 200), np.linspace(99, 101, 10)])
    np.testing.assert_allclose(centroids.kmeans(values, 3), [0, 5, 100], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("committed", "compute"), [(actions.HIGHWAY, centroids.highway_table), (actions.ROUNDABOUT, centroids.roundabout_table)]
)
def test_the_script_gives_the_committed_tables(committed, compute):
    np.testing.assert_allclose(compute(), committed, atol=2e-3)
