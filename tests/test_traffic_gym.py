"""The traffic worlds as Gymnasium environments: they keep Gymnasium's rules and are the JAX worlds, step by step."""

import functools
import warnings
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import psiphi
from psiphi.envs import highway, roundabout
from psiphi.envs.highway import Goal, goal
from psiphi.envs.roundabout import RoundaboutConfig
from psiphi.envs.traffic import drive
from psiphi.envs.traffic_gym import HighwayEnv, RoundaboutEnv

HIGHWAYS = {"SingleTask": highway.single_task, "Adversarial": highway.adversarial, "MultiTask": highway.multi_task}
IDS = [*(f"psiphi/Highway-{name}-v0" for name in HIGHWAYS), "psiphi/Roundabout-v0"]


@functools.cache
def made(name: str) -> Any:
    return gymnasium.make(name, render_mode="rgb_array")


def played(env, seed: int, length: int = 30) -> list:
    """What happens under actions that the seed alone decides, over as many episodes as it takes."""
    actions = np.random.default_rng(seed).integers(env.action_space.n, size=length)
    seen = [env.reset(seed=seed)]
    for action in actions:
        seen.append(env.step(action))
        if seen[-1][2] or seen[-1][3]:
            seen.append(env.reset())
    return seen


@pytest.mark.parametrize("name", IDS)
def test_gymnasiums_checker_finds_nothing(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name, render_mode="rgb_array").unwrapped)


@pytest.mark.parametrize("name", IDS)
def test_the_same_seed_is_the_same_traffic(name):
    one, other, third = (played(made(name), seed) for seed in (5, 5, 6))
    leaves = jax.tree.leaves(one)
    assert all(np.array_equal(a, b) for a, b in zip(leaves, jax.tree.leaves(other), strict=True))
    assert not np.array_equal(one[0][0], third[0][0])


def test_it_is_the_jax_world():
    env = made("psiphi/Roundabout-v0")
    env.reset(seed=3)
    jax_env = roundabout.make(RoundaboutConfig())
    state = env.unwrapped._state
    take = jax.jit(lambda state, action: jax_env.step(state, action, jax.random.key(0)))
    for action in (0, 3, 4, 1):
        obs, reward, terminated, truncated, info = env.step(action)
        state, step = take(state, action)
        assert np.array_equal(obs, step.obs) and reward == float(step.reward) and terminated == (step.discount == 0) and not truncated
        assert np.array_equal(info["demonstrator"], step.extras["demonstrator"])
        for field, value in step.extras["demonstration"]._asdict().items():
            assert np.array_equal(info["demonstration"][field], value)


def test_the_ids_are_the_scenarios():
    for name, scenario in HIGHWAYS.items():
        assert made(f"psiphi/Highway-{name}-v0").unwrapped.config == scenario()
    assert made("psiphi/Roundabout-v0").unwrapped.config == RoundaboutConfig()


def test_info_shows_what_the_nearest_did_and_before_the_first_step_nobody():
    env = made("psiphi/Highway-MultiTask-v0")
    _, before = env.reset(seed=0)
    _, _, _, _, after = env.step(2)
    assert before.keys() == after.keys() and before["demonstration"].keys() == after["demonstration"].keys()
    assert (before["demonstrator"] == drive.NO_DEMONSTRATOR).all() and set(after["demonstrator"]) <= {-1, 0, 1, 2, 3}
    shown = after["demonstration"]
    assert shown["obs"].shape == shown["next_obs"].shape == (5, 6, 4) and shown["action"].shape == (5,)
    assert all(type(x) is np.ndarray or np.isscalar(x) for x in jax.tree.leaves(after))


def test_leaving_the_road_terminates():
    env = made("psiphi/Highway-SingleTask-v0")
    env.reset(seed=0)
    for _ in range(40):  # hard to the right
        *_, terminated, truncated, info = env.step(7)
        if terminated:
            break
    assert terminated and not truncated and (info["off_road"] or info["crashed"])  # pyright: ignore[reportPossiblyUnboundVariable]


def test_vector_environments_stack_the_demonstrations():
    envs = gymnasium.make_vec("psiphi/Roundabout-v0", num_envs=2, vectorization_mode="sync")
    envs.reset(seed=0)
    *_, info = envs.step(np.array([1, 1]))
    assert info["demonstrator"].shape == (2, 3) and info["demonstration"]["obs"].shape == (2, 3, 4, 4)


def test_traffic_of_ones_own_with_its_time_limit():
    goals = [goal(20, 0), Goal((25.0, 28.0), weight=3.0)]
    traffic = {"lanes": 2, "cars": 8, "goals": goals, "ego": goal(25, 1), "policy_frequency": 1, "max_steps": 2}
    env: Any = gymnasium.make("psiphi/Highway-MultiTask-v0", **traffic)
    config = env.unwrapped.config
    assert (config.lanes, config.cars, len(config.goals), config.frames) == (2, 8, 2, 5)
    assert env.unwrapped.metadata["render_fps"] == 1 and HighwayEnv.metadata["render_fps"] == 5
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert env.step(2)[2:4] == (False, False) and env.step(2)[2:4] == (False, True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HighwayEnv(scenario="rush-hour"), "no scenario 'rush-hour'; expected one of single-task, adversarial, multi-task"),
        (lambda: HighwayEnv(lane=3), "Highway has no option lane; expected render_mode, lanes"),
        (lambda: RoundaboutEnv(lanes=3), "Roundabout has no option lanes"),
        (lambda: HighwayEnv(render_mode="human"), "render_mode is 'human'"),
        (lambda: HighwayEnv(lanes=3), "goal's lane is 3"),
        (lambda: HighwayEnv(cars=2_000), "2000 cars"),
    ],
)
def test_a_mistake_gets_one_sentence(make, message):
    with pytest.raises(psiphi.UserError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_wrong_action_is_refused_and_a_reset_asked_for():
    env = HighwayEnv()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(psiphi.UserError, match="action is 9, expected a whole number from 0 to 8"):
        env.step(9)
