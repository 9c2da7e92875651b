"""SQIL: what its batches are made of, the softmax it acts by, and its soft values against tabular soft value iteration."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from psiphi.agents import dqn, sqil
from psiphi.agents.dqn import DQNConfig
from psiphi.agents.sqil import SQILConfig
from psiphi.errors import UserError
from psiphi.loops import scan
from psiphi.nets import ActionNet
from psiphi.types import NO_ACTION, Agent, Demonstration, Demos, EnvSpec, Pace, Symmetry, Transition
from tables import blank, drawn, numpy_record, quick_jit

KEY = jax.random.key(0)
MEDLEY = probes.medley(probes.say_what_you_see(), probes.time_limit(), probes.termination())
ENV = probes.make(MEDLEY)
PLACES, ACTIONS = MEDLEY.reward.shape
GAMMA, TEMPERATURE = 0.6, 0.3
UPDATES = 800
PACE = Pace(num_envs=16, updates=UPDATES)

LEARNER = DQNConfig(
    torso="mlp", torso_hidden=(32,), head_hidden=(), gamma=GAMMA, n_step=1, double=False, huber=0.0, learning_rate=0.01, cosine=True,
    clip=10.0, batch=128, replay_size=1024, epsilon_start=0.0, epsilon_end=0.0, epsilon_steps=1, ema=0.1,
    mirror=False,
)  # fmt: skip
IMITATOR = SQILConfig(
    dqn=LEARNER, temperature=TEMPERATURE, demonstrator=1, demo_reward=1.0, env_reward=False, absorbing=False, greedy=False
)
REWARDED = replace(IMITATOR, demonstrator=None, env_reward=True, demo_reward=0.5)
ABSORBED = replace(REWARDED, absorbing=True)


def see(place: np.ndarray) -> np.ndarray:
    return np.eye(PLACES, dtype=np.float32)[place]


def steps_of(places: np.ndarray, actions: np.ndarray, cut: np.ndarray) -> Demonstration:
    """Steps of the world; where `cut`, the recording stopped after the step."""
    ends = MEDLEY.ends[places, actions]
    next_action = np.where(ends, 0, np.where(cut, NO_ACTION, 1)).astype(np.int32)
    reached = see(MEDLEY.next_place[places, actions])
    return numpy_record(Demonstration, see(places), actions.astype(np.int32), (1.0 - ends).astype(np.float32), reached, next_action)


@pytest.fixture(scope="module")
def demos() -> Demos:
    """The first of two says the contrary of what it sees, the second mostly what it sees; of both some recordings are cut off."""
    rng = np.random.default_rng(0)
    place = rng.integers(0, PLACES, (2, 50))
    action = np.where(place < 2, place, 0)
    action = np.where(rng.random(place.shape) < 0.2, 1 - action, action)
    action[0] = 1 - action[0]
    steps = steps_of(place, action, rng.random(place.shape) < 0.3)
    return jax.tree.map(jnp.asarray, numpy_record(Demos, steps, np.array([30, 50], np.int32)))


@pytest.fixture(scope="module")
def rollout() -> Transition:
    """Random experience ``[T, N]``, with ends and time limits."""

    @quick_jit
    def play(key: jax.Array) -> Transition:
        state, obs = jax.vmap(ENV.reset)(jax.random.split(key, PACE.num_envs))
        return scan.collect(ENV, lambda obs, key: jax.random.randint(key, obs.shape[:1], 0, ACTIONS), state, obs, key, 40)[2]

    return jax.tree.map(np.asarray, play(KEY))


# --- What is learned from ------------------------------------------------------------------------------------------------


def own_steps(rows: int = 4) -> Transition:
    place, action = np.arange(rows), np.arange(rows, dtype=np.int32) % ACTIONS
    reward, discount = np.array([3.0, -2.0, 1.0, 5.0], np.float32), np.array([GAMMA, 0.0, GAMMA, GAMMA], np.float32)
    return numpy_record(Transition, see(place), action, reward, discount, see(place + 1), discount == 0)


def test_demonstrations_are_paid_and_own_steps_are_not(demos):
    demo = jax.tree.map(lambda x: np.asarray(x)[0, :4], demos.steps)
    own = jax.tree.map(jnp.asarray, own_steps())
    batch = jax.tree.map(np.asarray, sqil.halves(IMITATOR, own, demo, ACTIONS))
    assert batch.reward.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    for name in ("obs", "action", "next_obs"):
        np.testing.assert_array_equal(getattr(batch, name), np.concatenate([getattr(own, name), getattr(demo, name)]))


def test_with_env_reward_own_steps_are_paid_by_the_environment(demos):
    demo = jax.tree.map(lambda x: np.asarray(x)[0, :4], demos.steps)
    batch = sqil.halves(REWARDED, jax.tree.map(jnp.asarray, own_steps()), demo, ACTIONS)
    assert np.asarray(batch.reward).tolist() == [3, -2, 1, 5, 0.5, 0.5, 0.5, 0.5]


def test_a_recording_cut_short_bootstraps_and_a_true_end_does_not_in_either_half():
    place = np.array([2, 2, 6])  # on the way, on the way but cut off, the last step of `termination`
    demo = steps_of(place, np.zeros(3, int), np.array([False, True, False]))
    assert demo.next_action.tolist() == [1, NO_ACTION, 0]
    theirs = sqil.as_transitions(jax.tree.map(jnp.asarray, demo), GAMMA)
    np.testing.assert_allclose(theirs.discount, [GAMMA, GAMMA, 0.0])
    assert np.asarray(theirs.last).tolist() == [False, True, True]
    batch = sqil.halves(IMITATOR, jax.tree.map(jnp.asarray, own_steps()), jax.tree.map(jnp.asarray, demo), ACTIONS)
    np.testing.assert_allclose(batch.discount, [GAMMA, 0, GAMMA, GAMMA, GAMMA, GAMMA, 0.0])


def test_where_ends_are_absorbing_the_pay_of_each_half_goes_on_for_ever():
    demo = jax.tree.map(jnp.asarray, steps_of(np.array([2, 2, 6]), np.zeros(3, int), np.array([False, True, False])))
    batch = sqil.halves(ABSORBED, jax.tree.map(jnp.asarray, own_steps()), demo, ACTIONS)
    # Both actions alike for ever: (reward + .3 log 2) / (1 - .6), of which the step before sees .6; own ends pay 0 from then on.
    leisure = TEMPERATURE * np.log(ACTIONS)
    own_end, their_end = GAMMA * leisure / (1 - GAMMA), GAMMA * (0.5 + leisure) / (1 - GAMMA)
    np.testing.assert_allclose(batch.reward, [3, -2 + own_end, 1, 5, 0.5, 0.5, 0.5 + their_end], rtol=1e-6)
    np.testing.assert_allclose(batch.discount, [GAMMA, 0, GAMMA, GAMMA, GAMMA, GAMMA, 0.0])


def test_the_soft_backup_is_the_targets():
    target = drawn(jax.eval_shape(lambda: dqn.initial_net(LEARNER, ENV.spec, 0, KEY)), 2)
    found = quick_jit(lambda target, obs: sqil.soft_backup(TEMPERATURE)(target, target, obs))(target, see(np.arange(PLACES)))
    np.testing.assert_allclose(found, soft(q_table(target)), rtol=1e-5)


def test_half_of_a_batch_is_demonstrated_and_the_mirror_shows_both_halves(demos, rollout):
    spec = EnvSpec((PLACES,), jnp.float32, ACTIONS, Symmetry(lambda obs: -obs, lambda action: 1 - action))
    config = replace(IMITATOR, demonstrator=None, dqn=replace(LEARNER, mirror=True))
    agent, experience = sqil.make(config, spec, 2, PACE), dqn.make_experience(sqil.half(config), PACE)

    @quick_jit
    def draw(demos: Demos, rollout: Transition, key: jax.Array) -> Transition:
        state = blank_state(agent, demos)._replace(demos=demos, experience=experience.init(jax.tree.map(lambda x: x[0, 0], rollout)))
        return sqil.sample(config, spec, experience, agent.observe(state, rollout), key)

    batch = jax.tree.map(np.asarray, draw(jax.tree.map(lambda x: x[1:], demos), rollout, KEY))
    assert batch.reward.tolist() == [0.0] * 64 + [1.0] * 64
    turned = batch.obs.min(axis=1) < 0
    assert all(0.3 < part.mean() < 0.7 for part in (turned[:64], turned[64:]))


@pytest.mark.parametrize(("count", "gone"), [(0, 0.0), (50, 0.5), (100, 1.0), (1000, 1.0)])
def test_demonstrations_fade_out_of_the_batch(count, gone):
    rows = 400
    own = jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x)[:1], rows, axis=0), own_steps())
    demo = jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x), rows, axis=0), steps_of(np.array([2]), np.zeros(1, int), np.array([False])))
    config = replace(REWARDED, fade_updates=100)
    batch = sqil.fade(config, sqil.halves(config, own, demo, ACTIONS), own, jnp.asarray(count), KEY, ACTIONS)
    batch = jax.tree.map(np.asarray, batch)
    mine = batch.reward == 3
    assert mine[:rows].all() and abs(mine[rows:].mean() - gone) < 0.07
    np.testing.assert_array_equal(batch.reward[~mine], 0.5)
    np.testing.assert_array_equal(batch.obs, np.where(mine[:, None], see(np.array([0])), see(np.array([2]))))


def blank_state(agent: Agent, demos: Demos) -> dqn.State:
    return blank(jax.eval_shape(agent.init, KEY, demos))


# --- Acting --------------------------------------------------------------------------------------------------------------


def q_table(net: ActionNet) -> np.ndarray:
    return np.asarray(quick_jit(lambda net, obs: net(obs))(net, see(np.arange(PLACES))))


def soft(q: np.ndarray) -> np.ndarray:
    """TEMPERATURE * log sum exp(q / TEMPERATURE), which is safe here."""
    return TEMPERATURE * np.log(np.exp(q / TEMPERATURE).sum(-1))


def acting(config: SQILConfig, demos: Demos) -> tuple[np.ndarray, np.ndarray, Any]:
    """Shares of actions by place, as a learner and judged, of random networks; and the state."""
    agent = sqil.make(config, ENV.spec, 2, PACE)
    state = blank_state(agent, demos)
    state = state._replace(net=drawn(state.net, 1), target=drawn(state.target, 2))
    obs = see(np.arange(700 * PLACES) % PLACES)
    both = quick_jit(lambda state, obs, key: (agent.act(state, obs, key), agent.policy(state, obs, key)))
    shares = [np.eye(ACTIONS)[np.asarray(x)].reshape(700, PLACES, ACTIONS).mean(0) for x in both(state, obs, KEY)]
    return shares[0], shares[1], state


def test_it_acts_and_is_judged_by_the_softmax(demos):
    acted, judged, state = acting(IMITATOR, demos)
    for shares, net in ((acted, state.net), (judged, state.target)):
        q = q_table(net)
        np.testing.assert_allclose(shares, np.exp((q - soft(q)[:, None]) / TEMPERATURE), atol=0.06)


def test_it_can_be_judged_greedily_and_explore_beside_the_softmax(demos):
    config = replace(IMITATOR, greedy=True, temperature=1e-4, dqn=replace(LEARNER, epsilon_start=0.5, epsilon_end=0.5))
    acted, judged, state = acting(config, demos)
    np.testing.assert_array_equal(judged, np.eye(ACTIONS)[q_table(state.target).argmax(1)])
    np.testing.assert_allclose(acted, 0.5 / ACTIONS + 0.5 * np.eye(ACTIONS)[q_table(state.net).argmax(1)], atol=0.06)


# --- Learning ------------------------------------------------------------------------------------------------------------


def soft_value_iteration(config: SQILConfig, own: Transition, demo: Demonstration) -> np.ndarray:
    """The Q-values at which the soft Bellman error vanishes on average, over half own steps and half demonstrated ones.

    An absorbing end is spelt out: a further place from which there is no way, where each half is paid what it is paid after its end.
    """
    place, reached = (np.concatenate([x.argmax(-1), y.argmax(-1)]) for x, y in ((own.obs, demo.obs), (own.next_obs, demo.next_obs)))
    action, discount = np.concatenate([own.action, demo.action]), np.concatenate([own.discount, demo.discount])
    reward = np.concatenate([own.reward * config.env_reward, np.full(len(demo.action), config.demo_reward)])
    weight = np.concatenate([np.full(len(x.action), 0.5 / len(x.action)) for x in (own, demo)])
    mass = np.zeros((PLACES, ACTIONS))
    np.add.at(mass, (place, action), weight)
    assert mass.min() > 0
    q, after = np.zeros((PLACES, ACTIONS)), np.zeros((2, ACTIONS))
    for _ in range(200):
        after = config.absorbing * (np.array([[0.0], [config.demo_reward]]) + GAMMA * soft(after)[:, None] * np.ones(ACTIONS))
        beyond = config.absorbing * np.repeat(soft(after), [len(own.action), len(demo.action)])
        total = np.zeros((PLACES, ACTIONS))
        np.add.at(total, (place, action), weight * (reward + GAMMA * np.where(discount > 0, soft(q)[reached], beyond)))
        q = total / mass
    return q


@pytest.mark.parametrize("config", [IMITATOR, REWARDED, ABSORBED], ids=["imitator", "rewarded", "absorbed"])
def test_it_learns_the_soft_values(config, demos, rollout):
    agent = sqil.make(config, ENV.spec, 2, PACE)

    @quick_jit
    def learn(key: jax.Array, demos: Demos, rollout: Transition) -> dqn.State:
        state = agent.observe(agent.init(key, demos), rollout)
        return jax.lax.scan(agent.update, state, jax.random.split(key, UPDATES))[0]._replace(experience=None)

    state = learn(KEY, demos, rollout)
    own = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rollout)
    used = [1] if config.demonstrator == 1 else [0, 1]
    parts = [jax.tree.map(lambda x, k=k: np.asarray(x)[k, : int(demos.count[k])], demos.steps) for k in used]
    pool = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    expected = soft_value_iteration(config, own, pool)
    np.testing.assert_allclose(q_table(dqn.deployed(config.dqn, state)), expected, atol=0.08)
    assert np.asarray(state.demos.count).tolist() == [int(demos.count[k]) for k in used]  # of others it does not even know


def test_the_loop_runs_it_and_one_seed_gives_the_same_bits_twice(demos):
    agent = sqil.make(IMITATOR, ENV.spec, 2, PACE)
    loop = scan.LoopConfig(iterations=20, chunk=20, num_envs=16, prefill_steps=16)
    program = scan.compile_run(ENV, agent, loop)
    with pytest.MonkeyPatch.context() as patch:  # not to compile it twice
        patch.setattr(scan, "compile_run", lambda *_: program)
        first, second = (scan.run(ENV, agent, demos, loop, progress=False) for _ in range(2))
    assert int(first.agent().env_steps) == 16 + 20 * 16 and first.rows[-1]["train/loss"] > 0
    for x, y in zip(jax.tree.leaves(first.carry.agent), jax.tree.leaves(second.carry.agent), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


# --- Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"temperature": 0.0}, "temperature is 0.0, expected a number above 0"),
        ({"absorbing": True, "dqn": replace(LEARNER, gamma=1.0)}, "SQIL's gamma is 1.0, expected less than 1"),
        ({"fade_updates": -1, "env_reward": True}, "fade_updates is -1, expected at least 0"),
        ({"fade_updates": 10}, "fade_updates is 10, but without env_reward nothing would be paid once demonstrations are gone"),
        ({"dqn": replace(LEARNER, batch=7)}, "SQIL's batch is 7, expected an even number"),
        ({"dqn": replace(LEARNER, n_step=3)}, "SQIL's n_step is 3, expected 1"),
        ({"dqn": replace(LEARNER, double=True)}, "SQIL's double is True, expected False"),
        ({"dqn": replace(LEARNER, bc_weight=0.1)}, "SQIL's bc_weight is 0.1, expected 0.0"),
    ],
)
def test_what_it_has_no_use_for_is_refused(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        sqil.make(replace(IMITATOR, **changes), ENV.spec, 2, PACE)


def test_its_default_and_the_papers_are_what_it_accepts():
    sqil.check(SQILConfig())
    sqil.check(sqil.paper())
    assert (sqil.paper().temperature, sqil.paper().absorbing, sqil.paper(IMITATOR).demonstrator) == (1.0, False, 1)


def test_demonstrations_that_do_not_fit_are_refused(demos):
    init = partial(jax.eval_shape, sqil.make(replace(IMITATOR, demonstrator=2), ENV.spec, 2, PACE).init, KEY)
    with pytest.raises(UserError, match="There are no demonstrations"):
        init(None)
    with pytest.raises(UserError, match="Demonstrator 2 is unknown: there are 2, counted from 0"):
        init(demos)
