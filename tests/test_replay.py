"""What is remembered and what is drawn from it, against plain Python."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from psiphi import replay
from psiphi.errors import UserError
from psiphi.types import NO_ACTION, Demonstration, Demos, EnvSpec, Symmetry, Transition
from tables import numpy_record

KEY = jax.random.key(0)
GAMMA = 0.5
GOES_ON, TIME_LIMIT, TERMINATION = 0, 1, 2

# --- n-step returns ------------------------------------------------------------------------------------------------------

_folded = jax.jit(partial(replay.n_step, gamma=GAMMA))


def folded(sequence: Transition) -> Transition:
    return jax.tree.map(np.asarray, _folded(sequence))  # comparing in NumPy compiles nothing


def sequences(kinds: np.ndarray, reward: np.ndarray) -> Transition:
    """Sequences ``[B, n]`` whose observations are numbered: step t of sequence b leads from 100 b + t to 100 b + t + .5."""
    rows, length = kinds.shape
    obs = 100.0 * np.arange(rows)[:, None] + np.arange(length)
    return numpy_record(
        Transition,
        np.repeat(obs[..., None], 2, axis=-1),
        np.tile(np.arange(length), (rows, 1)),
        reward.astype(np.float32),
        (kinds != TERMINATION).astype(np.float32),
        np.repeat(obs[..., None], 2, axis=-1) + 0.5,
        kinds != GOES_ON,
    )


def n_step_by_hand(kinds: np.ndarray, reward: np.ndarray) -> tuple[float, float, int]:
    """Return, discount of the bootstrap, and the step after which it bootstraps, of one sequence."""
    total, discount = 0.0, 1.0
    for t in range(len(kinds)):
        total, discount = total + discount * reward[t], discount * GAMMA
        if kinds[t] == TERMINATION:
            return total, 0.0, t
        if kinds[t] == TIME_LIMIT:
            return total, discount, t
    return total, discount, len(kinds) - 1


@given(kinds=arrays(np.int8, (3, 4), elements=st.integers(0, 2)), reward=arrays(np.int8, (3, 4), elements=st.integers(-4, 4)))
def test_n_step_is_the_sum_up_to_the_end_of_the_episode(kinds, reward):
    fold = folded(sequences(kinds, reward))
    for row, (k, r) in enumerate(zip(kinds, reward, strict=True)):
        total, discount, stop = n_step_by_hand(k, r)
        assert (fold.reward[row], fold.discount[row]) == (total, discount)  # sums of halves and quarters: exact
        np.testing.assert_array_equal(fold.obs[row], 100 * row)
        np.testing.assert_array_equal(fold.next_obs[row], 100 * row + stop + 0.5)
        assert fold.action[row] == 0 and fold.last[row] == (k[stop] != GOES_ON)


def test_a_time_limit_bootstraps_and_a_termination_does_not():
    kinds = np.array([[GOES_ON, TIME_LIMIT, GOES_ON], [GOES_ON, TERMINATION, GOES_ON], [GOES_ON, GOES_ON, GOES_ON]])
    fold = folded(sequences(kinds, np.ones((3, 3))))
    np.testing.assert_array_equal(fold.reward, [1.5, 1.5, 1.75])
    np.testing.assert_array_equal(fold.discount, [GAMMA**2, 0.0, GAMMA**3])
    np.testing.assert_array_equal(fold.next_obs[:, 0], [1.5, 101.5, 202.5])


def test_one_step_is_the_step_itself():
    kinds = np.array([[GOES_ON], [TIME_LIMIT], [TERMINATION]])
    fold = folded(sequences(kinds, np.array([[1], [2], [3]])))
    np.testing.assert_array_equal(fold.reward, [1, 2, 3])
    np.testing.assert_array_equal(fold.discount, [GAMMA, GAMMA, 0])


# --- The ring of experience ----------------------------------------------------------------------------------------------


def test_experience_gives_back_whole_stretches_of_the_newest_steps():
    spec = EnvSpec((1,), jnp.float32, 2)
    ring = replay.make_experience(num_envs=2, size=12, batch=64, n_step=3)
    length = 4

    def rollout(start: jax.Array) -> Transition:
        time = jnp.tile(start + jnp.arange(length)[:, None], (1, 2)).astype(jnp.float32)
        obs = (1000.0 * jnp.arange(2) + time)[..., None]
        return Transition(obs, time.astype(jnp.int32) % 2, time, jnp.ones(time.shape), obs + 1, time % 5 == 4)

    @jax.jit
    def filled(key: jax.Array) -> Transition:
        starts = length * jnp.arange(5)  # 20 steps of each of two environments, into room for six of each
        empty = ring.init(replay.blank_transition(spec))
        state, _ = jax.lax.scan(lambda state, start: (replay.remember(ring, state, rollout(start)), None), empty, starts)
        return ring.sample(state, key).experience

    drawn = jax.tree.map(np.asarray, filled(KEY))
    env, time = np.divmod(drawn.obs[..., 0], 1000)
    assert drawn.action.shape == (64, 3)
    np.testing.assert_array_equal(env, env[:, :1].repeat(3, axis=1))  # one environment
    np.testing.assert_array_equal(time, time[:, :1] + np.arange(3))  # in the order in which it happened
    assert set(time.ravel()) == set(range(14, 20)) and set(env.ravel()) == {0, 1}
    np.testing.assert_array_equal(drawn.next_obs, drawn.obs + 1)
    np.testing.assert_array_equal(drawn.reward, time)
    crossing = drawn.last[:, 0]
    assert crossing.any()  # a stretch may run on into the next episode; its fold must not
    fold = folded(drawn)
    np.testing.assert_array_equal(fold.reward[crossing], time[crossing, 0])
    np.testing.assert_array_equal(fold.next_obs[crossing], drawn.next_obs[crossing, 0])


# --- Frames stored once --------------------------------------------------------------------------------------------------

PICTURE = EnvSpec((64, 64, 1), jnp.uint8, 2)


def walk(steps: int, ends: tuple[int, ...], limit: tuple[int, ...] = ()) -> Transition:
    """Two environments ``[steps, 2]`` whose every frame is another; episodes end at `ends` in the first and at `limit` in the second."""
    frame, env_frames = np.zeros((steps, 2), int), [iter(range(0, 250)), iter(range(5, 255))]
    next_frame, last, discount = np.zeros_like(frame), np.zeros((steps, 2), bool), np.ones((steps, 2))
    for env, over in enumerate((ends, limit)):
        now = next(env_frames[env])
        for t in range(steps):
            frame[t, env], next_frame[t, env] = now, next(env_frames[env])
            last[t, env], discount[t, env] = t in over, float(not (env == 0 and t in over))
            now = next(env_frames[env]) if t in over else next_frame[t, env]
    show = lambda x: jnp.asarray(np.broadcast_to(x[..., None, None, None], (*x.shape, *PICTURE.obs_shape)).astype(np.uint8))  # noqa: E731
    time = np.arange(steps)[:, None].repeat(2, axis=1)
    return Transition(
        show(frame), jnp.asarray(time % 2, jnp.int32), jnp.asarray(time, jnp.float32), jnp.asarray(discount, jnp.float32),
        show(next_frame), jnp.asarray(last),
    )  # fmt: skip


@pytest.mark.parametrize("n", [1, 3])
def test_frames_stored_once_give_what_frames_stored_twice_give(n):
    """Over more steps than there is room for, with ends and time limits: the same folds, each as often as any other."""
    rollout = walk(40, ends=(3, 17, 30), limit=(9, 33))
    length, batch = 12, 2_000

    def drawn(spec: EnvSpec | None) -> tuple[set[tuple[float, ...]], np.ndarray]:
        ring = replay.make_experience(num_envs=2, size=2 * length, batch=batch, n_step=n, spec=spec)
        assert isinstance(ring, replay.Once) == (spec is not None)
        state = ring.init(replay.blank_transition(PICTURE))
        for first in range(0, 40, 5):
            state = replay.remember(ring, state, jax.tree.map(lambda x, f=first: x[f : f + 5], rollout))
        fold = replay.look_up(state, replay.n_step(ring.sample(state, KEY).experience, GAMMA))
        assert fold.obs.shape == (batch, *PICTURE.obs_shape) and fold.obs.dtype == jnp.uint8
        rows = np.stack([np.asarray(x, np.float64).reshape(batch, -1)[:, 0].round(4) for x in fold], axis=1)
        return set(map(tuple, rows)), np.unique(rows, axis=0, return_counts=True)[1]

    once, how_often = drawn(PICTURE)
    twice, _ = drawn(None)
    assert once == twice
    assert how_often.min() > 0.4 * how_often.mean()


def test_where_ends_are_frequent_fewer_steps_are_remembered_and_no_wrong_ones():
    rollout = walk(40, ends=tuple(range(40)), limit=())
    ring = replay.make_experience(num_envs=2, size=24, batch=500, n_step=1, spec=PICTURE)
    state = replay.remember(ring, ring.init(replay.blank_transition(PICTURE)), rollout)
    got = replay.look_up(state, ring.sample(state, KEY).experience)
    frame, next_frame, time = (np.asarray(x).reshape(500, -1)[:, 0].astype(int) for x in (got.obs, got.next_obs, got.reward))
    assert len(set(time)) >= 6
    first = frame == 2 * time  # the environment whose every step is an episode
    assert first.any() and (frame[~first] == time[~first] + 5).all() and (next_frame == frame + 1).all()


def test_a_blank_transition_has_the_environments_shapes():
    blank = replay.blank_transition(EnvSpec((3, 2), jnp.uint8, 4))
    assert (blank.obs.shape, blank.obs.dtype, blank.next_obs.dtype) == ((3, 2), jnp.uint8, jnp.uint8)
    assert (blank.action.dtype, blank.last.dtype) == (jnp.int32, bool)


# --- Demonstrations ------------------------------------------------------------------------------------------------------

AGENTS, ROOM = 3, 5
PADDING = -1000


def demonstrations(counts: list[int] | np.ndarray) -> Demos:
    """Step i of demonstrator k shows 10 k + i; what is not real shows `PADDING`."""
    number = 10 * np.arange(AGENTS)[:, None] + np.arange(ROOM)
    real = np.arange(ROOM) < np.asarray(counts)[:, None]
    return Demos(steps_showing(np.where(real, number, PADDING)), jnp.asarray(np.asarray(counts, np.int32)))


def steps_showing(number: np.ndarray) -> Demonstration:
    """Steps whose every part tells which step it is."""
    whole = number.astype(np.int32)
    return numpy_record(
        Demonstration,
        np.repeat(whole[..., None], 2, axis=-1),
        whole,
        whole.astype(np.float32),
        whole[..., None] + np.float32(0.5),
        whole + 1,
    )


def shown(steps: Demonstration) -> np.ndarray:
    """The steps' numbers, once all parts are found to agree on them."""
    number = np.asarray(steps.action)
    jax.tree.map(np.testing.assert_array_equal, steps, steps_showing(number))
    return number


sampled = jax.jit(partial(replay.sample_demonstrations, batch=60))


@settings(max_examples=30)
@given(counts=st.lists(st.integers(1, ROOM), min_size=AGENTS, max_size=AGENTS), seed=st.integers(0, 2**31 - 1))
def test_each_demonstrators_own_real_steps_are_sampled(counts, seed):
    number = shown(sampled(demonstrations(counts), jax.random.key(seed)))
    assert number.shape == (AGENTS, 60)
    for k, count in enumerate(counts):
        assert set(number[k]) <= {10 * k + i for i in range(count)}


def test_all_steps_are_sampled_about_equally():
    demos = demonstrations([5, 2, 4])
    number = np.concatenate([shown(sampled(demos, jax.random.key(seed))) for seed in range(30)], axis=1)
    for k, count in enumerate([5, 2, 4]):
        _, times = np.unique(number[k], return_counts=True)
        assert times.shape == (count,)
        np.testing.assert_allclose(times / times.sum(), 1 / count, atol=0.05)


pooled = jax.jit(partial(replay.sample_pool, batch=60))


@settings(max_examples=30)
@given(counts=st.lists(st.integers(0, ROOM), min_size=AGENTS, max_size=AGENTS).filter(any), seed=st.integers(0, 2**31 - 1))
def test_a_pool_is_of_real_steps_only(counts, seed):
    number = shown(pooled(demonstrations(counts), jax.random.key(seed)))
    assert number.shape == (60,) and set(number) <= {10 * k + i for k, count in enumerate(counts) for i in range(count)}


def test_in_a_pool_all_steps_of_all_demonstrators_are_equally_likely():
    demos = demonstrations([5, 0, 2])
    number, times = np.unique([shown(pooled(demos, jax.random.key(seed))) for seed in range(30)], return_counts=True)
    assert number.tolist() == [0, 1, 2, 3, 4, 20, 21]
    np.testing.assert_allclose(times / times.sum(), 1 / 7, atol=0.03)


def test_one_demonstrators_steps_can_be_taken_out():
    demos = demonstrations([5, 2, 4])
    one = replay.only(demos, 2)
    assert one.count.tolist() == [4] and shown(one.steps).tolist() == [[20, 21, 22, 23, PADDING]]
    assert replay.only(demos, None) is demos


def test_who_has_shown_anything():
    assert replay.has_shown(demonstrations([5, 0, 1])).tolist() == [True, False, True]


appended = jax.jit(replay.add_demonstrations)


@settings(max_examples=50)
@given(
    counts=st.lists(st.integers(0, ROOM), min_size=AGENTS, max_size=AGENTS),
    calls=st.lists(st.lists(st.integers(-1, AGENTS - 1), min_size=4, max_size=4), max_size=5),
)
def test_online_demonstrations_overwrite_the_oldest(counts, calls):
    demos = demonstrations(counts)
    told = [[10 * k + i for i in range(count)] for k, count in enumerate(counts)]  # everything that each ever showed, in order
    seen = demos.count
    for call, agents in enumerate(calls):
        numbers = 100 * (call + 1) + np.arange(4)
        demos, seen = appended(demos, jnp.asarray(agents, jnp.int32), steps_showing(numbers), seen)
        for agent, number in zip(agents, numbers, strict=True):
            if agent >= 0:
                told[agent].append(int(number))
    np.testing.assert_array_equal(seen, [len(steps) for steps in told])
    np.testing.assert_array_equal(demos.count, [min(len(steps), ROOM) for steps in told])
    number = shown(demos.steps)
    for k, steps in enumerate(told):
        ring = [PADDING] * ROOM
        for i, step in enumerate(steps):
            ring[i % ROOM] = step
        assert number[k].tolist() == ring


# --- The door ------------------------------------------------------------------------------------------------------------

SPEC = EnvSpec((2,), jnp.float32, 4)


def brought(count: tuple[int, int] = (3, 5), **changes: float) -> Demos:
    """Demonstrations of two that fit `SPEC`, but for what is changed in the first demonstrator's second step; the third shows no next."""
    steps = {
        "obs": np.zeros((2, 5, 2), np.float32),
        "action": np.tile(np.arange(5, dtype=np.int32) % 4, (2, 1)),
        "discount": np.ones((2, 5), np.float32),
        "next_obs": np.zeros((2, 5, 2), np.float32),
        "next_action": np.tile(np.array([1, 2, NO_ACTION, 0, 1], np.int32), (2, 1)),
    }
    for name, value in changes.items():
        steps[name][0, 1] = value
    return numpy_record(Demos, numpy_record(Demonstration, *steps.values()), np.array(count, np.int32))


def test_demonstrations_that_fit_pass_the_door():
    demos = brought()
    assert replay.check_demos(demos, SPEC) is demos and replay.check_demos(demos, SPEC, 1, num_demonstrators=2) is demos
    padded = brought(action=9, count=(1, 5))
    assert replay.check_demos(padded, SPEC) is padded  # what is not real does not matter


@pytest.mark.parametrize(
    ("demos", "sentence"),
    [
        (None, "There are no demonstrations, but this agent learns from them."),
        (brought(action=4), "Demonstrator 0 took action 4, but the environment's actions are 0 to 3."),
        (brought(action=NO_ACTION), "Demonstrator 0 took action -1, but the environment's actions are 0 to 3."),
        (brought(next_action=7), "Demonstrator 0 took next action 7, but the environment's actions are 0 to 3."),
        (brought(discount=1.5), r"Demonstrator 0 has discounts outside of 0 \(the task ended there\) to 1."),
        (brought(discount=np.nan), r"Demonstrator 0 has discounts outside of 0 \(the task ended there\) to 1."),
        (brought(count=(3, 0)), "Demonstrator 1 has shown 0 steps, expected 1 to 5, the number of steps that are stored."),
        (brought(count=(3, 6)), "Demonstrator 1 has shown 6 steps, expected 1 to 5, the number of steps that are stored."),
    ],
)
def test_demonstrations_nobody_could_learn_from_are_refused_in_a_sentence(demos, sentence):
    with pytest.raises(UserError, match=f"^{sentence}$"):
        replay.check_demos(demos, SPEC)


def test_only_the_demonstrator_asked_for_is_looked_at():
    demos = brought(action=4)
    replay.check_demos(demos, SPEC, 1)
    with pytest.raises(UserError, match="Demonstrator 0 took action 4"):
        replay.check_demos(demos, SPEC, 0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"demonstrator": 2}, "Demonstrator 2 is unknown: there are 2, counted from 0."),
        ({"demonstrator": -1}, "Demonstrator -1 is unknown: there are 2, counted from 0."),
        ({"num_demonstrators": 3}, "There are demonstrations of 2 demonstrators, expected those of 3."),
        (
            {"spec": SPEC._replace(obs_shape=(3,))},
            r"The demonstrations' obs has shape \(2,\), but the environment's observations have shape \(3,\).",
        ),
    ],
)
def test_shapes_are_checked_while_jax_traces(arguments, sentence):
    with pytest.raises(UserError, match=f"^{sentence}"):
        jax.eval_shape(lambda demos: replay.check_shapes(demos, **{"spec": SPEC, **arguments}), brought())


# --- The mirror ----------------------------------------------------------------------------------------------------------

SWAP = Symmetry(lambda obs: obs[::-1], lambda action: 1 - action)
ROWS = 64


@pytest.fixture(scope="module")
def in_the_mirror():
    """A batch of demonstrations and one of transitions, before and after."""
    spec = EnvSpec((3,), jnp.float32, 2, SWAP)
    obs = np.arange(3 * ROWS, dtype=np.float32).reshape(ROWS, 3)
    action = np.arange(ROWS) % 2
    next_action = np.where(np.arange(ROWS) % 3 == 0, NO_ACTION, action)
    number = np.arange(ROWS, dtype=np.float32)
    demo = numpy_record(Demonstration, obs, action, number, obs + 0.5, next_action)
    step = numpy_record(Transition, obs, action, number, number, obs + 0.5, action == 0)
    before = demo, step
    after = jax.jit(lambda demo, step: (replay.mirror(spec, demo, KEY), replay.mirror(spec, step, KEY)))(*before)
    return list(zip(jax.tree.map(np.asarray, before), jax.tree.map(np.asarray, after), strict=True))


@pytest.mark.parametrize("which", [0, 1], ids=["Demonstration", "Transition"])
def test_a_random_half_is_mirrored_observations_and_actions_alike(in_the_mirror, which):
    before, after = in_the_mirror[which]
    assert type(after) is type(before)
    flipped = after.obs[:, 0] != before.obs[:, 0]
    assert 0.3 < flipped.mean() < 0.7
    np.testing.assert_array_equal(after.obs, np.where(flipped[:, None], before.obs[:, ::-1], before.obs))
    np.testing.assert_array_equal(after.next_obs, np.where(flipped[:, None], before.next_obs[:, ::-1], before.next_obs))
    np.testing.assert_array_equal(after.action, np.where(flipped, 1 - before.action, before.action))
    np.testing.assert_array_equal(after.discount, before.discount)


def test_an_action_that_nobody_saw_stays_unseen_in_the_mirror(in_the_mirror):
    before, after = in_the_mirror[0]
    flipped = after.obs[:, 0] != before.obs[:, 0]
    unseen = before.next_action == NO_ACTION
    np.testing.assert_array_equal(after.next_action == NO_ACTION, unseen)
    np.testing.assert_array_equal(after.next_action[flipped & ~unseen], 1 - before.next_action[flipped & ~unseen])


def test_without_a_symmetry_nothing_is_mirrored(in_the_mirror):
    before = jax.tree.map(jnp.asarray, in_the_mirror[0][0])
    assert replay.mirror(EnvSpec((3,), jnp.float32, 2), before, KEY) is before
