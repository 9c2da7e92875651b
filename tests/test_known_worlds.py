"""The worlds with known truth, and the measures by which inferred rewards are judged there (benchmarks/logs_alone)."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "logs_alone"))

import demonstrate  # pyright: ignore[reportMissingImports]
import measures  # pyright: ignore[reportMissingImports]
import planning  # pyright: ignore[reportMissingImports]
import worlds  # pyright: ignore[reportMissingImports]

OWN = ("items_fixed", "items_random", "costs", "resources", "drive")
REAL = ("treasure", "treasure_convex", "four_room", "resource", "fruit_tree")
CACHE: dict[str, worlds.World] = {}


def world_of(name: str) -> worlds.World:
    if name in REAL:
        pytest.importorskip("mo_gymnasium")
    if name not in CACHE:
        CACHE[name] = worlds.WORLDS[name]()
    return CACHE[name]


def shaped(world: worlds.World, reward: np.ndarray, seed: int = 0) -> np.ndarray:
    potential = np.random.default_rng(seed).normal(size=world.num_states)
    return reward + world.gamma * potential[world.next_state] * ~world.ends - potential[:, None, None]


# --- Worlds --------------------------------------------------------------------------------------------------------------


def test_every_world_is_in_the_list():
    assert set(worlds.WORLDS) == {*OWN, *REAL}


@pytest.mark.parametrize("name", [*OWN, *REAL])
def test_world_is_whole(name):
    world = world_of(name)
    S, A, J = world.next_state.shape
    assert world.name == name
    assert world.obs.shape == (S, len(world.names)) and world.obs.dtype == np.float32
    assert world.phi.shape == (S, A, J, len(world.phi_names))
    assert all(w.shape == (len(world.phi_names),) for w in world.tasks.values()) and len(world.tasks) >= 3
    assert world.next_state.min() >= 0 and world.next_state.max() < S
    np.testing.assert_allclose(world.chance.sum(axis=2), 1)
    possible = (world.chance > 0) & world.live[:, None, None]
    assert world.live[world.next_state[possible & ~world.ends]].all(), "an episode that goes on is in a state in which one can act"
    assert world.live[world.start].all() and world.live[world.test_start].all()
    over = ~world.live
    assert world.ends[over].all() and not world.phi[over].any()
    assert len({w.tobytes() for w in world.tasks.values()}) == len(world.tasks)


@pytest.mark.parametrize("name", [*OWN, *REAL])
def test_agents_want_different_things(name):
    """No agent's optimum is optimal for all the others."""
    world = world_of(name)
    best = {agent: planning.optimal_policy(world, world.reward(agent)) for agent in world.agents}
    for agent in world.agents:
        assert any(planning.score(world, best[other], agent) < 0.95 for other in world.agents if other != agent)


def test_nobody_demonstrates_the_test_layouts():
    world = world_of("items_random")
    seen = demonstrate.demonstrations(world, 30, 0.3).state
    start, test = ({tuple(row) for row in world.obs[which].tolist()} for which in (world.start, world.test_start))
    assert len(start) == len(test) == 24 * 21 and not start & test
    assert not np.isin(seen, world.test_start).any()


def test_items_lie_elsewhere_with_another_seed():
    one, other = worlds.items_random(seed=0, layouts=2), worlds.items_random(seed=1, layouts=2)
    assert not np.array_equal(one.obs[one.start], other.obs[other.start])
    again = worlds.items_random(seed=1, layouts=2)
    np.testing.assert_array_equal(again.obs, other.obs)


@pytest.mark.parametrize("name", REAL)
def test_real_environment_does_what_the_world_says(name):
    """Along random episodes of the real environment, with its own random numbers."""
    world = world_of(name)
    mo_gymnasium = pytest.importorskip("mo_gymnasium")
    ids = {"treasure": "deep-sea-treasure-concave-v0", "treasure_convex": "deep-sea-treasure-v0"}
    ids |= {"four_room": "four-room-v0", "resource": "resource-gathering-v0", "fruit_tree": "fruit-tree-v0"}
    options = {"maze": worlds.thinned_maze(2)} if name == "four_room" else {}
    env = mo_gymnasium.make(ids[name], **options)
    place = {tuple(row): s for s, row in reversed(list(enumerate(world.obs.tolist())))}
    rng, visited = np.random.default_rng(0), set()
    for episode in range(60):
        s = place[tuple(map(float, env.reset(seed=episode)[0]))]
        assert s in world.start
        done = False
        while not done:
            a = int(rng.integers(world.num_actions))
            obs, reward, end, cut, _ = env.step(a)
            following = place[tuple(map(float, obs))]
            d = len(reward)
            same = (world.next_state[s, a] == following) & (world.ends[s, a] == end) & (world.phi[s, a, :, :d] == reward).all(axis=1)
            same &= world.chance[s, a] > 0
            assert same.any()
            assert (world.phi[s, a, same, d:] == -1).all()
            visited.add((s, a))
            s, done = following, end or cut
    assert len(visited) > 60


def test_enemies_kill_one_time_in_ten():
    world = world_of("resource")
    chances = np.unique(world.chance[world.live])
    np.testing.assert_allclose(chances, [0, 0.1, 0.9, 1])


# --- Planning ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*OWN, *REAL])
def test_scores(name):
    """The optimum scores 1, the uniform policy 0; shaping changes nothing, and the opposite is worse than random."""
    world = world_of(name)
    for agent in world.agents[:2]:
        truth = world.reward(agent)
        assert planning.score(world, planning.optimal_policy(world, truth), agent) == pytest.approx(1)
        assert planning.score(world, planning.random_policy(world), agent) == pytest.approx(0)
        assert planning.score(world, planning.optimal_policy(world, shaped(world, truth)), agent) == pytest.approx(1, abs=1e-6)
        assert planning.score(world, planning.optimal_policy(world, -truth), agent) < 0


def test_value_iteration_solves_bellmans_equation():
    world = world_of("drive")
    reward = world.reward("fast")
    q = planning.value_iteration(world, reward)
    right = (world.chance * (reward + world.gamma * ~world.ends * q.max(axis=1)[world.next_state])).sum(axis=2)
    np.testing.assert_allclose(q, right, atol=1e-6)


@pytest.mark.parametrize("name", ["costs", "drive"])
def test_policies_earn_what_they_are_said_to(name):
    """The exact return of the random policy is that of many random episodes."""
    world = world_of(name)
    agent = world.agents[1]
    walk = demonstrate.random_walk(world, 60_000)
    paid = world.reward(agent)[walk.state, walk.action, walk.outcome] * world.gamma**walk.demos.t
    returns = np.add.reduceat(paid, walk.demos.episodes.start[:-1])
    exact = planning.evaluate_policy(world, planning.random_policy(world), world.reward(agent))
    assert returns.mean() == pytest.approx(exact, abs=4 * returns.std() / len(returns) ** 0.5 + 0.02 * abs(exact))


def test_equally_good_actions_are_done_as_often():
    np.testing.assert_allclose(planning.greedy_policy(np.array([[1.0, 1, 0], [0, 2, 1]])), [[0.5, 0.5, 0], [0, 1, 0]])


# --- Demonstrations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["epsilon", "boltzmann"])
@pytest.mark.parametrize("name", OWN)
def test_logs_are_of_the_world(name, kind):
    world = world_of(name)
    log = demonstrate.demonstrations(world, 5, 0.1, kind, seed=1)
    demos = log.demos
    assert demos.agents == world.agents and demos.num_episodes == 5 * len(world.agents) and demos.names == world.names
    np.testing.assert_array_equal(demos.obs, world.obs[log.state])
    np.testing.assert_array_equal(demos.action, log.action)
    np.testing.assert_array_equal(log.next_state, world.next_state[log.state, log.action, log.outcome])
    np.testing.assert_array_equal(log.end, world.ends[log.state, log.action, log.outcome])
    last = demos.episodes.start[1:] - 1
    np.testing.assert_array_equal(demos.episodes.final_obs, world.obs[log.next_state[last]])
    np.testing.assert_array_equal(demos.episodes.terminated, log.end[last])
    inner = np.setdiff1d(np.arange(len(demos)), last)
    np.testing.assert_array_equal(log.next_state[inner], log.state[inner + 1])
    assert demos.lengths.max() <= world.limit
    assert (demos.lengths[~demos.episodes.terminated] == world.limit).all()


def test_demonstrators_err_as_often_as_they_are_told_to():
    """Boltzmann's noise is the share of wrong actions where one can be wrong; epsilon's is that of random ones."""
    world = world_of("items_fixed")
    for kind, expected in (("boltzmann", [0.2] * 4), ("epsilon", None)):
        log = demonstrate.demonstrations(world, 100, 0.2, kind)
        for k, agent in enumerate(world.agents):
            best = planning.optimal_policy(world, world.reward(agent)) > 0
            own = log.demos.agent == agent
            matters = ~best.all(axis=1)[log.state[own]]
            free = best[log.state[own]][matters].mean()
            wrong = (~best[log.state[own], log.action[own]])[matters].mean()
            assert wrong == pytest.approx(expected[k] if expected else 0.2 * (1 - free), abs=0.04)


def test_demonstrators_score_as_expected():
    """Those who never err score 1; the more they err, the less; who errs always is the uniform policy."""
    world = world_of("items_fixed")
    for agent in world.agents:
        scores = [planning.score(world, demonstrate.demonstrator(world, agent, noise), agent) for noise in (0, 0.1, 0.3, 1)]
        assert scores[0] == pytest.approx(1) and scores[-1] == pytest.approx(0)
        assert scores == sorted(scores, reverse=True) and scores[1] > 0.9


def test_shuffled_ids_are_a_permutation():
    world = world_of("costs")
    true, wrong = (demonstrate.demonstrations(world, 10, shuffled=shuffled) for shuffled in (False, True))
    np.testing.assert_array_equal(true.state, wrong.state)
    assert set(wrong.demos.agents) == set(world.agents)
    names = [np.array(log.demos.agents)[log.demos.episodes.agent] for log in (true, wrong)]
    assert sorted(names[0]) == sorted(names[1]) and (names[0] != names[1]).mean() > 0.5


def test_random_walk_does_anything():
    world = world_of("costs")
    walk = demonstrate.random_walk(world, 3_000)
    assert walk.demos.agents == ("anybody",) and len(walk.demos) >= 3_000
    assert np.bincount(walk.action).min() > 500


def test_logs_are_the_same_with_the_same_seed():
    world = world_of("drive")
    one, again, other = (demonstrate.demonstrations(world, 3, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.action, again.action)
    assert not np.array_equal(one.action[:100], other.action[:100])


# --- Measures ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*OWN, *REAL])
def test_starc(name):
    """Neither shaping nor scale matter; the opposite is 1 away, nothing at all a half, and noise something between."""
    world = world_of(name)
    truth = world.reward(world.agents[1])
    assert measures.starc(world, 3 * shaped(world, truth), truth) < 1e-6
    assert measures.starc(world, -truth, truth) == pytest.approx(1)
    nothing = shaped(world, np.zeros_like(truth))
    assert measures.starc(world, nothing, truth) == pytest.approx(0.5)
    assert measures.starc(world, nothing, np.zeros_like(truth)) == 0
    noise = np.random.default_rng(0).normal(size=truth.shape)
    assert 0.3 < measures.starc(world, noise, truth) < 0.95


def test_starc_forgives_what_is_paid_for_outcomes_of_chance():
    """Which of the outcomes is paid does not matter, only their mean: the paper's S'-redistribution."""
    world = world_of("drive")
    truth = world.reward("fast")
    other = truth + np.random.default_rng(0).normal(size=truth.shape)
    other -= (world.chance * (other - truth)).sum(axis=2, keepdims=True)
    assert measures.starc(world, other, truth) < 1e-6


def test_correlations():
    world = world_of("items_fixed")
    log, walk = demonstrate.demonstrations(world, 10), demonstrate.random_walk(world, 2_000)
    truth = world.reward("one")
    np.testing.assert_allclose(measures.correlations(world, 2 * truth + 1, truth, log, "one", walk), 1)
    np.testing.assert_allclose(measures.correlations(world, -truth, truth, log, "one", walk), -1)
    assert np.isnan(measures.correlations(world, np.ones_like(truth), truth, log, "one", walk)).all()
    apart = measures.correlations(world, world.reward("two"), truth, log, "one", walk)
    assert abs(apart.random) < 0.3 and abs(apart.own) < 0.3


def test_count_clone_does_what_was_done():
    world = world_of("items_fixed")
    log = demonstrate.demonstrations(world, 200, 0.1)
    policy = measures.count_clone(world, log, "picky")
    np.testing.assert_allclose(policy.sum(axis=1), 1)
    demonstrator = planning.score(world, demonstrate.demonstrator(world, "picky", 0.1), "picky")
    assert planning.score(world, policy, "picky") == pytest.approx(demonstrator, abs=0.05)
    never = np.setdiff1d(np.flatnonzero(world.live), log.state)
    np.testing.assert_allclose(policy[never], 0.25)


def test_maxent_told_the_features_plans_well():
    """Of graded mistakes, which it models. (Of uniform ones it makes out a larger cost of steps than there is: .92 for "one".)"""
    world = world_of("items_fixed")
    log = demonstrate.demonstrations(world, 30, 0.1, "boltzmann")
    for agent in ("one", "picky"):
        w = measures.maxent(world, log, agent)
        assert planning.score(world, planning.optimal_policy(world, world.reward(w)), agent) > 0.95
        assert w.argmax() == world.tasks[agent].argmax()


def test_maxent_finds_the_weights_of_a_soft_agent():
    """Its own model, in a world of chance: features and dynamics known, the weights come back."""
    world = world_of("drive")
    w = np.array([4.0, 2.0, 1.0, -3.0])
    policy = measures.soft_policy(world, world.reward(w))
    rng = np.random.default_rng(0)
    seen = demonstrate.walked(world, policy, 150, rng)
    log = demonstrate.recorded(world, seen, ["soft"] * len(seen))
    np.testing.assert_allclose(measures.maxent(world, log, "soft"), w, atol=0.35)


# --- Minecart ------------------------------------------------------------------------------------------------------------


def test_minecart():
    """Drivers bring home what they want, and the true reward picks the trips that they make."""
    pytest.importorskip("mo_gymnasium")
    import minecart  # pyright: ignore[reportMissingImports]

    plans = {agent: minecart.best_plan(minecart.true_reward(agent)) for agent in minecart.TASKS}
    assert len(set(plans.values())) >= 4
    for agent in plans:
        assert minecart.score(minecart.true_reward(agent), agent) == pytest.approx(1)
        assert minecart.score(lambda trip, agent=agent: -minecart.true_reward(agent)(trip), agent) < 0
    log = minecart.demonstrations(3, 0.1)
    assert log.demos.agents == tuple(minecart.TASKS) and log.phi.shape == (len(log.demos), 3)
    assert log.demos.episodes.terminated.mean() > 0.7
    assert (log.phi[:, 2] < 0).all() and (log.phi[:, :2].sum(axis=1) > 0).sum() >= 9


# --- What psiphi infers from logs alone ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "episodes", "refits"),
    [
        ("treasure_convex", 40, 1),
        pytest.param("treasure_convex", 40, 3, marks=pytest.mark.slow),
        pytest.param("resource", 100, 3, marks=pytest.mark.slow),
        pytest.param("four_room", 100, 3, marks=pytest.mark.slow),
        pytest.param("costs", 100, 3, marks=pytest.mark.slow),
    ],
)
def test_a_planner_on_what_logs_alone_tell_earns_most_of_the_optimum(name, episodes, refits):
    """All but `costs` are MO-Gymnasium's; in `costs` there is nothing to gain, so a flipped sign would show at once."""
    import psiphi

    world = world_of(name)
    logs = demonstrate.demonstrations(world, episodes, 0.1, seed=1000)
    itd = psiphi.ITD(seed=1000, refits=refits).fit(logs.demos, progress=False)
    S, A, J = world.next_state.shape
    s, a, j = (x.ravel() for x in np.meshgrid(np.arange(S), np.arange(A), np.arange(J), indexing="ij"))
    steps = world.obs[s], a, world.obs[world.next_state[s, a, j]], world.ends[s, a, j]
    scores = []
    for agent in world.agents:
        reward = np.asarray(itd.reward(agent)(*steps), np.float64).reshape(S, A, J)
        scores.append(planning.score(world, planning.optimal_policy(world, reward), agent))
    assert np.mean(scores) > 0.9 and min(scores) > 0.7, scores


@pytest.mark.slow
def test_shuffled_ids_are_warned_of():
    import psiphi

    logs = demonstrate.demonstrations(world_of("costs"), 60, 0.1, seed=1000, shuffled=True)
    itd = psiphi.ITD(seed=1000, refits=1).fit(logs.demos, progress=False)
    assert "shuffled-ids" in {finding.name for finding in itd.verdict.findings}
