"""Highway: who starts where, what is seen, paid and demonstrated, how episodes end, and that it can be driven."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psiphi import replay
from psiphi.envs import highway
from psiphi.envs.highway import Goal, HighwayConfig, goal
from psiphi.envs.traffic import actions, drive, roads
from psiphi.errors import UserError
from psiphi.types import NO_ACTION, Demonstration, Demos

CONFIG = HighwayConfig()
ROAD = roads.highway(4, highway.ROAD_LENGTH)


RANDOM, EXPERT, BRAKE = 0, 1, 2


@functools.cache
def program(config: HighwayConfig):
    """Whole episodes, never reset, by ways of driving: states ``[count, t + 1]``, time steps ``[count, t]``, first observations."""
    env = highway.make(config)
    brake = int(np.argmin([a for a, _ in config.table]))

    def episode(key, driver):
        reset_key, act_key = jax.random.split(key)
        state, obs = env.reset(reset_key)

        def step(state, key):
            action = jnp.stack([jax.random.randint(key, (), 0, len(config.table)), highway.expert(config, state), jnp.array(brake)])[driver]
            after, reached = env.step(state, action, key)
            return after, (state, reached)

        end, (states, steps) = jax.lax.scan(step, state, jax.random.split(act_key, config.max_steps))
        return jax.tree.map(lambda x, last: jnp.concatenate([x, last[None]]), states, end), steps, obs

    return jax.jit(jax.vmap(episode, (0, None)))


@functools.cache
def episodes(config: HighwayConfig, driver: int, count: int = 32, seed: int = 0):
    return jax.device_get(program(config)(jax.random.split(jax.random.key(seed), count), driver))


def random_episodes():
    return episodes(CONFIG, RANDOM)


def up_to_the_end(last: np.ndarray) -> np.ndarray:
    """Which steps ``[count, t]`` belong to the episode."""
    return np.cumsum(last, axis=1) - last == 0


# --- The start -----------------------------------------------------------------------------------------------------------


def test_everybody_starts_as_the_config_says():
    states, _, _ = random_episodes()
    cars, kind = jax.tree.map(lambda x: x[:, 0], (states.cars, states.kind))
    assert (kind[:, 0] == drive.NO_DEMONSTRATOR).all() and set(np.unique(kind[:, 1:])) == {0, 1, 2, 3}
    assert ((cars.x < cars.x[:, :1]).sum(axis=1) == CONFIG.ego_rank).all()
    speeds = np.array([wish.speed[0] for wish in CONFIG.goals])
    below = speeds[kind[:, 1:]] - cars.speed[:, 1:]
    assert below.min() >= 0 and below.max() <= 12 and 5 < below.mean() < 7
    lanes = np.array([wish.lane for wish in CONFIG.goals])
    at_goal = (cars.lane[:, 1:] == lanes[kind[:, 1:]]).mean()
    assert 0.5 < at_goal < 0.75  # half by grace, a quarter of the rest by chance
    ahead = np.diff(np.sort(cars.x, axis=1), axis=1)
    assert ahead.min() > 5


def test_the_same_key_drives_the_same_episode():
    run = program(CONFIG)
    one, other, third = (run(jax.random.split(jax.random.key(seed), 32), RANDOM) for seed in (0, 0, 1))
    assert all((a == b).all() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    assert (one[0].cars.x != third[0].cars.x).any()


# --- What is seen and paid -----------------------------------------------------------------------------------------------


def test_observations_are_the_ego_and_its_nearest_in_order():
    states, steps, first = random_episodes()
    assert first.shape == (32, 6, 4) and first.dtype == np.float32
    for episode, t in [(0, 0), (3, 10), (7, 20)]:
        cars = jax.tree.map(lambda x, e=episode, t=t: x[e, t + 1], states.cars)
        order = np.argsort(np.abs(cars.x[1:] - cars.x[0]), kind="stable")[:5] + 1
        vx, vy = cars.speed * np.cos(cars.heading), cars.speed * np.sin(cars.heading)
        far = np.hypot(cars.x[order] - cars.x[0], cars.y[order] - cars.y[0]) >= 200
        rows = [[(cars.x[i] - cars.x[0]) / 50, (cars.y[i] - cars.y[0]) / 2, (vx[i] - vx[0]) / 10, (vy[i] - vy[0]) / 10] for i in order]
        rows = np.where(far[:, None], [6, 0, 0, 0], rows)
        own = [0, (cars.y[0] - 6) / 2, (vx[0] - 25) / 10, vy[0] / 10]
        np.testing.assert_allclose(steps.obs[episode, t], np.clip([own, *rows], -6, 6), atol=1e-4)


def test_the_reward_by_hand():
    cars = jax.tree.map(lambda x: jnp.asarray(x[0, 0]), random_episodes()[0].cars)
    alone = cars._replace(x=cars.x.at[1:].add(1000.0), speed=cars.speed.at[0].set(25.0), y=cars.y.at[0].set(9.0))
    alone = alone._replace(lane=alone.lane.at[0].set(2))
    reward = jax.jit(lambda cars, failed: highway.reward(CONFIG, ROAD, cars, failed))
    assert float(reward(alone, False)) == pytest.approx(0.5 * 0.5 + 0.5 * 0.5)
    assert float(reward(alone, True)) == pytest.approx(0.5 - 1)
    # 0.5 s of the wanted 1 s at 25 m/s: 12.5 m between bumpers, 17.5 m between the middles
    for distance, cost in [(17.4, 0.3), (17.6, 0.0)]:
        close = alone._replace(x=alone.x.at[1].set(alone.x[0] + distance), y=alone.y.at[1].set(8.0))
        assert float(reward(close, False)) == pytest.approx(0.5 - cost)


def test_a_wish_is_paid_as_the_config_with_that_goal_is():
    states = random_episodes()[0].cars
    there = dataclasses.replace(CONFIG, ego=dataclasses.replace(CONFIG.ego, speed=(26.0, 26.0), lane=1))
    pay = jax.jit(jax.vmap(lambda cars, wish: highway.reward(CONFIG, ROAD, cars, jnp.array(False), wish), (0, None)))
    known = jax.jit(jax.vmap(lambda cars: highway.reward(there, ROAD, cars, jnp.array(False))))
    cars = jax.tree.map(lambda x: jnp.asarray(x[0]), states)
    np.testing.assert_allclose(pay(cars, jnp.array([26.0, 1.0])), known(cars), atol=1e-6)
    assert np.abs(pay(cars, jnp.array([30.0, 0.0])) - known(cars)).max() > 0.05


def test_the_ego_never_drives_backwards():
    states, _, _ = episodes(CONFIG, BRAKE)
    speed = states.cars.speed[:, :, 0]
    assert speed.min() > -1e-3 and np.abs(speed[:, -1]).max() < 1e-3


# --- Ends ----------------------------------------------------------------------------------------------------------------


def test_a_crash_or_the_roadside_terminates_and_a_time_limit_does_not():
    _, steps, _ = random_episodes()
    valid = up_to_the_end(steps.last)
    failed = steps.extras["crashed"] | steps.extras["off_road"]
    assert (steps.last == failed | (np.arange(CONFIG.max_steps) == CONFIG.max_steps - 1)).all()
    assert (steps.discount == 1 - failed).all()
    assert (valid & steps.extras["off_road"]).any(axis=1).mean() > 0.5  # random steering leaves the road
    _, kept, _ = episodes(CONFIG, EXPERT)
    assert (kept.discount == 1).all() and (kept.last.sum(axis=1) == 1).all()


# --- Demonstrations ------------------------------------------------------------------------------------------------------


def test_demonstrations_are_what_each_car_saw_and_did():
    states, steps, _ = random_episodes()
    see = jax.jit(lambda cars, who: highway.see(CONFIG, ROAD, cars, who))
    demos: Demonstration = steps.extras["demonstration"]
    for episode, t in [(0, 0), (1, 5), (2, 30)]:
        now, after = (jax.tree.map(lambda x, e=episode, k=k: x[e, k], states) for k in (t, t + 1))
        who = np.argsort(np.abs(now.cars.x[1:] - now.cars.x[0]), kind="stable")[:5].astype(np.int32) + 1
        shown = jax.tree.map(lambda x, e=episode, k=t: x[e, k], demos)
        np.testing.assert_allclose(shown.obs, see(now.cars, who), atol=1e-5)
        np.testing.assert_allclose(shown.next_obs, see(after.cars, who), atol=1e-5)
        np.testing.assert_allclose(shown.obs[:, 0, 1], (now.cars.y[who] - 6) / 2, atol=1e-5)
        fine = ~after.cars.crashed[who]
        # what it did: the change of its speed is the acceleration that was snapped
        done = (after.cars.speed[who] - now.cars.speed[who]) / CONFIG.dt
        assert (actions.snap(CONFIG.table, jnp.array(done), jnp.array(now.cars.steering[who])) == shown.action)[fine].all()
        number = np.where(fine, now.kind[who], drive.NO_DEMONSTRATOR)
        seen = np.hypot(now.cars.x[who] - now.cars.x[0], now.cars.y[who] - now.cars.y[0]) < 200
        assert steps.extras["demonstrator"][episode, t].tolist() == np.where(seen, number, drive.NO_DEMONSTRATOR).tolist()


def test_the_next_action_is_the_one_taken_next():
    """Whoever is watched twice in a row shows the same action as next and then as taken; nobody has none."""
    states, steps, _ = random_episodes()
    demos: Demonstration = steps.extras["demonstration"]
    met = 0
    for episode in range(8):
        for t in range(20):
            now, after = (
                np.argsort(np.abs(states.cars.x[episode, k, 1:] - states.cars.x[episode, k, 0]), kind="stable")[:5] for k in (t, t + 1)
            )
            for i, car in enumerate(now):
                for j in np.flatnonzero(after == car):
                    assert demos.next_action[episode, t, i] == demos.action[episode, t + 1, j]
                    met += 1
    assert met > 200 and (demos.next_action != NO_ACTION).all() and (demos.discount == 1).all()


def test_demonstrations_fill_the_rings_of_their_demonstrators():
    _, steps, _ = random_episodes()
    agent = steps.extras["demonstrator"][0, :20].reshape(-1)
    flat = jax.tree.map(lambda x: jnp.asarray(x[0, :20].reshape(-1, *x.shape[3:])), steps.extras["demonstration"])
    kinds = highway.num_demonstrators(CONFIG)
    empty = Demos(jax.tree.map(lambda x: jnp.zeros((kinds, 200, *x.shape[1:]), x.dtype), flat), jnp.zeros(kinds, jnp.int32))
    demos, seen = jax.jit(replay.add_demonstrations)(empty, jnp.asarray(agent), flat, jnp.zeros(kinds, jnp.int32))
    assert seen.tolist() == [(agent == k).sum() for k in range(kinds)] == demos.count.tolist()


# --- It can be driven ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "count"),
    [("multi-task", 32), *(pytest.param(name, 256, marks=pytest.mark.slow) for name in ("single-task", "multi-task"))],
)
def test_idm_with_nine_actions_stays_on_the_road(scenario, count):
    _, steps, _ = episodes(highway.SCENARIOS[scenario](), EXPERT, count)
    valid = up_to_the_end(steps.last)
    failed = (valid & (steps.extras["crashed"] | steps.extras["off_road"])).any(axis=1)
    assert failed.mean() < 0.01
    assert (steps.reward * valid).sum(axis=1).mean() > 50


@pytest.mark.slow
def test_a_hundred_thousand_random_steps_bring_no_nan():
    for scenario in highway.SCENARIOS.values():
        states, steps, _ = episodes(scenario(), RANDOM, 334)
        for leaf in jax.tree.leaves((states, steps)):
            assert np.isfinite(leaf).all()


def test_parked_cars_stay_where_they_are_and_may_each_be_a_demonstrator():
    config = dataclasses.replace(highway.adversarial(), max_steps=10, cars=8, demonstrator="car")
    states, steps, _ = episodes(config, RANDOM, 4)
    intact = ~states.cars.crashed[:, -1, 1:]
    assert (states.cars.x[:, 0, 1:] == states.cars.x[:, -1, 1:])[intact].all() and intact.any()
    assert highway.num_demonstrators(config) == 7
    shown = steps.extras["demonstrator"].reshape(-1, 5)
    assert shown.max() <= 6 and all(len(set(row[row >= 0])) == (row >= 0).sum() > 0 for row in shown)


# --- Configs that cannot be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lanes": 0}, "lanes is 0"),
        ({"cars": 5}, "5 cars"),
        ({"cars": 2_000}, "2000 cars at density 0.5"),
        ({"density": 0.0}, "density is 0"),
        ({"density": 5.0}, "car's length"),
        ({"simulation_frequency": 7}, "simulation_frequency is 7"),
        ({"goals": ()}, "goals are empty"),
        ({"goals": (goal(25, 4),)}, "lane is 4"),
        ({"goals": (Goal((30.0, 20.0)),)}, "speed is"),
        ({"ego": Goal((20.0, 20.0))}, "no lane"),
        ({"ego_rank": 21}, "ego_rank is 21"),
        ({"max_steps": 0}, "max_steps is 0"),
        ({"policy_frequency": -5}, "policy_frequency is -5"),
        ({"simulation_frequency": -5}, "simulation_frequency is -5"),
        ({"goals": (dataclasses.replace(goal(25, 1), weight=-1.0),)}, "weight is -1"),
        ({"goals": (dataclasses.replace(goal(25, 1), weight=0.0),)}, "Every goal's weight is 0"),
        ({"goals": (goal(25, 1, -1.0),)}, "time_gap is -1"),
        ({"deficit": (5.0, 1.0)}, "deficit is"),
        ({"ego_speed": (-1.0, 5.0)}, "ego_speed is"),
        ({"in_goal_lane": 1.5}, "in_goal_lane is 1.5"),
        ({"speed_width": 0.0}, "speed_width is 0"),
        ({"table": ()}, "table of actions is empty"),
    ],
)
def test_a_bad_config_gets_one_sentence(change, message):
    with pytest.raises(UserError, match=message) as caught:
        dataclasses.replace(CONFIG, **change)
    assert "\n" not in str(caught.value)
