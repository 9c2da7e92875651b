"""CartPole and Acrobot beside Gymnasium's own: from the same states, by the same actions, to the same places and ends."""

import math
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psiphi.envs import classic
from psiphi.envs.classic import State
from psiphi.loops.scan import collect
from psiphi.types import Env, TimeStep

WORLDS = {"CartPole-v1": classic.cartpole, "Acrobot-v1": classic.acrobot}
WIDE = {
    # Beyond the limits at which episodes end and velocities are clipped, so that both sides of each are met.
    "CartPole-v1": np.array([2.6, 4.0, 0.25, 4.0]),
    "Acrobot-v1": np.array([math.pi, math.pi, 4 * math.pi, 9 * math.pi]),
}


def gym(name: str, **options: Any) -> gymnasium.Env:
    return gymnasium.make(name, disable_env_checker=True, **options)


def theirs(name: str, physics: np.ndarray, action: int) -> tuple[np.ndarray, np.ndarray, float, bool]:
    """Gymnasium's state, observation, reward and termination after one step from `physics`."""
    env: Any = gym(name).unwrapped
    env.reset(seed=0)
    env.state = physics.copy()
    obs, reward, terminated, _, _ = env.step(action)
    return np.asarray(env.state), obs, float(reward), terminated


def ours(env: Env, physics: np.ndarray, actions: np.ndarray) -> tuple[State, TimeStep]:
    """One step from each of many states, in double precision."""
    states = State(jnp.asarray(physics), jnp.zeros(len(physics), jnp.int32))
    keys = jax.random.split(jax.random.key(0), len(physics))
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(env.step))(states, jnp.asarray(actions), keys))


@pytest.mark.parametrize("name", WORLDS)
def test_a_step_from_anywhere_is_gymnasiums(name):
    rng = np.random.default_rng(0)
    physics = rng.uniform(-1, 1, (300, 4)) * WIDE[name]
    with jax.enable_x64(True):
        env = WORLDS[name]()
        actions = rng.integers(0, env.spec.num_actions, len(physics))
        state, step = ours(env, physics, actions)
    expected = [theirs(name, p, int(a)) for p, a in zip(physics, actions, strict=True)]
    next_physics, obs, reward, terminated = (np.stack(x) for x in zip(*expected, strict=True))
    assert 20 < terminated.sum() < 280
    np.testing.assert_allclose(state.physics, next_physics, rtol=0, atol=1e-11)
    np.testing.assert_allclose(step.obs, obs, rtol=0, atol=4e-6)
    np.testing.assert_array_equal(step.reward, reward)
    np.testing.assert_array_equal(step.discount, 1.0 - terminated)
    np.testing.assert_array_equal(step.last, terminated)
    assert step.obs.dtype == obs.dtype == np.float32


@pytest.mark.parametrize("name", WORLDS)
def test_whole_episodes_of_random_actions_are_gymnasiums(name):
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        env = WORLDS[name]()
        step = jax.jit(env.step)
        for seed in range(3):
            other = gym(name)
            other.reset(seed=seed)
            inner: Any = other.unwrapped
            state = State(jnp.asarray(inner.state, jnp.float64), jnp.zeros((), jnp.int32))
            over = False
            while not over:
                action = rng.integers(env.spec.num_actions)
                obs, reward, terminated, truncated, _ = other.step(action)
                state, reached = step(state, action, jax.random.key(0))
                over = terminated or truncated
                np.testing.assert_allclose(reached.obs, obs, rtol=1e-5, atol=1e-5)
                assert (float(reached.reward), float(reached.discount), bool(reached.last)) == (reward, 1.0 - terminated, over)
            assert terminated or int(state.t) == classic.MAX_STEPS  # pyright: ignore[reportPossiblyUnboundVariable]


def balancing(physics: np.ndarray) -> int:
    return int(physics[2] + 0.5 * physics[3] + 0.05 * physics[0] + 0.1 * physics[1] > 0)


def test_the_time_limit_is_gymnasiums_and_no_termination():
    other = gym("CartPole-v1")
    obs, _ = other.reset(seed=0)
    inner: Any = other.unwrapped
    with jax.enable_x64(True):
        step = jax.jit(classic.cartpole().step)
        clock = jnp.zeros((), jnp.int32)
        for t in range(1, 501):
            # From Gymnasium's state each time: an upright pole magnifies rounding, by 500 steps even that of double precision.
            state = State(jnp.asarray(inner.state, jnp.float64), clock)
            action = balancing(obs)
            obs, _, terminated, truncated, _ = other.step(action)
            (_, clock), reached = step(state, action, jax.random.key(0))
            np.testing.assert_allclose(reached.obs, obs, rtol=0, atol=1e-6)
            assert (terminated, truncated, bool(reached.last), float(reached.discount)) == (False, t == 500, t == 500, 1.0)


def test_a_fall_at_the_time_limit_is_a_termination():
    # At 0.2 rad and turning outwards the next step is beyond 12 degrees, whatever the push.
    falling = np.array([0.0, 0.0, 0.2, 1.0])
    other = gym("CartPole-v1", max_episode_steps=1)
    other.reset(seed=0)
    inner: Any = other.unwrapped
    inner.state = falling
    *_, terminated, truncated, _ = other.step(0)
    assert terminated and truncated
    zero = jnp.zeros((), jnp.int32)
    _, reached = classic.cartpole(max_steps=1).step(State(jnp.asarray(falling), zero), zero, jax.random.key(0))
    assert bool(reached.last) and float(reached.discount) == 0


@pytest.mark.parametrize("name", WORLDS)
def test_episodes_start_where_gymnasiums_do(name):
    env, other = WORLDS[name](), gym(name)
    state, obs = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 2000))
    mine = np.asarray(state.physics)
    inner: Any = other.unwrapped
    yours = np.stack([(other.reset(seed=seed), inner.state)[1] for seed in range(500)])
    assert np.abs(mine).max() == pytest.approx(np.abs(yours).max(), rel=0.02)
    np.testing.assert_allclose(mine.std(0), yours.std(0), rtol=0.1)
    np.testing.assert_allclose(mine.mean(0), 0, atol=0.05 * np.abs(mine).max())
    assert obs.shape == (2000, *env.spec.obs_shape) and obs.dtype == jnp.float32
    space: Any = other.observation_space
    assert env.spec.obs_shape == space.shape
    assert env.spec.num_actions == inner.action_space.n


@pytest.mark.parametrize("name", WORLDS)
def test_the_compiled_loop_runs_it(name):
    env = WORLDS[name](max_steps=30)

    @jax.jit
    def rollout(key):
        state, obs = jax.vmap(env.reset)(jax.random.split(key, 4))
        act = lambda obs, key: jax.random.randint(key, obs.shape[:1], 0, env.spec.num_actions)  # noqa: E731
        return collect(env, act, state, obs, key, 80)[2]

    steps = rollout(jax.random.key(0))
    lengths = np.diff(np.flatnonzero(np.asarray(steps.last[:, 0])), prepend=-1)
    assert len(lengths) >= 2 and lengths.max() <= 30
    assert bool(jnp.isfinite(steps.next_obs).all())
