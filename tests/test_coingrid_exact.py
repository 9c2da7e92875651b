"""CoinGrid's exact tools: the tables are the environment, the plans are optimal, the demonstrators do what they are said to do."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psiphi.envs import coingrid, coingrid_exact
from psiphi.envs.coingrid import EAST, FORWARD, LEFT, RIGHT, SOUTH, WEST, CoinGridConfig
from psiphi.errors import UserError
from psiphi.types import NO_ACTION, Demonstration

CONFIG = CoinGridConfig()
SMALL = CoinGridConfig(size=5, coins=(1, 1, 0), max_steps=12)
"""A room of 3x3 cells: 4 masks, 36 poses."""
LAYOUTS = jnp.array([[0, 8], [4, 2], [1, 3]])
GAMMA = 0.9


def pose(cell: int, direction: int) -> int:
    return 4 * cell + direction


@pytest.fixture(scope="module")
def recording() -> coingrid_exact.Recording:
    """Two demonstrators, one for each colour, one that wants nothing."""
    weights = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]
    return jax.tree.map(np.asarray, coingrid_exact.record(SMALL, weights, 20, 0.1, GAMMA, jax.random.key(1), chunk=16))


# --- States and tables ---------------------------------------------------------------------------------------------------


def test_states_and_numbers_are_the_same_thing():
    states = coingrid_exact.all_states(SMALL, LAYOUTS[1])
    mask, number = coingrid_exact.to_index(states)
    assert (mask == jnp.arange(4)[:, None]).all()
    assert (number == jnp.arange(36)[None]).all()
    one = coingrid_exact.to_state(SMALL, LAYOUTS[1], 2, pose(5, WEST))
    assert one.alive.tolist() == [False, True]
    assert (int(one.position), int(one.direction)) == (5, WEST)


def test_observations_of_all_states_are_those_of_the_environment():
    boards = coingrid_exact.all_observations(SMALL, LAYOUTS[0])
    assert boards.shape == (4, 36, 5, 5, 5)
    assert (boards[1, pose(4, SOUTH)] == coingrid.observe(SMALL, coingrid_exact.to_state(SMALL, LAYOUTS[0], 1, pose(4, SOUTH)))).all()


def test_reachable_states_have_nobody_standing_on_a_coin():
    possible = coingrid_exact.reachable(SMALL, LAYOUTS[0])
    assert not possible[3, pose(0, 0) : pose(1, 0)].any()
    assert possible[2, pose(0, 0) : pose(1, 0)].all()  # coin 0 is gone
    assert int(possible.sum()) == 36 + 32 + 32 + 28


def test_moves_by_hand():
    table = coingrid_exact.moves(SMALL, LAYOUTS[0])
    here = (3, pose(1, WEST), FORWARD)  # onto the red coin in cell 0
    assert (int(table.mask[here]), int(table.pose[here])) == (2, pose(0, WEST))
    assert table.features[here].tolist() == [1, 0, 0]
    last = (1, pose(1, WEST), FORWARD)  # the same when it is the last one
    assert float(table.discount[last]) == 0
    assert float(table.discount[here]) == 1


# --- Planning ------------------------------------------------------------------------------------------------------------


def test_planned_values_by_hand():
    q = coingrid_exact.q_values(SMALL, jnp.array([2, 8]), jnp.array([1.0, 0.0, 0.0]), GAMMA)
    start = q[3, pose(0, EAST)]  # red two steps ahead
    np.testing.assert_allclose(start, [GAMMA**3, GAMMA**3, GAMMA], rtol=1e-6)
    np.testing.assert_allclose(q[3, pose(1, WEST), LEFT], GAMMA**2, rtol=1e-6)  # turn twice, then step
    np.testing.assert_allclose(q[2], 0, atol=1e-7)  # red is gone: nothing to gain


@pytest.mark.parametrize("config", [SMALL, dataclasses.replace(SMALL, ends_when_empty=False)])
def test_plans_satisfy_bellmans_equation(config):
    reward = jax.random.normal(jax.random.key(0), (3, 4, 36, 3))
    q = coingrid_exact.plan(config, LAYOUTS, reward, GAMMA)
    for i in range(3):
        table = coingrid_exact.moves(config, LAYOUTS[i])
        expected = reward[i] + GAMMA * table.discount * q[i].max(-1)[table.mask, table.pose]
        np.testing.assert_allclose(q[i], expected, atol=2e-5)
        np.testing.assert_allclose(coingrid_exact.plan(config, LAYOUTS[i], reward[i], GAMMA), q[i], atol=2e-5)  # one at a time


def test_the_callers_discount_ends_the_task_there():
    reward = jnp.ones((4, 36, 3))
    q = coingrid_exact.plan(SMALL, LAYOUTS[0], reward, GAMMA, discount=jnp.zeros((4, 36, 3)).at[..., LEFT].set(1.0))
    np.testing.assert_allclose(q[3, :, RIGHT], 1)
    np.testing.assert_allclose(q[3, :, LEFT], 1 / (1 - GAMMA), rtol=1e-5)


def test_five_coins_plan_like_the_full_sized_tables_say():
    layout, weights = jnp.array([3, 7, 11, 20, 24]), jnp.array([1.0, -1.0, 0.5])
    q = coingrid_exact.q_values(CONFIG, layout, weights, GAMMA)
    table = coingrid_exact.moves(CONFIG, layout)
    expected = table.features @ weights + GAMMA * table.discount * q.max(-1)[table.mask, table.pose]
    np.testing.assert_allclose(q, expected, atol=1e-6)


def test_no_policy_beats_the_plan_within_the_episode():
    config = dataclasses.replace(SMALL, max_steps=7)
    start = coingrid.reset_to(config, (2, 3), 0, EAST)
    weights = jnp.array([1.0, 0.4, 0.0])

    def discounted(actions):
        _, features = jax.lax.scan(lambda s, a: coingrid.move(config, s, a), start, actions)
        return (features @ weights * GAMMA ** jnp.arange(7)).sum()

    every = jnp.array(list(itertools.product(range(3), repeat=7)))
    best = jax.jit(jax.vmap(discounted))(every).max()
    q = coingrid_exact.q_values(config, jnp.array([2, 3]), weights, GAMMA)
    # Red (2 steps) first, then turn round twice, come back and down: 7 steps in all are enough for both coins.
    np.testing.assert_allclose(q[3, pose(0, EAST)].max(), best, rtol=1e-6)


def test_gamma_must_be_below_one():
    with pytest.raises(UserError, match="gamma"):
        coingrid_exact.plan(SMALL, LAYOUTS[0], jnp.zeros((4, 36, 3)), 1.0)


# --- Policies and successor features -------------------------------------------------------------------------------------


def test_successor_features_are_consistent_and_linear_in_the_task():
    policy = jax.nn.softmax(jax.random.normal(jax.random.key(2), (3, 4, 36, 3)))
    psi = coingrid_exact.successor_features(SMALL, LAYOUTS, policy, GAMMA)
    for i in range(3):
        table = coingrid_exact.moves(SMALL, LAYOUTS[i])
        value = (policy[i][..., None] * psi[i]).sum(-2)
        np.testing.assert_allclose(psi[i], table.features + GAMMA * table.discount[..., None] * value[table.mask, table.pose], atol=1e-5)


def test_the_optimal_policys_features_times_the_task_are_its_optimal_values():
    weights = jnp.array([1.0, -0.5, 0.0])
    q = coingrid_exact.q_values(SMALL, LAYOUTS, weights, GAMMA)
    psi = coingrid_exact.successor_features(SMALL, LAYOUTS, coingrid_exact.policy_greedy(q), GAMMA)
    np.testing.assert_allclose(psi @ weights, q, atol=1e-5)


def test_any_cumulants_can_be_evaluated():
    policy = jnp.full((4, 36, 3), 1 / 3)
    sums = coingrid_exact.evaluate_table(SMALL, LAYOUTS[0], policy, jnp.ones((4, 36, 3, 2)), GAMMA)
    assert sums.shape == (4, 36, 3, 2)
    np.testing.assert_allclose(sums[0], 1)  # the board is empty: the task ends with the next action, whatever it is
    loop = dataclasses.replace(SMALL, ends_when_empty=False)
    np.testing.assert_allclose(coingrid_exact.evaluate_table(loop, LAYOUTS[0], policy, jnp.ones((4, 36, 3, 2)), GAMMA), 10, rtol=1e-5)


def test_boltzmann_policy_by_hand():
    probs = coingrid_exact.policy_boltzmann(jnp.array([0.0, 0.1, 0.2]), 0.1)
    np.testing.assert_allclose(probs, np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum(), rtol=1e-5)


def test_greedy_episodes_collect_what_the_task_wants():
    starts = jax.jit(jax.vmap(lambda key: coingrid.reset(CONFIG, key)))(jax.random.split(jax.random.key(3), 16))
    evaluate = jax.jit(jax.vmap(lambda start, q: coingrid_exact.evaluate_policy(CONFIG, start, q.argmax(-1))))
    for name, wanted in {"R+G": (2, 2), "R-G": (2, 0), "-R-G": (0, 0)}.items():
        weights = jnp.array(coingrid.TASKS[name])
        features = evaluate(starts, coingrid_exact.q_values(CONFIG, starts.cells, weights, GAMMA))
        as_wanted = (features[:, :2] == np.array(wanted)).all(1)
        # A red coin in a corner behind two green ones is not worth the way: R-G cannot always be had whole.
        assert as_wanted.mean() >= (0.9 if name == "R-G" else 1), name


# --- Demonstrations ------------------------------------------------------------------------------------------------------


def test_a_demonstration_has_no_reward_and_is_padded(recording):
    assert "reward" not in Demonstration._fields
    count = recording.demos.count
    assert recording.demos.steps.obs.shape == (3, count.max(), 5, 5, 5)
    assert count[2] == count.max() > count[0]
    for k in range(3):
        assert (recording.episode[k, : count[k]] >= 0).all()
        assert (recording.episode[k, count[k] :] == -1).all()
        assert set(recording.episode[k, : count[k]]) == set(range(20))


def test_every_step_of_a_demonstration_is_a_step_of_the_environment(recording):
    room = SMALL.size - 2
    see = jax.jit(lambda state: coingrid.observe(SMALL, state))
    move = jax.jit(lambda state, action: coingrid.move(SMALL, state, action))
    for k, i in itertools.product(range(3), range(60)):
        step = jax.tree.map(lambda x, k=k, i=i: x[k, i], recording.demos.steps)
        inner = step.obs[1:-1, 1:-1]
        row, column = np.argwhere(step.obs[..., coingrid.AGENT] == 2)[0]
        front = np.argwhere(step.obs[..., coingrid.AGENT] == 1)[0] - (row, column)
        direction = {(0, 1): 0, (1, 0): 1, (0, -1): 2, (-1, 0): 3}[tuple(front.tolist())]
        alive = inner[..., :2].any((0, 1))
        cells = [int(np.flatnonzero(inner[..., c])[0]) if alive[c] else 0 for c in range(2)]
        state = coingrid.reset_to(SMALL, cells, int((row - 1) * room + column - 1), direction)._replace(alive=jnp.asarray(alive))
        assert (see(state) == step.obs).all()
        after, features = move(state, jnp.int32(step.action))
        assert (see(after) == step.next_obs).all()
        assert (features == recording.features[k, i]).all()


def test_episodes_hang_together_and_end_as_they_should(recording):
    steps = recording.demos.steps
    for k in range(3):
        for episode in range(20):
            rows = np.flatnonzero(recording.episode[k] == episode)
            assert (np.diff(rows) == 1).all()
            assert (steps.next_obs[k, rows[:-1]] == steps.obs[k, rows[1:]]).all()
            assert (steps.next_action[k, rows[:-1]] == steps.action[k, rows[1:]]).all()
            assert (steps.discount[k, rows[:-1]] == 1).all()
            if steps.discount[k, rows[-1]] == 0:
                assert steps.next_action[k, rows[-1]] != NO_ACTION  # the end was seen: it is not a cut
            else:
                assert len(rows) == SMALL.max_steps
                assert steps.next_action[k, rows[-1]] == NO_ACTION


def test_demonstrators_leave_with_the_last_coin_they_want(recording):
    steps = recording.demos.steps
    for k in range(2):
        gone = ~steps.next_obs[k, : recording.demos.count[k], ..., k].any((1, 2))
        assert (gone == (steps.discount[k, : recording.demos.count[k]] == 0)).all()
        assert 10 <= gone.sum() <= 20  # most of the episodes reach their goal in time
    wants_nothing = recording.demos.count[2]
    empty = ~steps.next_obs[2, :wants_nothing, ..., :3].any((1, 2, 3))
    assert ((steps.discount[2, :wants_nothing] == 0) == empty).all()
    assert recording.features[2, :wants_nothing, 0].sum() <= 2


def test_wanderers_stay_to_the_time_limit():
    config = dataclasses.replace(SMALL, ends_when_empty=False)
    stay = coingrid_exact.record(config, [[1.0, 0.0, 0.0]], 16, 0.1, GAMMA, jax.random.key(1), wander=True, chunk=16)
    assert stay.demos.count.tolist() == [16 * config.max_steps]
    assert (stay.demos.steps.discount == 1).all()


def test_actions_follow_the_stated_probabilities(recording):
    for k in range(2):
        count = recording.demos.count[k]
        probs, action = recording.probs[k, :count], recording.demos.steps.action[k, :count]
        np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-5)
        hits, expected = (action == probs.argmax(-1)).sum(), probs.max(-1)
        assert abs(hits - expected.sum()) < 4 * np.sqrt((expected * (1 - expected)).sum()) + 1


def test_one_key_one_recording_and_episodes_do_not_depend_on_their_number(recording):
    weights = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]
    fewer = coingrid_exact.record(SMALL, weights, 5, 0.1, GAMMA, jax.random.key(1), chunk=16)
    other = coingrid_exact.record(SMALL, weights, 5, 0.1, GAMMA, jax.random.key(2), chunk=16)
    for k in range(3):
        count = int(fewer.demos.count[k])
        assert (fewer.demos.steps.obs[k, :count] == recording.demos.steps.obs[k, :count]).all()
        assert (fewer.demos.steps.action[k, :count] == recording.demos.steps.action[k, :count]).all()
        assert recording.episode[k, count] == 5
    assert (other.demos.steps.obs[0, 0] != fewer.demos.steps.obs[0, 0]).any()
    assert (fewer.demos.steps.obs[0, 0] != fewer.demos.steps.obs[1, 0]).any()  # each agent has episodes of its own


@pytest.mark.parametrize(("weights", "episodes", "temperature"), [([[1.0, 0.0]], 1, 0.1), ([[1.0, 0, 0]], 0, 0.1), ([[1.0, 0, 0]], 1, 0.0)])
def test_impossible_demonstrators_are_refused(weights, episodes, temperature):
    with pytest.raises(UserError):
        coingrid_exact.record(SMALL, weights, episodes, temperature, GAMMA, jax.random.key(0))
