"""The Gymnasium loop: the same transitions and the same agents as in the compiled loop."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import probes
from psiphi.agents import dqn
from psiphi.errors import UserError
from psiphi.loops import gym, scan
from psiphi.types import EnvSpec, Pace, Transition

LOOP = scan.LoopConfig(iterations=7, chunk=3, num_envs=3, rollout_length=2, prefill_steps=5, seed=4)
MODES = tuple(AutoresetMode)


def fork() -> probes.Probe:
    """Two actions: 0 goes round 0 -> 1 -> 0, 1 ends from place 1; the clock stops after five steps. Returns depend on what is done."""
    moves, reward = np.array([[1, 0], [0, 1]]), np.array([[0.0, 0.1], [0.0, 1.0]])
    return probes.Probe((0,), moves, reward, np.array([[False, False], [False, True]]), (5,), np.zeros((2, 2)))


def worlds(probe: probes.Probe, mode: AutoresetMode = AutoresetMode.SAME_STEP, number: int = 3) -> gym.Worlds:
    return gym.Worlds(SyncVectorEnv([functools.partial(probes.ProbeEnv, probe)] * number, autoreset_mode=mode))


def tabular(probe: probes.Probe, **options: Any):
    return probes.tabular_q(probes.make(probe).spec, num_envs=3, rollout_length=2, epsilon=0.5, noise=1e-3, **options)


def assert_same(a: Any, b: Any, **tolerance: Any) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert x.dtype == y.dtype
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), **{"rtol": 0.0, **tolerance})


@pytest.fixture(scope="module")
def played() -> tuple[Any, Transition]:
    """A policy, and what it meets in the compiled loop."""
    env, agent = probes.make(fork()), tabular(fork())
    act = jax.jit(functools.partial(agent.act, agent.init(jax.random.key(0), None)))

    def rollout(key: jax.Array) -> Transition:
        start = jax.vmap(env.reset)(jax.random.split(key, 3))
        return scan.collect(env, act, *start, key, 40)[2]

    return act, jax.jit(rollout)(jax.random.key(9))


@pytest.mark.parametrize("mode", MODES)
def test_transitions_are_those_of_the_compiled_loop(mode, played):
    act, expected = played
    collector = gym.Collector(worlds(fork(), mode))
    collector.worlds.reset(0)
    found = collector.collect(act, jax.random.key(9), 40)
    if mode == AutoresetMode.NEXT_STEP:  # acts more often, so with other random numbers
        assert_legal(fork(), found)
    else:
        assert_same(found, expected)
    assert found.last.any() and (found.discount == 0).any() and (found.discount[found.last] == 1).any()


def assert_legal(probe: probes.Probe, rollout: Transition) -> None:
    """Every step is one of the world's, and the steps of an environment follow each other: a phantom is no such step."""
    place, then = np.argmax(rollout.obs, axis=-1), np.argmax(rollout.next_obs, axis=-1)
    at = place, np.asarray(rollout.action)
    np.testing.assert_array_equal(then, probe.next_place[at])
    np.testing.assert_allclose(rollout.reward, probe.reward[at], rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(rollout.discount) == 0, probe.ends[at])
    np.testing.assert_array_equal(place[1:], np.where(rollout.last[:-1], probe.starts[0], then[:-1]))


def test_environments_that_reset_in_a_step_of_their_own_never_show_it():
    """One world's episodes are short and another's long: they fall out of step, and still no step is lost, invented or out of order."""
    probe = fork()
    collector = gym.Collector(worlds(probe, AutoresetMode.NEXT_STEP, number=2))
    collector.worlds.reset(0)

    def act(obs: np.ndarray, _: jax.Array) -> np.ndarray:
        return np.array([obs[0, 1], 0], int)  # the first one ends as soon as it can, the second waits for the clock

    parts = [collector.collect(act, jax.random.key(i), length) for i, length in enumerate((3, 1, 8, 5))]
    rollout = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    assert_legal(probe, rollout)
    assert (
        rollout.last[:, 0].tolist() == [False, True] * 8 + [False]
        and rollout.last[:, 1].tolist() == ([False] * 4 + [True]) * 3 + [False] * 2
    )


def test_the_agent_after_training_is_the_compiled_loops_bit_for_bit():
    probe = fork()
    agent = tabular(probe)
    compiled = scan.run(probes.make(probe), agent, None, LOOP, progress=False)
    hosted = gym.run(worlds(probe), agent, None, LOOP, progress=False)
    assert_same(hosted.agent(), compiled.agent())
    for row, other in zip(hosted.rows, compiled.rows, strict=True):
        assert {k: v for k, v in row.items() if k[:6] != "train/" and k != "wall_s"} == {
            k: v for k, v in other.items() if k[:6] != "train/" and k != "wall_s"
        }
        assert row["train/loss"] == pytest.approx(other["train/loss"], rel=1e-5)


def test_a_network_trained_in_both_loops_is_the_same():
    probe = fork()
    config = dqn.DQNConfig(torso_hidden=(8,), head_hidden=(), batch=8, replay_size=60)
    agent = dqn.make(config, probes.make(probe).spec, 0, Pace(num_envs=3, updates=100))
    loop = dataclasses.replace(LOOP, rollout_length=1, updates_per_rollout=2, iterations=12)
    compiled = scan.run(probes.make(probe), agent, None, loop, progress=False).agent()
    hosted = gym.run(worlds(probe), agent, None, loop, progress=False).agent()
    assert_same(hosted.experience, compiled.experience)
    assert_same(hosted.net, compiled.net, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("probe", [probes.time_limit, probes.termination], ids=lambda probe: probe.__name__)
def test_a_time_limit_bootstraps_and_an_end_does_not(probe, mode):
    agent = probes.tabular_q(probes.make(probe()).spec, num_envs=3, rollout_length=2)
    loop = dataclasses.replace(LOOP, iterations=120, chunk=120)
    found = gym.run(worlds(probe(), mode), agent, None, loop, progress=False).agent().q
    np.testing.assert_allclose(found, probe().values, atol=3e-3)


def test_processes_give_what_one_process_gives():
    factories = [functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=12)] * 2
    rollouts = []
    for kind in (SyncVectorEnv, functools.partial(AsyncVectorEnv, context="spawn")):
        envs = kind(factories, autoreset_mode=AutoresetMode.SAME_STEP)
        collector = gym.Collector(gym.Worlds(envs))
        collector.worlds.reset(3)
        rollouts.append(collector.collect(lambda obs, _: (obs[:, 2] > 0).astype(int), jax.random.key(0), 40))
        envs.close()
    assert_same(*rollouts)
    cut = rollouts[0].last & (rollouts[0].discount == 1)
    assert cut.any() and not np.array_equal(rollouts[0].next_obs[:-1][cut[:-1]], rollouts[0].obs[1:][cut[:-1]])


def test_actions_are_counted_from_the_environments_first_and_observations_seen_through_see():
    class Counts(probes.ProbeEnv):
        def __init__(self):
            super().__init__(fork())
            self.action_space = gymnasium.spaces.Discrete(2, start=5)

        def step(self, action: Any) -> Any:
            assert action in (5, 6)
            return super().step(action - 5)

    envs = SyncVectorEnv([Counts], autoreset_mode=AutoresetMode.SAME_STEP)
    collector = gym.Collector(gym.Worlds(envs, see=lambda raw: 10 * raw, first_action=5))
    collector.worlds.reset(0)
    rollout = collector.collect(lambda obs, key: np.array([1]), jax.random.key(0), 6)
    assert rollout.action.ravel().tolist() == [1] * 6 and rollout.last.ravel().tolist() == [False] * 4 + [True, False]
    assert rollout.obs.max() == 10 and rollout.next_obs.max() == 10


def test_returns_count_equally_many_episodes_of_every_world():
    played = gym.rollout_returns(worlds(fork(), AutoresetMode.NEXT_STEP), lambda obs, key: np.array([1, 0, 0]), jax.random.key(0), 6)
    assert played["returns"].tolist() == pytest.approx([0.5] * 2 + [0.0] * 4) and played["lengths"].tolist() == [5] * 6
    endless = gym.rollout_returns(worlds(probes.two_steps()), lambda obs, key: np.zeros(3), jax.random.key(0), 3, max_steps=1)
    assert endless["lengths"].tolist() == [1] * 3 and not endless["finished"].any()


def test_a_run_leaves_rows_and_goes_on_where_it_stopped(tmp_path):
    agent, probe = tabular(fork()), fork()

    def evaluate(state: probes.Table, key: jax.Array) -> dict[str, Any]:
        return {"best": np.max(state.q)}

    with pytest.raises(KeyboardInterrupt):
        run = functools.partial(gym.run, worlds(probe), agent, None, LOOP, out=tmp_path, progress=False, checkpoint_every_s=0.0)
        calls = iter(range(3))
        run(evaluate=lambda state, key: evaluate(state, key) if next(calls, None) is not None else interrupt())
    done = gym.run(worlds(probe), agent, None, LOOP, out=tmp_path, evaluate=evaluate, progress=False)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == done.rows and [row["step"] for row in rows] == [0, 3, 6, 7]
    assert [row["env_steps"] for row in rows] == [LOOP.env_steps(step) for step in (0, 3, 6, 7)]
    assert rows[-1]["eval/best"] == float(done.agent().q.max())
    again = gym.run(worlds(probe), agent, None, LOOP, out=tmp_path, evaluate=evaluate, progress=False)
    assert_same(again.agent(), done.agent())


def interrupt() -> Any:
    raise KeyboardInterrupt


class Drunk(gymnasium.Env):
    """Where it goes depends on the action and on its own random numbers; `sober` is whether a seed decides these."""

    observation_space = gymnasium.spaces.Box(0, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, sober: bool):
        self.sober = sober

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed if self.sober else None)
        self.at, self.left = 0, int(self.np_random.integers(1, 5))
        return np.eye(4, dtype=np.float32)[self.at], {}

    def step(self, action):
        self.at = (self.at + int(action) + int(self.np_random.integers(4))) % 4
        self.left -= 1
        return np.eye(4, dtype=np.float32)[self.at], float(self.np_random.normal()), self.left == 0, False, {}


@pytest.mark.parametrize(("mode", "sober"), [(mode, True) for mode in MODES] + [(AutoresetMode.SAME_STEP, False)])
def test_a_run_continues_inside_of_the_episodes_in_which_it_was_stopped(tmp_path, mode, sober):
    """Episodes are of random lengths, so that environments are ahead of each other; the run is stopped after every checkpoint."""
    agent = probes.tabular_q(EnvSpec((4,), jnp.float32, 2), num_envs=3, rollout_length=2, noise=0.1)

    def train(out: Path | None, calls: int = 9) -> scan.Result:
        envs = SyncVectorEnv([functools.partial(Drunk, sober)] * 3, autoreset_mode=mode)
        left = iter(range(calls))
        judge = lambda state, key: {"best": np.max(state.q)} if next(left, None) is not None else interrupt()  # noqa: E731
        return gym.run(gym.Worlds(envs), agent, None, LOOP, out=out, evaluate=judge, progress=False, checkpoint_every_s=0.0)

    unbroken = train(None)
    for calls in (2, 1):  # after iterations 3 and 6
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, calls)
    done = train(tmp_path)
    rows = [[{name: x for name, x in row.items() if name != "wall_s"} for row in result.rows] for result in (done, unbroken)]
    assert done.earlier_s > 0 and len(rows[0]) == len(rows[1])
    assert (rows[0] == rows[1]) == sober, "where a seed decides nothing, nothing can be repeated"
    if sober:
        assert_same(done.agent(), unbroken.agent())


def test_the_state_of_an_earlier_run_can_be_continued_and_studied():
    agent, probe = tabular(fork()), fork()
    first = gym.run(worlds(probe), agent, None, LOOP, progress=False).agent()
    loop = dataclasses.replace(LOOP, iterations=2, study=2, prefill_steps=0)
    studied = gym.run(worlds(probe), agent, None, loop, state=first, progress=False).agent()
    assert_same(studied.recent, first.recent)  # no further step was taken
    assert not np.array_equal(studied.q, first.q)


def test_a_loop_of_another_width_is_refused():
    with pytest.raises(UserError, match="one seed in the 3 environments it is given, but 1 seeds in 8 environments are asked for"):
        gym.run(worlds(fork()), tabular(fork()), None, scan.LoopConfig(num_envs=8), progress=False)


class Breaks(probes.ProbeEnv):
    """Fails in its fourth step."""

    def __init__(self):
        super().__init__(fork())
        self.steps = 0

    def step(self, action):
        self.steps += 1
        return {}["speed"] if self.steps > 3 else super().step(action)


def test_what_a_strangers_environment_raises_is_told_with_the_line_that_raised_it():
    place = gym.Worlds(SyncVectorEnv([Breaks]))
    place.reset(0)
    for _ in range(3):
        place.step(np.zeros(1, np.int32))
    with pytest.raises(UserError, match=r"The environment's step failed in test_gym_loop.py, line \d+: KeyError: 'speed'\.") as told:
        place.step(np.zeros(1, np.int32))
    assert isinstance(told.value.__cause__, KeyError)
