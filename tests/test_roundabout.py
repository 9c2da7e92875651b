"""Roundabout: routes, ends, progress, what is seen and demonstrated, and that it can be driven."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psiphi.envs import roundabout
from psiphi.envs.roundabout import ROAD, Arrival, RoundaboutConfig
from psiphi.envs.traffic import drive
from psiphi.envs.traffic.vehicles import cars_at
from psiphi.errors import UserError

CONFIG = RoundaboutConfig()


RANDOM, EXPERT = 0, 1


@functools.cache
def program():
    """Whole episodes, never reset, by ways of driving: states ``[count, t + 1]``, time steps ``[count, t]``."""
    env = roundabout.make(CONFIG)

    def episode(key, driver):
        reset_key, act_key = jax.random.split(key)
        state, _ = env.reset(reset_key)

        def step(state, key):
            action = jnp.stack([jax.random.randint(key, (), 0, len(CONFIG.table)), roundabout.expert(CONFIG, state)])[driver]
            after, reached = env.step(state, action, key)
            return after, (state, reached)

        end, (states, steps) = jax.lax.scan(step, state, jax.random.split(act_key, CONFIG.max_steps))
        return jax.tree.map(lambda x, last: jnp.concatenate([x, last[None]]), states, end), steps

    return jax.jit(jax.vmap(episode, (0, None)))


@functools.cache
def episodes(driver: int, count: int = 32, seed: int = 0):
    return jax.device_get(program()(jax.random.split(jax.random.key(seed), count), driver))


def up_to_the_end(last: np.ndarray) -> np.ndarray:
    return np.cumsum(last, axis=1) - last == 0


@pytest.mark.parametrize("count", [32, pytest.param(256, marks=pytest.mark.slow)])
def test_idm_with_six_actions_takes_the_third_exit(count):
    _, steps = episodes(EXPERT, count)
    valid = up_to_the_end(steps.last)
    failed = (valid & (steps.extras["crashed"] | steps.extras["off_road"])).any(axis=1)
    assert failed.mean() < 0.05
    assert (valid & steps.extras["arrived"]).any(axis=1).mean() > 0.9


def test_the_return_is_the_way_made_and_how_it_ended():
    states, steps = episodes(EXPERT)
    valid = up_to_the_end(steps.last)
    total = (steps.reward * valid).sum(axis=1)
    length = valid.sum(axis=1)
    made = states.way[:, 0] - states.way[np.arange(len(length)), length]
    ended = {name: (valid & steps.extras[name]).any(axis=1) for name in ("crashed", "off_road", "wrong_exit", "arrived")}
    failed = ended["crashed"] | ended["off_road"] | ended["wrong_exit"]
    np.testing.assert_allclose(total, 0.25 * made + 5.0 * ended["arrived"] - 5.0 * failed, atol=2e-3)


@pytest.mark.parametrize("driver", [EXPERT, RANDOM])
def test_progress_is_paid_once_and_never_taken_back(driver):
    states, steps = episodes(driver)
    gone = np.diff(states.way, axis=1) * up_to_the_end(steps.last)[:, : states.way.shape[1] - 1]
    assert (gone <= 0).all() and gone.min() < -1


def test_arriving_and_failing_terminate_and_a_time_limit_does_not():
    for driver in (EXPERT, RANDOM):
        _, steps = episodes(driver)
        over = steps.extras["crashed"] | steps.extras["off_road"] | steps.extras["wrong_exit"] | steps.extras["arrived"]
        assert (steps.discount == 1 - over).all()
        assert (steps.last == over | (np.arange(CONFIG.max_steps) == CONFIG.max_steps - 1)).all()


@pytest.mark.parametrize(
    ("place", "s", "expected"),
    [(("wxs", "wxr"), 5.0, "arrived"), (("nxs", "nxr"), 5.0, "wrong_exit"), (("ex", "ee"), 5.0, None), (("ser", "ses"), 50.0, None)],
)
def test_where_an_episode_ends(place, s, expected):
    lanes = jnp.full(5, ROAD.lane_of(*place), jnp.int32)
    cars = cars_at(ROAD, lanes, jnp.full(5, s), jnp.full(5, 10.0))
    end = jax.jit(lambda cars: roundabout.ending(CONFIG, cars, roundabout.EXITS.index(CONFIG.ego_exit)))(cars)
    assert [name for name, value in end._asdict().items() if value] == ([expected] if expected else [])


def test_the_way_to_the_exit_gets_longer_behind_it():
    """Along the ring the way shrinks by what is driven; past the west exit a whole turn is ahead again."""

    def way(start, end, s):
        cars = cars_at(ROAD, jnp.full(5, ROAD.lane_of(start, end, 0), jnp.int32), jnp.full(5, s), jnp.full(5, 10.0))
        return float(roundabout.way_left(cars, roundabout.EXITS.index(CONFIG.ego_exit), -1.0))

    assert way("se", "ex", 2.0) - way("se", "ex", 7.0) == pytest.approx(5.0, abs=1e-3)
    assert way("wx", "we", 3.0) > way("ne", "wx", 10.0) + 80
    assert way("nxs", "nxr", 5.0) == -1.0  # no way back: what it was before
    assert way("wxs", "wxr", 20.0) == 0.0  # nothing is paid for how far up the road one has turned in


def test_everybody_has_a_route_to_the_exit_it_drew():
    states, _ = episodes(RANDOM)
    kind, route = states.kind[:, 0], states.drivers.route[:, 0]
    assert (kind[:, 0] == drive.NO_DEMONSTRATOR).all() and set(np.unique(kind[:, 1:])) == {0, 1}
    for e in range(32):
        for i in range(kind.shape[1]):
            edges = [ROAD.names[k] for k in route[e, i] if k >= 0]
            assert edges[-1][1] == (CONFIG.ego_exit if i == 0 else CONFIG.exits[kind[e, i]])
            assert all(a[1] == b[0] for a, b in zip(edges, edges[1:], strict=False))


def test_others_leave_where_they_wanted():
    states, _ = episodes(EXPERT)
    end = jax.tree.map(lambda x: x[:, -1], states)
    exits = roundabout.exit_lanes(ROAD)[end.cars.lane]
    wanted = np.array([roundabout.EXITS.index(place) for place in CONFIG.exits])[states.kind[:, 0, 1:]]
    left = (exits[:, 1:] >= 0) & ~end.cars.crashed[:, 1:]
    assert left.mean() > 0.7 and (exits[:, 1:] == wanted)[left].all()


def test_observations_and_demonstrations():
    states, steps = episodes(RANDOM)
    assert steps.obs.shape[2:] == (4, 4) and np.isfinite(steps.obs).all()
    cars = jax.tree.map(lambda x: x[0, 1], states.cars)
    np.testing.assert_allclose(steps.obs[0, 0, 0, :2], [cars.x[0] / 10, cars.y[0] / 10], atol=1e-5)
    near = np.argsort(np.hypot(cars.x[1:] - cars.x[0], cars.y[1:] - cars.y[0]))[:3] + 1
    np.testing.assert_allclose(steps.obs[0, 0, 1:, 0], np.clip((cars.x[near] - cars.x[0]) / 10, -10, 10), atol=1e-5)
    shown = steps.extras["demonstrator"]
    assert shown.shape[2:] == (3,) and set(np.unique(shown)) <= {-1, 0, 1}
    demos = steps.extras["demonstration"]
    start = jax.tree.map(lambda x: x[0, 0], states.cars)
    who = np.argsort(np.hypot(start.x[1:] - start.x[0], start.y[1:] - start.y[0]))[:3] + 1
    np.testing.assert_allclose(demos.obs[0, 0, :, 0, 0], np.clip(start.x[who] / 10, -10, 10), atol=1e-5)
    assert ((demos.action >= 0) & (demos.action < 6)).all() and ((demos.next_action >= 0) & (demos.next_action < 6)).all()


@pytest.mark.slow
def test_many_random_steps_bring_no_nan():
    for leaf in jax.tree.leaves(episodes(RANDOM, 1_000)):
        assert np.isfinite(leaf).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exits": ("exr", "nowhere")}, "'nowhere'"),
        ({"ego_exit": "ser"}, "'ser'"),
        ({"exits": ("exr",)}, "1 exits with 2 weights"),
        ({"others": CONFIG.others[:2]}, "2 others"),
        ({"simulation_frequency": 4}, "simulation_frequency is 4"),
        ({"ego": Arrival("ser", "ses", 1, 50.0)}, "lane 1 from 'ser'"),
        ({"observed": 0}, "observed is 0"),
        ({"policy_frequency": -5}, "policy_frequency is -5"),
        ({"exit_weights": (0.0, 0.0)}, "exit_weights are"),
        ({"exit_weights": (2.0, -1.0)}, "exit_weights are"),
        ({"ego": Arrival("ser", "ses", 0, 200.0)}, "starts at 200 m from 'ser' to 'ses', but that lane has 127.5 m"),
        ({"ego": Arrival("ser", "ses", 0, 50.0, -1.0)}, "starts at -1"),
        ({"ego": Arrival("ser", "ses", 0, 104.0)}, "less than a car's length apart on lane 0 from 'ser'"),
        ({"speed_deviation": -1.0}, "speed_deviation is -1"),
        ({"table": ()}, "table of actions is empty"),
    ],
)
def test_a_bad_config_gets_one_sentence(change, message):
    with pytest.raises(UserError, match=message) as caught:
        dataclasses.replace(CONFIG, **change)
    assert "\n" not in str(caught.value)


def test_highway_envs_own_traffic_is_a_config():
    """It puts cars before the beginning and behind the end of a lane of the circle."""
    config = roundabout.like_highway_env()
    state, obs = roundabout.make(config).reset(jax.random.key(0))
    assert np.isfinite(obs).all() and np.isfinite(state.cars.x).all()
