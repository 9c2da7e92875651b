"""Rewards that are linear in what changes in a step: the cumulants, the losses, and what the public interface makes of them."""

import dataclasses
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given as property_given
from hypothesis import strategies as st

import psiphi
import tiny
from psiphi import api, cumulants, training
from psiphi.agents import itd, wants
from psiphi.agents.itd import ITDConfig
from psiphi.api import trained as answers
from psiphi.api.itd import chosen_gamma, offline
from psiphi.api.judging import shown_and_held
from psiphi.demos.record import record
from psiphi.envs.coingrid import CoinGridConfig
from psiphi.errors import UserError
from psiphi.experiments.paper import table_1_curve
from psiphi.nets import Committee
from psiphi.types import Demonstration, EnvSpec, Transition
from psiphi.worlds import coingrid

SMALL = dataclasses.replace(api.OFFLINE, torso_hidden=(32, 32), psi_hidden=(16,), batch=32, cross_batch=64)
SIZE = 5


# --- What changes -------------------------------------------------------------------------------------------------------------


def steps(*rows: tuple[list[float], int, list[float], float]) -> tuple[np.ndarray, ...]:
    obs, action, next_obs, discount = zip(*rows, strict=True)
    return np.array(obs, np.float32), np.array(action, np.int32), np.array(next_obs, np.float32), np.array(discount, np.float32)


TWO = steps(([0.0, 10.0], 0, [2.0, 10.0], 1.0), ([2.0, 30.0], 1, [0.0, 0.0], 0.0))
"""Means 1 and 20, spreads 1 and 10; the second step ends the task."""


def test_what_changes_worked_by_hand():
    changes = cumulants.changes(TWO, levels=(1,), ends="state")
    assert cumulants.names(changes, ("x", "y")) == (
        "change of x", "change of y", "y", "end", "x at the end", "y at the end", "every step",
    )  # fmt: skip
    np.testing.assert_allclose(changes(*map(jnp.asarray, TWO)), [[2, 0, -1, 0, 0, 0, 1], [0, 0, 0, 1, 1, 1, 1]], atol=1e-6)


def test_an_end_can_be_a_flag_and_is_left_out_where_there_is_none():
    flag = cumulants.changes(TWO, levels=(), ends="flag")
    np.testing.assert_allclose(flag(*map(jnp.asarray, TWO)), [[2, 0, 0, 1], [0, 0, 1, 1]], atol=1e-6)
    endless = (*TWO[:3], np.ones(2, np.float32))
    assert cumulants.changes(endless, levels=(), ends="state").size == 3
    assert flag.rate[-1] == 0  # the constant is free


def board(*things: tuple[int, int, int]) -> np.ndarray:
    """A board of 5 x 5 cells: (row, column, channel) of each thing; channel 2 is who acts."""
    cells = np.zeros((5, 5, 3), np.uint8)
    for thing in things:
        cells[thing] = 1
    return cells


def test_boards_are_counted():
    with_coin, on_coin, without = board((0, 0, 0), (1, 0, 2)), board((0, 0, 0), (0, 0, 2)), board((0, 0, 2))
    boards = np.stack([with_coin, on_coin, without])
    assert cumulants.countable(boards) == (((0, 1),), ((0, 1), (2, 1)))  # channel 1 is empty, and one always acts somewhere
    np.testing.assert_array_equal(cumulants.counts(boards, cumulants.countable(boards)), [[1, 0], [1, 1], [0, 0]])
    np.testing.assert_array_equal(cumulants.counts(jnp.asarray(boards), (((2, 1),),)), [[1], [1], [1]])
    columns = (boards[:2], np.zeros(2, np.int32), boards[1:], np.ones(2, np.float32))
    changes = cumulants.changes(columns, levels=(), ends="state", counted=cumulants.countable(boards))
    assert cumulants.names(changes, ()) == ("change of channel 0", "change of channel 0 and channel 2", "every step")
    np.testing.assert_allclose(changes(*map(jnp.asarray, columns)), [[0, 2, 1], [-1, -2, 1]])  # spreads of 0, taken as 1, and a half


@pytest.mark.parametrize(
    "boards",
    [
        np.random.default_rng(0).integers(0, 255, (4, 8, 8, 3)).astype(np.uint8),
        np.random.default_rng(0).normal(size=(4, 5, 5, 3)).astype(np.float32),
        np.random.default_rng(0).integers(0, 20, (200, 8, 8, 2)).astype(np.uint8),
        np.zeros((4, 75), np.uint8),
        np.random.default_rng(0).integers(0, 2, (200, 5, 5, 3)).astype(np.uint8),
    ],
    ids=["a picture", "fractions", "many values", "rows", "a view that moves"],
)
def test_what_is_no_board_is_not_counted(boards):
    assert cumulants.countable(boards) == ()


def collectors(episodes: int, seed: int = 0) -> psiphi.Demonstrations:
    """Two who walk along a row, each to its own kind of coin, which lie at either end by chance."""
    random = np.random.default_rng(seed)
    obs, actions, who = [], [], []
    for wanted, agent in enumerate(("red", "green")):
        for _ in range(episodes):
            sides, at = random.permutation(2), int(random.integers(1, 4))
            left = {kind: (2, 4 * int(sides[kind])) for kind in (0, 1)}
            seen, done = [], []
            for _ in range(5):
                seen.append(board((2, at, 2), *((*place, kind) for kind, place in left.items())))
                toward = 1 if left.get(wanted, (2, 4))[1] > at else 0
                done.append(toward if random.random() > 0.1 else 1 - toward)
                at = int(np.clip(at + (1 if done[-1] else -1), 0, 4))
                left = {kind: place for kind, place in left.items() if place != (2, at)}
            obs.append(np.stack([*seen, board((2, at, 2), *((*place, kind) for kind, place in left.items()))]))
            actions.append(np.array(done))
            who.append(agent)
    return psiphi.Demonstrations.from_lists(obs, actions, who, truncated=[True] * len(who), num_actions=2)


def test_who_collects_what_is_told_from_boards(tmp_path):
    fitted = psiphi.ITD(SMALL, seed=0, updates=400, refits=1).fit(collectors(60), progress=False)
    assert fitted._used.cumulants == "changes" and "change of channel 0" in fitted._trained().names
    before = board((2, 1, 2), (2, 0, 0), (2, 4, 1))[None], board((2, 1, 2), (2, 0, 1), (2, 4, 0))[None]
    after = board((2, 0, 2), (2, 4, 1))[None], board((2, 0, 2), (2, 4, 0))[None]  # the one on the left was taken
    for k, agent in enumerate(("red", "green")):
        reward = fitted.reward(agent, "wants", 0.0)
        own, others = (reward(before[i], [0], after[i], [False])[0] for i in (k, 1 - k))
        assert own > others
    fitted.save(tmp_path / "model")
    again = psiphi.load(tmp_path / "model")
    np.testing.assert_array_equal(
        again.reward("red")(before[0], [0], after[0], [False]), fitted.reward("red")(before[0], [0], after[0], [False])
    )
    default = offline(None, collectors(2))
    assert default.cumulants == "changes"
    with pytest.raises(UserError, match="observations are boards"):
        psiphi.ITD(dataclasses.replace(SMALL, levels=("x",))).fit(collectors(2), progress=False)


def test_features_of_the_users_are_traced_or_called_back():
    def numpys(obs, action, next_obs, terminated):
        return np.column_stack([np.asarray(next_obs)[:, 0] - np.asarray(obs)[:, 0], np.asarray(terminated)])

    def either(obs, action, next_obs, terminated):
        return (next_obs - obs)[:, :1]

    called, traced = cumulants.given(numpys, TWO), cumulants.given(either, TWO)
    assert not called.traceable and traced.traceable
    np.testing.assert_allclose(jax.jit(lambda *x: called(*x))(*TWO), [[2, 0], [-2, 1]])
    np.testing.assert_allclose(jax.jit(lambda *x: traced(*x))(*TWO), [[2], [-2]])


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda o, a, n, t: np.full((len(o), 1), np.nan), "The features of step 0 are not finite numbers"),
        (lambda o, a, n, t: np.zeros((1, 3)), r"The features have shape \(1, 3\), expected \(2, d\)"),
        (lambda o, a, n, t: np.zeros(len(o)), r"The features have shape \(2,\), expected \(2, d\)"),
        (lambda o, a, n, t: o["speed"], "The features cannot be computed for the logged steps: IndexError"),
    ],
)
def test_features_that_are_none_are_refused(function, sentence):
    with pytest.raises(UserError, match=sentence):
        cumulants.given(function, TWO)


# --- The losses ----------------------------------------------------------------------------------------------------------------


def tiny_net(heads: int = 2) -> Any:
    changes = cumulants.changes(TWO, levels=(), ends="state")
    config = dataclasses.replace(SMALL, torso_hidden=(8,), psi_hidden=(8,))
    return config, itd.initial_net(config, EnvSpec((2,), jnp.float32, 3), heads, jax.random.key(0), changes)


def a_batch() -> tuple[Demonstration, Transition]:
    obs, action, next_obs, discount = map(jnp.asarray, TWO)
    demo = jax.tree.map(lambda x: jnp.stack([x, x]), Demonstration(obs, action, discount, next_obs, action))
    return demo, Transition(obs, action, jnp.zeros(2), discount, next_obs, jnp.zeros(2, bool))


def test_cumulants_are_not_learned_and_successor_features_do_not_shape_the_torso():
    config, net = tiny_net()
    only_psi = dataclasses.replace(config, bc_weight=0.0, itd_weight=0.0, sparsity=0.0)
    gradients = jax.jit(jax.grad(lambda n: wants.joint_loss(n, net, *a_batch(), jnp.ones(()), only_psi)[0]))(net)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves((gradients.torso, gradients.given, gradients.value_heads, gradients.w)))
    assert any(np.any(leaf != 0) for leaf in jax.tree.leaves(gradients.psi_heads))
    whole = jax.jit(jax.grad(lambda n: wants.joint_loss(n, net, *a_batch(), jnp.ones(()), config)[0]))(net)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(whole.given)) and np.any(whole.w != 0)


def test_values_that_ran_away_are_called_back():
    """With lapses alone an action that is very unlikely is a lapse, and its gradient is 0."""
    astray = jnp.array([[[[0.0, 50.0, 100.0]]]])
    pull = jax.grad(lambda values: wants.imitation(values, jnp.array([[0]]), jnp.array([-2.2]), 20.0))(astray)[0, 0, 0]
    assert pull[0] < -0.5 and pull[2] > 0.5


def test_a_member_that_went_astray_is_outvoted():
    _, net = tiny_net()
    others = jax.tree.map(lambda x: jnp.stack([x, x, x]), net)
    astray = jax.tree.map(lambda x: x.at[2].multiply(-300.0) if jnp.issubdtype(x.dtype, jnp.floating) else x, others.value_heads)
    committee = Committee(eqx.tree_at(lambda n: (n.value_heads, n.w), others, (astray, others.w.at[2].add(1e4))))
    obs = jnp.asarray(TWO[0])
    np.testing.assert_allclose(committee.task_values(obs, net.w), net.task_values(obs, net.w), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(committee.w, net.w)


def test_a_reward_that_makes_the_values_consistent_costs_nothing():
    """Everybody's own end pays 3; its value, and that of nothing else, is 3."""
    config, net = tiny_net()
    _, cross = a_batch()
    here = net.features(cross.obs)
    end = cumulants.names(net.given, ("x", "y")).index("end")
    ended = jax.tree.map(lambda x: x[1:], cross)  # only the step that ends
    consistent = dataclasses.replace(config)
    net = jax.tree.map(lambda x: x, net)
    import equinox as eqx

    flat = eqx.tree_at(lambda n: (n.value_heads, n.w), net, (jax.tree.map(jnp.zeros_like, net.value_heads), net.w.at[:, end].set(3.0)))
    threes = eqx.tree_at(lambda n: n.value_heads.biases, flat, (*flat.value_heads.biases[:-1], 3.0 + flat.value_heads.biases[-1]))
    policy, next_q = wants._policy(threes, ended.next_obs, consistent.beta)
    phi = threes.cumulants(ended.obs, ended.action, ended.next_obs, ended.discount)
    assert wants.consistency(threes, here[1:], policy, next_q, phi, ended, 0.9) == pytest.approx(0.0, abs=1e-8)
    assert wants.consistency(flat, here[1:], *wants._policy(flat, ended.next_obs, 20.0), phi, ended, 0.9) == pytest.approx(9.0)


# --- From logs: agents that only have costs -------------------------------------------------------------------------------------


class Ground(gymnasium.Env[np.ndarray, Any]):
    """A strip of SIZE x 3 fields; the right side ends it. The middle row is mud. Every step costs 1, mud 3 more. Nothing is ever gained."""

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-10, 10, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.y, self.left = 0, int(self.np_random.integers(3)), 30
        return self.see(), {}

    def see(self) -> np.ndarray:
        return np.array([self.x, self.y, self.y == 1], np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        dx, dy = [(1, 0), (-1, 0), (0, 1), (0, -1)][int(action)]
        self.x, self.y, self.left = max(self.x + dx, 0), min(max(self.y + dy, 0), 2), self.left - 1
        return self.see(), -1.0 - 3 * (self.y == 1), self.x == SIZE, self.left == 0, {}


def walker(avoids_mud: bool, random: np.random.Generator) -> Any:
    def act(obs: np.ndarray) -> int:
        if random.random() < 0.15:
            return int(random.integers(4))
        return 2 if avoids_mud and obs[2] else 0

    return act


@pytest.fixture(scope="module")
def demos() -> psiphi.Demonstrations:
    parts = [record(Ground(), walker(k == 0, np.random.default_rng(k)), 60, agent=who, seed=k) for k, who in enumerate(("clean", "hasty"))]
    return parts[0].merge(parts[1])


@pytest.fixture(scope="module")
def fitted(demos) -> psiphi.ITD:
    return psiphi.ITD(SMALL, seed=0, updates=600, refits=2).fit(demos, progress=False)


def every_step() -> list[tuple[np.ndarray, int, np.ndarray, bool]]:
    world, found = Ground(), []
    world.reset(seed=0)
    for x in range(SIZE):
        for y in range(3):
            for action in range(4):
                world.x, world.y = x, y
                obs = world.see()
                next_obs, _, end, _, _ = world.step(action)
                found.append((obs, action, next_obs, end))
    return found


def columns() -> tuple[np.ndarray, ...]:
    obs, action, next_obs, end = zip(*every_step(), strict=True)
    return np.stack(obs), np.array(action), np.stack(next_obs), np.array(end)


def test_own_actions_are_paid_more_than_random_ones_also_where_there_are_only_costs(fitted, demos):
    obs, action, next_obs, end = columns()
    for who in ("clean", "hasty"):
        for form, caution in (("wants", 0.0), ("wants", 0.3), ("behaviour", 0.0)):
            values = planned(fitted.reward(who, form, caution)(obs, action, next_obs, end))
            own = fitted.policy(who)(obs[::4])
            assert values[np.arange(len(own)), own].mean() > values.mean()


def planned(reward: np.ndarray, gamma: float = 0.9) -> np.ndarray:
    """[states, 4]: value iteration on the strip."""
    obs, _, next_obs, end = columns()
    place = (next_obs[:, 0] * 3 + next_obs[:, 1]).astype(int)
    q = np.zeros(len(reward))
    for _ in range(300):
        value = np.append(q.reshape(-1, 4).max(axis=1), np.zeros(3))
        q = reward + gamma * ~end * value[place]
    return q.reshape(-1, 4)


def test_a_planner_on_the_reward_goes_where_the_agent_goes(fitted):
    """What its plans truly cost from all three starts. Best are 5 steps, and 6 for who leaves the mud; a random walk costs over 100."""
    obs, action, next_obs, end = columns()
    for who, mud_costs, best in (("clean", 3, 5 + 5 + 6), ("hasty", 0, 5 + 5 + 5)):
        plan = planned(fitted.reward(who)(obs, action, next_obs, end)).argmax(axis=1)
        world, cost = Ground(), 0
        for y in range(3):
            world.reset(seed=0)
            world.y, over = y, False
            while not over:
                after, _, ended, late, _ = world.step(plan[world.x * 3 + world.y])
                cost, over = cost + 1 + mud_costs * int(after[2]), ended or late
        assert cost < 1.5 * best, who


def test_a_planner_on_behaviour_is_the_imitation(fitted):
    """The floor: whatever was learned, optimal for it is what the imitation does."""
    obs, action, next_obs, end = columns()
    for who in fitted.agents:
        values = planned(fitted.reward(who, "behaviour")(obs, action, next_obs, end), gamma=fitted._known.gamma)
        assert values.argmax(axis=1).tolist() == fitted.policy(who)(obs[::4]).tolist()
        without = fitted.reward(who, "behaviour")(obs, action).reshape(-1, 4)
        np.testing.assert_array_equal(fitted.reward(who)(obs, action).reshape(-1, 4), without)  # who did not ask gets the floor
        assert without.argmax(axis=1).tolist() == fitted.policy(who)(obs[::4]).tolist() and np.all(without <= 1e-6)


def test_where_the_reward_does_not_explain_behaviour_is_handed_out(fitted):
    """And what is wanted stays within reach, for who asks for it."""
    known = fitted._known
    doubted = psiphi.ITD(SMALL)
    doubted._known = dataclasses.replace(known, forms=("behaviour", "wants"))
    assert [doubted.reward(who).form for who in doubted.agents] == ["behaviour", "wants"]
    assert doubted.reward("clean", caution=0.0).form == "wants" and doubted.reward("clean", "wants").form == "wants"
    step = columns()
    np.testing.assert_array_equal(doubted.reward("clean")(*step), fitted.reward("clean", "behaviour")(*step))
    np.testing.assert_array_equal(doubted.reward("clean", caution=0.0)(*step), fitted.reward("clean", caution=0.0)(*step))


def test_the_table_of_likeness_has_intervals_from_the_refits(fitted):
    preferences = fitted.preferences
    least, most = preferences.likeness_range
    assert (least <= preferences.likeness).all() and (preferences.likeness <= most).all() and least.shape == (2, 2)


def test_mistakes_have_a_rate_of_their_own(fitted):
    for who in fitted.agents:
        lapses = fitted.consistency()[who]["lapses"]
        assert 0.05 < lapses < 0.3 and fitted.policy(who).lapse == lapses
        np.testing.assert_allclose(fitted.policy(who).probabilities(columns()[0]).sum(axis=1), 1, rtol=1e-5)


def test_the_members_of_the_committee_are_averaged(fitted):
    net = fitted._known.model.net
    assert isinstance(net, Committee) and net.nets.w.shape[0] == 2
    np.testing.assert_allclose(fitted._known.model.w, np.mean(net.nets.w, axis=0), rtol=1e-5)
    assert fitted.preferences.spread is not None and fitted.preferences.spread.shape == fitted.preferences.w.shape
    assert fitted.preferences.names[-1] == "every step" and "cumulants that matter less" in str(fitted.preferences)


def test_a_task_in_what_changes_is_learned_exactly_and_acted_on(fitted, demos):
    obs, action, next_obs, end = columns()
    rewards = np.where(end, 1.0, 0.2 * (next_obs[:, 0] - obs[:, 0]))
    fitted.adapt((obs, action, rewards, next_obs, end), "least-squares")
    assert fitted.explained > 0.99
    np.testing.assert_allclose(fitted.cumulants(obs, action, next_obs, end) @ fitted.w, rewards, atol=0.05)
    assert np.mean(fitted.predict(obs[::4]) == 0) > 0.7
    rows = [(obs[i], action[i], rewards[i], next_obs[i], end[i]) for i in range(0, 60, 3)]
    assert np.isfinite(fitted.adapt(rows).w).all()


def test_a_task_that_is_not_explained_is_not_vouched_for(fitted, capsys):
    obs, action, next_obs, end = columns()
    noise = np.random.default_rng(0).normal(size=len(obs))
    fitted.adapt((obs, action, noise, next_obs, end))
    assert fitted.explained < 0.5 and "acting on it is a guess" in capsys.readouterr().err
    fitted.adapt((obs, action, np.ones(len(obs)), next_obs, end))
    assert np.isnan(fitted.explained) and "do not say what the task is" in capsys.readouterr().err


def test_a_saved_fit_answers_as_before(fitted, tmp_path):
    fitted.save(tmp_path)
    again = psiphi.load(tmp_path)
    obs, action, next_obs, end = columns()
    for who in fitted.agents:
        np.testing.assert_array_equal(again.reward(who)(obs, action, next_obs, end), fitted.reward(who)(obs, action, next_obs, end))
        np.testing.assert_array_equal(again.policy(who).probabilities(obs), fitted.policy(who).probabilities(obs))
    assert str(again.verdict) == str(fitted.verdict) and again.preferences.names == fitted.preferences.names


def test_a_newcomer_joins_a_committee_and_changes_nothing(fitted, tmp_path):
    fitted.save(tmp_path)
    known = psiphi.load(tmp_path)
    obs, action, next_obs, end = columns()
    before = known.reward("clean")(obs, action, next_obs, end)
    known.fit_new_demonstrator(record(Ground(), walker(False, np.random.default_rng(9)), 20, agent="late", seed=9), progress=False)
    np.testing.assert_array_equal(known.reward("clean")(obs, action, next_obs, end), before)
    assert np.mean(known.policy("late")(obs[::4]) == 0) > 0.8 and np.isfinite(known.reward("late")(obs, action, next_obs, end)).all()
    assert known.verdict.agents == ("clean", "hasty", "late") and np.isfinite(known.verdict.figures["nll"][2])
    assert known.verdict.of("clean") == fitted.verdict.of("clean"), "what was said of the others stays"
    known.save(tmp_path / "again")
    assert str(psiphi.load(tmp_path / "again").verdict) == str(known.verdict)


def test_the_wrapper_pays_for_the_whole_step(fitted):
    env = fitted.reward("clean").wrap(Ground())
    obs, _ = env.reset(seed=1)
    after, paid, end, _, info = env.step(0)
    assert paid == pytest.approx(fitted.reward("clean")(obs, 0, after, end), rel=1e-4) and info["true_reward"] < 0


@property_given(st.sampled_from([1, 3, 10, 60, 400]))
def test_the_discount_looks_as_far_as_episodes_are_long(length):
    demos = psiphi.Demonstrations.from_lists([np.zeros((length + 1, 1))] * 2, [np.zeros(length, int)] * 2, ["a", "b"], num_actions=2)
    assert 0.9 <= chosen_gamma(demos) <= 0.97
    assert chosen_gamma(demos) == pytest.approx(np.clip(1 - 1 / length, 0.9, 0.97), abs=1e-4)


# --- Features, background, learned cumulants of where a step leads --------------------------------------------------------------

SHORT = 200
"""Updates, where it does not matter how well it is learned."""


def mud(obs: Any, action: Any, next_obs: Any, terminated: Any) -> Any:
    return np.column_stack([np.asarray(next_obs)[:, 2], np.asarray(terminated), np.ones(len(obs))])


def test_given_features_are_linear_inverse_rl_in_them(demos, tmp_path):
    fit = psiphi.ITD(dataclasses.replace(SMALL, cumulants="given"), updates=SHORT, features=mud, refits=1).fit(demos, progress=False)
    assert fit.preferences.w.shape == (2, 3)
    obs, action, next_obs, end = columns()
    expected = mud(obs, action, next_obs, end) @ fit.preferences["clean"]
    np.testing.assert_allclose(fit.reward("clean", caution=0.0)(obs, action, next_obs, end), expected, rtol=1e-4, atol=1e-5)
    fit.save(tmp_path)
    with pytest.raises(UserError, match="load it with psiphi.load"):
        psiphi.load(tmp_path).reward("clean")(obs, action, next_obs, end)
    assert psiphi.load(tmp_path).policy("clean")(obs).shape == (len(obs),)
    again = psiphi.load(tmp_path, features=mud)
    np.testing.assert_allclose(again.reward("clean", caution=0.0)(obs, action, next_obs, end), expected, rtol=1e-4, atol=1e-5)


def test_features_can_be_columns_and_agents_that_act_have_them_too(demos):
    config = psiphi.PsiPhiConfig(itd=dataclasses.replace(SMALL, cumulants="changes", gamma=0.9, replay_size=500), batch=32)
    agent = psiphi.PsiPhi(Ground, demos, config, num_envs=2).learn(200, study=20, progress=False)
    obs, action, next_obs, end = columns()
    assert agent.predict(obs).shape == (len(obs),) and len(agent.w) == len(agent.preferences.names)
    assert np.isfinite(agent.reward("clean")(obs, action, next_obs, end)).all()
    named = psiphi.ITD(dataclasses.replace(SMALL, cumulants="given"), updates=20, features=["2"], refits=1).fit(demos, progress=False)
    assert named.preferences.w.shape == (2, 1)


def test_a_background_is_evaluated_on_and_never_imitated(demos):
    walk = record(Ground(), lambda _: 1, 20, agent="nobody", seed=3)  # who always goes left
    fit = psiphi.ITD(SMALL, updates=600, refits=1).fit(demos, background=walk, progress=False)
    assert fit.agents == ("clean", "hasty") and fit.policy("hasty")(columns()[0]).tolist().count(1) == 0
    again = psiphi.ITD(SMALL, updates=600, refits=1).fit(demos, progress=False)
    assert not np.array_equal(again.preferences.w, fit.preferences.w)


def test_cumulants_of_where_a_step_leads_do_not_ask_what_was_done(demos):
    config = dataclasses.replace(api.LEARNED, cumulants="learned(s')", torso_hidden=(32,), phi_hidden=(16, 16), psi_hidden=(16,))
    fit = psiphi.ITD(config, updates=100, refits=1).fit(demos, progress=False)
    obs, action, next_obs, end = columns()
    phi = fit.cumulants(obs, action, next_obs, end)
    np.testing.assert_array_equal(phi, fit.cumulants(obs, 3 - action, next_obs, end))
    assert fit.reward("clean").form == "behaviour" and fit.reward("clean", "wants")(obs, action, next_obs, end).shape == (len(obs),)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda fit, demos: fit.reward("clean", "wants")(columns()[0], columns()[1]), "expected next_obs"),
        (lambda fit, demos: fit.reward("clean")(*columns()[:2], np.zeros((3, 2))), r"next_obs has shape \(3, 2\), expected \(60, 3\)"),
        (lambda fit, demos: fit.reward("clean", caution=20.0), "caution is 20.0, expected a number from 0 to 10"),
        (lambda fit, demos: fit.cumulants(columns()[0]), "expected action and next_obs beside obs"),
        (lambda fit, demos: fit.adapt((*columns()[:2], np.zeros(60))), "expected next_obs beside observations and actions"),
        (
            lambda fit, demos: psiphi.ITD(SMALL, updates=SHORT).fit(demos, background=street()),
            r"background's observations have shape \(1,\)",
        ),
        (
            lambda fit, demos: psiphi.ITD(SMALL, updates=SHORT).fit(demos, background=NOT_A_WORLD),
            "The background is .*, expected demonstrations",
        ),
        (lambda fit, demos: psiphi.ITD(dataclasses.replace(SMALL, cumulants="given"), updates=SHORT).fit(demos), "there are no features"),
        (lambda fit, demos: psiphi.ITD(SMALL, updates=SHORT, features=mud).fit(demos), "There are features, but cumulants is 'changes'"),
        (
            lambda fit, demos: psiphi.ITD(dataclasses.replace(SMALL, levels=("speed",)), updates=SHORT).fit(demos),
            "There is no column 'speed'",
        ),
        (lambda fit, demos: psiphi.ITD(refits=0), "refits is 0, expected"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(call, sentence, fitted, demos):
    with pytest.raises(UserError, match=sentence):
        call(fitted, demos)


NOT_A_WORLD: Any = dict


def street() -> psiphi.Demonstrations:
    return psiphi.Demonstrations.from_lists([np.zeros((3, 1))], [np.zeros(2, int)], ["a"], num_actions=2)


def test_one_agent_alone_and_agents_all_alike_are_told(demos):
    alone = psiphi.ITD(SMALL, updates=SHORT, refits=1).fit(demos.filter(agents=["clean"]), progress=False)
    assert any(finding.agent is None for finding in alone.verdict.findings)
    same = record(Ground(), walker(True, np.random.default_rng(5)), 40, agent="a", seed=5).merge(
        record(Ground(), walker(True, np.random.default_rng(6)), 40, agent="b", seed=6)
    )
    both = psiphi.ITD(SMALL, updates=SHORT, refits=1).fit(same, progress=False)
    assert "shuffled-ids" in {finding.name for finding in both.verdict.findings}


def test_the_config_of_the_paper_has_none_of_it():
    paper = itd.paper(dataclasses.replace(ITDConfig(), cumulants="changes", lapse=0.1))
    assert paper.cumulants == "learned(s,a)" and paper.lapse == 0.0


def test_groups_are_never_parted_between_what_is_shown_and_held_out():
    obs = [np.zeros((4, 2)) + i for i in range(12)]
    groups = [f"scene {i // 3}" for i in range(12)]
    who = ["ann"] * 10 + ["bob"] * 2  # bob has too few episodes to be held out by himself
    logs = psiphi.Demonstrations.from_lists(obs, [np.array([0, 1, 0])] * 12, who, groups=groups)
    shown, held = shown_and_held(logs, 0.3, 0)
    assert held is not None and held.num_episodes
    scenes = [{part.groups[g] for g in part.group} for part in (shown, held)]  # pyright: ignore[reportOptionalIterable]
    assert not scenes[0] & scenes[1]


# --- Counts where one may act --------------------------------------------------------------------------------------------


COUNTING = training.changed(
    tiny.run("itd", "coingrid"),
    {"agent.cumulants": "changes", "agent.levels": (), "agent.ends": "flag", "agent.through_psi": True, "agent.w_only": True},
)


def test_boards_are_counted_in_a_world_that_one_acts_in():
    run = training.changed(COUNTING, {"world": CoinGridConfig(size=7, coins=(1, 1, 0), max_steps=20), "episodes": 8})
    trained = training.train(run, progress=False)
    assert {"change of channel 0", "change of channel 1", "every step"} <= set(trained.names)
    assert not any(name.startswith("channel") for name in trained.names), "no levels were asked for"
    w = np.asarray(answers.model_of(trained).w)
    assert w.shape == (2, len(trained.names)) and np.isfinite(w).all()


def test_with_w_only_imitation_does_not_touch_psi():
    config = dataclasses.replace(ITDConfig(), cumulants="given", through_psi=True, beta=2.0)
    key = jax.random.key(0)
    psi, w = jax.random.normal(key, (2, 3, 2, 4, 5)), jnp.ones((2, 5))
    blank = jnp.zeros((2, 3))
    step = Demonstration(blank, blank.astype(jnp.int32), blank, blank, blank.astype(jnp.int32))

    def loss(psi, w, config):
        return itd.imitation(config, itd.Predictions(psi, *[psi] * 6), w, step)

    for only in (False, True):
        to_psi, to_w = jax.grad(loss, (0, 1))(psi, w, dataclasses.replace(config, w_only=only))
        assert bool(jnp.any(to_psi != 0)) != only and bool(jnp.any(to_w != 0))
    with pytest.raises(UserError, match="w_only is True and through_psi is False, expected both"):
        itd.check(ITDConfig(w_only=True))


@pytest.mark.slow
def test_three_episodes_tell_what_a_demonstrator_wants():
    """Learned by heart they would tell nothing of other boards; that imitation trains w alone is what makes them enough."""
    changes = table_1_curve.COUNTED | {"episodes": 3, "demonstrators": ("R", "G")}
    run = training.changed(training.default_run("itd", "coingrid", seed=1000), changes)
    model = answers.model_of(training.train(run, progress=False))
    key = jax.random.key(0)
    assert min(coingrid.planned_on_inferred(run.world, ("R", "G"), model, key, boards=16)) > 0.9
    assert max(coingrid.starc(run.world, ("R", "G"), model, key)) < 0.5
