"""Table 1 on Roundabout: the worlds of its demonstrators, what they show, and the rows from small trainings."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiny
from psiphi import report, training
from psiphi.agents import dqn, together
from psiphi.envs import roundabout as world_module
from psiphi.envs.roundabout import RoundaboutConfig
from psiphi.errors import UserError
from psiphi.experiments import cells, measures, paper, reproduce, roundabout
from psiphi.experiments.measures import Done, Unit
from psiphi.experiments.paper.shared import ROUNDABOUT
from psiphi.experiments.reproduce import Effort
from psiphi.experiments.runs import run_of
from psiphi.model import Model
from psiphi.training import Run
from psiphi.types import Demonstration, Demos, EnvSpec, Pace, Transition
from psiphi.worlds.roundabout import record, toward

TABLE_1 = paper.EXPERIMENTS["table-1"]
WORLD = RoundaboutConfig()
STEPS = 85


def drive(env, world, actions):
    """Four episodes by IDM, or by the given actions, where these are not negative."""

    def step(now, given):
        state, obs = now
        action = jnp.where(given < 0, world_module.expert(world, state), given)
        after, reached = env.step(state, action, jax.random.key(0))
        return (after, reached.obs), (obs, action, reached, after.way)

    return jax.vmap(lambda key: jax.lax.scan(step, env.reset(key), actions)[1])(jax.random.split(jax.random.key(1000), 4))


@pytest.fixture(scope="module")
def told():
    """The world that is told the exit when it is called."""
    return jax.jit(lambda k, actions: drive(toward(WORLD, k), WORLD, actions))


IDM = jnp.full(STEPS, -1)


def running(reached):
    """The steps up to the end of each episode."""
    last = np.asarray(reached.last)
    return np.cumsum(last, axis=1) - last == 0


def test_the_world_of_a_demonstrator_is_the_one_with_its_exit(told):
    there = dataclasses.replace(WORLD, ego_exit=WORLD.exits[1])
    obs, action, reached, _ = jax.jit(lambda: drive(world_module.make(there), there, IDM))()
    told_obs, told_action, told_reached, _ = told(1, IDM)
    until_end = running(reached)
    assert until_end.sum() > 4 * 40 and np.asarray(reached.extras["arrived"]).any(axis=1).all()
    np.testing.assert_array_equal(np.asarray(action)[until_end], np.asarray(told_action)[until_end])
    np.testing.assert_allclose(np.asarray(obs)[until_end], np.asarray(told_obs)[until_end], atol=1e-5)
    np.testing.assert_array_equal(np.asarray(reached.discount)[until_end], np.asarray(told_reached.discount)[until_end])
    np.testing.assert_allclose(np.asarray(reached.reward)[until_end], np.asarray(told_reached.reward)[until_end], atol=1e-3)


def test_different_exits_are_different_tasks(told):
    lengths = [running(told(k, IDM)[2]).sum(axis=1).mean() for k in range(2)]
    assert lengths[0] + 10 < lengths[1], "the second exit is farther"


def test_progress_is_paid_once(told):
    """Whatever the ego does, nothing but a failure costs, and all progress together is the way that it has become shorter."""
    _, _, reached, way = told(0, jax.random.randint(jax.random.key(1), (STEPS,), 0, 6))
    failed = np.asarray(reached.extras["crashed"] | reached.extras["off_road"] | reached.extras["wrong_exit"])
    progress = np.asarray(reached.reward) + WORLD.crash_cost * failed - WORLD.exit_reward * np.asarray(reached.extras["arrived"])
    assert progress.min() > -1e-5
    shorter = WORLD.progress_weight * (np.asarray(way)[:, 0] - np.asarray(way)[:, -1])
    np.testing.assert_allclose(progress[:, 1:].sum(axis=1), shorter, atol=1e-3)


def test_demonstrations_are_what_each_driver_saw_and_did():
    demos = record(WORLD, WORLD.exits, 4, 5).demos
    for k in range(2):
        count = int(demos.count[k])
        steps = jax.tree.map(lambda x, k=k, count=count: np.asarray(x[k, :count]), demos.steps)
        ends = np.flatnonzero(steps.discount == 0)
        assert len(ends) == 4 and ends[-1] == count - 1, "each episode ends where its driver arrives"
        inside = np.setdiff1d(np.arange(count - 1), ends)
        np.testing.assert_array_equal(steps.next_obs[inside], steps.obs[inside + 1])
        np.testing.assert_array_equal(steps.next_action[inside], steps.action[inside + 1])
    length = np.diff([int(c) for c in demos.count])[0]
    assert length > 4 * 10, "the second exit is farther"


# --- Rows ----------------------------------------------------------------------------------------------------------------


METHODS = {method.name: method for method in TABLE_1.methods}


def of(name: str, **effort) -> Run:
    """A row's run."""
    return training.completed(run_of(TABLE_1, ROUNDABOUT, METHODS[name], Effort(**effort)))


def test_every_row_of_the_table_has_a_run():
    for method in TABLE_1.methods:
        if paper.has(ROUNDABOUT, method) and method.algorithm != "idm":
            run = of(method.name)
            assert run.env == "roundabout" and (run.demonstrators == WORLD.exits) == (run.demos == training.RECORDED)
            assert len(reproduce.config_of(TABLE_1, Unit(ROUNDABOUT, method, 0), Effort())["saw"]) == 3


def test_what_rows_saw_is_what_the_published_page_says():
    saw = {name: reproduce.config_of(TABLE_1, Unit(ROUNDABOUT, METHODS[name], 0), Effort())["saw"] for name in ("dqn", "itd", "bc", "idm")}
    assert saw["dqn"] == ["none", "500,000", "of its own task"] and saw["bc"] == ["500 episodes of each of 2", "none", "none"]
    assert saw["itd"] == ["500 episodes of each of 2", "200,000 for each reward, which ITD sees", "what ITD inferred"]
    assert saw["idm"] == ["none: it is who demonstrates", "none", "none"]


def test_schedules_are_as_long_as_the_run_and_itd_sees_every_learner(monkeypatch):
    paces = []
    make, learn = roundabout.itd.make, roundabout.dqn.make
    monkeypatch.setattr(roundabout.itd, "make", lambda config, spec, agents, pace: paces.append(pace) or make(config, spec, agents, pace))
    monkeypatch.setattr(roundabout.dqn, "make", lambda config, spec, agents, pace: paces.append(pace) or learn(config, spec, agents, pace))
    run = of("itd", steps=10 * 32)
    obs, action = jnp.zeros((2, 3, *tiny.spec_of(run).obs_shape)), jnp.zeros((2, 3), jnp.int32)
    demos = Demos(Demonstration(obs, action, jnp.ones((2, 3)), obs, action), jnp.array([3, 3]))
    jax.eval_shape(lambda key: roundabout._begin(run, key, demos), jax.random.key(0))
    inference, learners = paces
    assert (learners.updates, inference.updates) == (10 * run.updates_per_rollout, 10 * run.agent.itd_updates) == (30, 20)
    assert inference.num_envs == 2 * learners.num_envs == 64


def test_learners_rollouts_are_remembered_side_by_side():
    rollout = Transition(*(jnp.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)[..., : 5 if i == 0 else 1] for i in range(6)))
    joined = together.side_by_side(rollout)
    assert joined.obs.shape == (3, 8, 5)
    np.testing.assert_array_equal(joined.obs[1, 5], rollout.obs[1, 1, 1])  # time 1 of the second learner's second environment


def test_a_learner_on_inferred_rewards_learns_from_both_halves_of_its_batch():
    """Own steps take action 0 and demonstrated ones action 1, and each is paid what is wanted, whatever the world paid."""
    spec = EnvSpec((3,), jnp.float32, 2)
    config = dqn.DQNConfig(
        torso="mlp", torso_hidden=(8,), head_hidden=(), gamma=0.0, batch=8, replay_size=64, n_step=1, learning_rate=0.05,
        ema=0.1, mirror=False,
    )  # fmt: skip
    obs, nothing = jnp.ones((16, 4, 3)), jnp.zeros((16, 4))
    own = Transition(obs, jnp.zeros((16, 4), jnp.int32), nothing + 9, nothing + 1, obs, nothing > 0)
    step = Demonstration(
        jnp.ones((1, 5, 3)), jnp.ones((1, 5), jnp.int32), jnp.ones((1, 5)), jnp.ones((1, 5, 3)), jnp.ones((1, 5), jnp.int32)
    )
    shown = Demos(step, jnp.array([5]))

    pace = Pace(num_envs=4)

    @jax.jit
    def learned():
        agent, how = dqn.make(config, spec, 0, pace), together.learning(config, spec, pace)
        wanted = lambda steps: jnp.where(steps.action == 1, 2.0, -1.0)  # noqa: E731
        update = lambda state, key: together.on_both(how, state, shown, wanted, key)  # noqa: E731
        start = agent.observe(agent.init(jax.random.key(0), None), own)
        return jax.lax.scan(update, start, jax.random.split(jax.random.key(1), 200))[0].net(jnp.ones((1, 3)))

    np.testing.assert_allclose(learned(), [[-1.0, 2.0]], atol=0.05)


def test_effort_reaches_what_it_names():
    run = of("itd", steps=7, episodes=3)
    assert (run.steps, run.episodes) == (7, 3)
    assert of("bc", updates=2).updates == 2


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: run_of(TABLE_1, ROUNDABOUT, paper.Method("airl", "", how="imitate", algorithm="airl"), Effort()),
            "Roundabout has no row for 'airl', expected one of dqn, itd, bc, sqil, gail.",
        ),
        (lambda: dataclasses.replace(of("bc"), episodes=0), "episodes is 0, expected at least 1."),
        (
            lambda: reproduce.units(TABLE_1, [0], envs=["motorway"]),
            "table-1 has no env motorway; expected some of coingrid, roundabout.",
        ),
    ],
)
def test_a_bad_name_or_number_gets_one_sentence(make, sentence):
    with pytest.raises(UserError) as raised:
        make()
    assert str(raised.value) == sentence


def test_controls_are_of_coingrid_alone_and_idm_of_roundabout():
    by_env = {env: {unit.method.name for unit in reproduce.units(TABLE_1, [0], envs=[env])} for env in ("coingrid", "roundabout")}
    assert by_env["roundabout"] == {"dqn", "itd", "bc", "sqil", "gail", "idm"}
    assert by_env["coingrid"] == {"dqn", "itd", "bc", "sqil", "sqil-paper", "gail", "sqil-control", "gail-control"}


def test_from_returns_to_the_page(tmp_path, monkeypatch):
    returns = {"dqn": 20.0, "bc": 18.0, "itd": 19.0, "idm": 21.0}

    def imitated(what, unit, *_):
        by_exit = dict.fromkeys(WORLD.exits, returns[unit.method.name])
        return [by_exit], 7, 2.0, 0.0

    monkeypatch.setattr(measures, "_imitated", imitated)
    nothing: list[Any] = [None] * 4
    monkeypatch.setattr(roundabout, "together", lambda *_, **__: ([dict.fromkeys(WORLD.exits, 19.0)] * 2, 7, 2.0, 0.0, Model(*nothing)))
    monkeypatch.setattr(roundabout, "idm_returns", lambda *_: dict.fromkeys(WORLD.exits, 21.0))
    directory = reproduce.reproduce("table-1", tmp_path, [1000], methods=["bc", "itd", "idm"], envs=["roundabout"])
    found = {(cell["method"], cell["metric"], cell["task"]): cell["value"] for cell in cells.read(directory)}
    assert ("dqn", "normalised_return", "exr") not in found and found["dqn", "return", "nxr"] == 20.0
    assert found["bc", "normalised_return", "exr"] == 0.9 and found["itd-policy", "normalised_return", paper.ALL] == 0.95
    page = (directory / "README.md").read_text()
    assert "*0.92 ± 0.01*" in page and "*0.77 ± 0.03*" not in page, "the paper's column is Roundabout's"
    assert ROUNDABOUT.story in page and "| IDM, who demonstrates | 1.05 | 1 |" in page
    assert report.load(directory).variants == [ROUNDABOUT]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "itd", "bc", "sqil", "gail", "idm"])
def test_every_row_runs(name, monkeypatch):
    monkeypatch.setattr(measures, "JUDGED", 8)
    unit = Unit(ROUNDABOUT, METHODS[name], 1000)
    few = Effort(steps=4_160 if name == "sqil" else 320, episodes=4, updates=4)
    sharing = [one.method for one in reproduce.judged(TABLE_1, unit)]
    done = measures.HOW[unit.method.how](TABLE_1, unit, sharing, few, dict.fromkeys(WORLD.exits, 20.0))
    assert isinstance(done, Done) and set(done.figures) == ({"itd", "itd-policy"} if name == "itd" else {name})
    for figures in done.figures.values():
        returns = {figure.task: value for figure, value, _ in figures if figure.metric == "return"}
        assert set(returns) == {*WORLD.exits, paper.ALL} and np.isfinite(list(returns.values())).all()
        if name == "idm":
            assert min(returns.values()) > 25, "IDM arrives"
