"""The compiled loop, on worlds whose values are known."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from psiphi.errors import UserError
from psiphi.loops import runs, scan
from psiphi.loops.evaluate import rollout_returns
from psiphi.progress import clock, seconds_left
from psiphi.types import Agent, Demonstration, Demos, Transition

PROBES = (probes.one_step, probes.two_steps, probes.say_what_you_see, probes.time_limit, probes.termination)
MEDLEY = probes.medley(*(probe() for probe in PROBES))
CONFIG = scan.LoopConfig(iterations=250, chunk=100, num_envs=16, rollout_length=3, seed=3)


ENV = probes.make(MEDLEY)
AGENT = probes.tabular_q(ENV.spec, num_envs=16, rollout_length=3, epsilon=0.5, noise=1e-4)


def evaluate(state: probes.Table, key: jax.Array) -> dict[str, jax.Array]:
    played = rollout_returns(ENV, partial(AGENT.policy, state), key, 20, 10)
    return {"return": played["returns"].mean(), "visits": played["features"].sum(axis=0)}


def keys(*seeds: int) -> jax.Array:
    return jnp.stack([jax.random.key(seed) for seed in seeds])


def bits(tree: Any) -> list[np.ndarray]:
    """The leaves as NumPy arrays: comparing there compiles nothing."""
    is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(tree)]
    return [np.asarray(jax.random.key_data(leaf) if key else leaf) for leaf, key in zip(jax.tree.leaves(tree), is_key, strict=True)]


def equal(a: Any, b: Any) -> bool:
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(bits(a), bits(b), strict=True))


@pytest.fixture(scope="module")
def program() -> scan.Program:
    """One program for all single seeds: a seed enters as a key, not as code."""
    return scan.compile_run(ENV, AGENT, CONFIG, evaluate)


@pytest.fixture(scope="module")
def trained(program) -> scan.Result:
    with pytest.MonkeyPatch.context() as patch:  # not to compile it twice
        patch.setattr(scan, "compile_run", lambda *_: program)
        return scan.run(ENV, AGENT, None, CONFIG, evaluate=evaluate, progress=False)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_the_loop_learns_the_right_values(trained, probe):
    offset = sum(len(earlier().reward) for earlier in PROBES[: PROBES.index(probe)])
    expected = probe().values
    found = trained.agent().q[offset : offset + len(expected), : expected.shape[1]]
    np.testing.assert_allclose(found, expected, atol=3e-3)


def test_rows_tell_step_seed_and_figures(trained, program):
    assert [row["step"] for row in trained.rows] == [0, 100, 200, 250]
    assert [row["env_steps"] for row in trained.rows] == [48 * step for step in (0, 100, 200, 250)]
    assert all(row["seed"] == 3 for row in trained.rows)
    assert "train/loss" not in trained.rows[0] and trained.rows[-1]["train/loss"] < trained.rows[1]["train/loss"]
    judged = program.evaluate(trained.carry)
    assert trained.rows[-1]["eval/return"] == float(judged["return"][0]) and trained.rows[-1]["eval/visits"] == judged["visits"][0].tolist()


def test_one_seed_gives_the_same_bits_twice_and_two_seeds_differ(program):
    first, metrics = program.chunk(program.begin(keys(0), None), 20)
    second, same_metrics = program.chunk(program.begin(keys(0), None), 20)
    other, _ = program.chunk(program.begin(keys(1), None), 20)
    assert equal(first, second) and equal(metrics, same_metrics)
    assert not equal(first.agent.q, other.agent.q) and not equal(first.obs, other.obs)


def test_where_chunks_end_does_not_matter(program):
    whole, _ = program.chunk(program.begin(keys(0), None), 12)
    part, _ = program.chunk(program.begin(keys(0), None), 5)
    rest, _ = program.chunk(part, 7)
    assert equal(whole, rest)
    assert program.chunk._cache_size() == 1  # every length is the same program


def test_a_seed_among_others_is_the_seed_alone_up_to_rounding(program):
    both = scan.compile_run(ENV, AGENT, dataclasses.replace(CONFIG, num_seeds=2))
    together, metrics = both.chunk(both.begin(keys(0, 1), None), 20)
    for i in (0, 1):
        alone, alone_metrics = program.chunk(program.begin(keys(i), None), 20)
        for x, y in zip(bits((together, metrics)), bits((alone, alone_metrics)), strict=True):
            np.testing.assert_allclose(x[i], y[0], rtol=1e-4, atol=1e-6)


def test_collect_keeps_the_observation_before_the_reset():
    env = probes.make(probes.time_limit())
    state, obs = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 2))
    still = partial(jnp.zeros, 2, jnp.int32)
    _, after, rollout = jax.jit(lambda s, o: scan.collect(env, lambda obs, key: still(), s, o, jax.random.key(1), 4))(state, obs)
    places = np.argmax(rollout.obs, axis=-1)[:, 0].tolist(), np.argmax(rollout.next_obs, axis=-1)[:, 0].tolist()
    assert places == ([0, 1, 1, 0], [1, 1, 1, 1])  # the third step ends at place 1; the fourth starts at place 0
    assert rollout.last[:, 0].tolist() == [False, False, True, False]
    assert rollout.discount[:, 0].tolist() == [1.0] * 4 and rollout.reward[:, 0].tolist() == [0.0, 1.0, 1.0, 0.0]
    assert np.argmax(after, axis=-1).tolist() == [1, 1]


def counter() -> Agent:
    """Counts what it is shown; its weak-typed state is what careless agents have."""

    def init(key: jax.Array, demos: Demos | None) -> dict[str, Any]:
        del key
        return {"seen": jnp.asarray(0.0), "updates": 0, "weak": 0.0, "demos": demos}

    def observe(state: dict[str, Any], rollout: Transition) -> dict[str, Any]:
        return {**state, "seen": state["seen"] + rollout.reward.size}

    def update(state: dict[str, Any], key: jax.Array) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        del key
        return {**state, "updates": state["updates"] + 1, "weak": 1.0}, {"seen": state["seen"]}

    def act(state: dict[str, Any], obs: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.zeros(obs.shape[0], jnp.int32)

    return Agent(init, act, observe, update, act)


def test_prefill_comes_before_the_first_update_and_updates_follow_each_rollout():
    config = scan.LoopConfig(iterations=3, chunk=1, num_envs=2, rollout_length=3, updates_per_rollout=4, prefill_steps=7)
    evaluate = lambda state, key: {"undefined": jnp.float32(jnp.nan)}  # noqa: E731
    result = scan.run(probes.make(probes.one_step()), counter(), None, config, evaluate=evaluate, progress=False)
    assert [row["train/seen"] for row in result.rows[1:]] == [12 + 6, 12 + 12, 12 + 18]
    assert [row["env_steps"] for row in result.rows[1:]] == [18, 24, 30]
    assert int(result.agent()["updates"]) == 12
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(result.carry.agent))  # a checkpoint would lose it
    assert result.rows[0]["eval/undefined"] is None  # JSON knows no NaN


def test_study_comes_after_the_prefill_and_takes_no_steps():
    config = scan.LoopConfig(iterations=5, chunk=2, num_envs=2, prefill_steps=6, study=3)
    result = scan.run(probes.make(probes.one_step()), counter(), None, config, progress=False)
    assert [(row["step"], row["train/seen"], row["env_steps"]) for row in result.rows] == [(2, 6, 6), (3, 6, 6), (5, 6 + 3, 10)]
    assert int(result.agent()["updates"]) == 5
    with pytest.raises(UserError, match="study is 6, but there are only 5 iterations"):
        scan.LoopConfig(iterations=5, study=6)


def test_offline_updates_only_and_leaves_the_callers_demonstrations_alone():
    step = Demonstration(jnp.ones((1, 5, 2)), jnp.zeros((1, 5), int), jnp.ones((1, 5)), jnp.ones((1, 5, 2)), jnp.zeros((1, 5), int))
    demos = Demos(step, jnp.array([5]))
    config = scan.LoopConfig(iterations=5, chunk=5, updates_per_rollout=2, num_seeds=2)
    result = scan.run(None, counter(), demos, config, progress=False)
    assert result.carry.agent["updates"].tolist() == [10, 10] and result.carry.agent["seen"].tolist() == [0.0, 0.0]
    assert [row["env_steps"] for row in result.rows] == [0, 0] and [row["seed"] for row in result.rows] == [0, 1]
    assert equal(result.agent(1)["demos"], demos)  # and so the donated carry did not take the caller's arrays with it


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_a_large_replay_is_updated_in_place(num_seeds):
    size = 100_000

    def observe(state: dict[str, jax.Array], rollout: Transition) -> dict[str, jax.Array]:
        ring = jax.lax.dynamic_update_slice(state["ring"], rollout.reward.reshape(-1), (state["at"],))
        return {"ring": ring, "at": (state["at"] + rollout.reward.size) % size}

    def update(state: dict[str, jax.Array], key: jax.Array) -> tuple[Any, Any]:
        return state, {"sample": state["ring"][jax.random.randint(key, (8,), 0, size)].mean()}

    def init(key: jax.Array, demos: Demos | None) -> dict[str, jax.Array]:
        return {"ring": jnp.zeros(size), "at": jnp.zeros((), jnp.int32)}

    agent = counter()._replace(init=init, observe=observe, update=update)
    config = scan.LoopConfig(num_envs=2, num_seeds=num_seeds)
    program = scan.compile_run(probes.make(probes.one_step()), agent, config)
    carry = jax.eval_shape(program.begin, keys(*range(num_seeds)), None)
    memory = program.chunk.lower(carry, 1).compile().memory_analysis()  # pyright: ignore[reportFunctionMemberAccess]
    assert memory.temp_size_in_bytes < size and memory.alias_size_in_bytes >= 4 * size * num_seeds


def test_evaluation_counts_the_first_episode_only():
    env = probes.make(probes.medley(probes.one_step(), probes.termination()))
    play = jax.jit(lambda key, max_steps: rollout_returns(env, lambda obs, key: jnp.zeros(16, jnp.int32), key, 16, max_steps))
    played, cut = play(jax.random.key(0), 10), play(jax.random.key(0), 2)
    long = played["lengths"] == 3
    assert 0 < long.sum() < 16 and played["finished"].all()
    np.testing.assert_array_equal(played["returns"], jnp.where(long, 3.0, 1.0))
    np.testing.assert_array_equal(played["features"], jnp.where(long[:, None], jnp.array([0.0, 1, 1, 1]), jnp.array([1.0, 0, 0, 0])))
    np.testing.assert_array_equal(cut["returns"], jnp.where(long, 2.0, 1.0))
    np.testing.assert_array_equal(cut["finished"], ~long)


@pytest.mark.parametrize("field", ["iterations", "chunk", "num_envs", "rollout_length", "updates_per_rollout", "num_seeds"])
def test_a_config_out_of_range_is_named(field):
    with pytest.raises(UserError, match=f"{field} is 0, expected at least 1"):
        scan.LoopConfig(**{field: 0})


def test_time_left_is_the_latest_pace():
    assert seconds_left([(0.0, 0), (10.0, 5)], total=15) == 20.0
    assert seconds_left([(0.0, 0), (100.0, 1), (101.0, 2), (102.0, 3)], total=5, window=2) == 2.0
    assert seconds_left([(0.0, 0)], total=5) == float("inf")
    assert clock(float("inf")) == "?" and clock(3725.2) == "1:02:05" and clock(59.6) == "1:00"


def test_figures_are_json():
    figures = runs.figures({"a": jnp.float32(0.5), "b": np.array([1.0, np.inf]), "c": np.int32(3)})
    assert figures == {"a": 0.5, "b": [1.0, None], "c": 3}
