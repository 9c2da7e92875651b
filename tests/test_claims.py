"""The experiments behind the pages of claims: what they run, and where they judge."""

from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psiphi import training
from psiphi.agents import bc
from psiphi.envs import coingrid_exact
from psiphi.envs.coingrid import CoinGridConfig
from psiphi.experiments import measures, paper, reproduce, roundabout
from psiphi.experiments.measures import Unit
from psiphi.experiments.paper import figure_few, figure_sizes, table_1_curve
from psiphi.experiments.runs import Effort
from psiphi.model import Model
from psiphi.training import Trained
from psiphi.types import Env, EnvSpec, TimeStep
from psiphi.worlds import coingrid, traffic
from tables import tabular_net

NAMES = ("figure-few", "figure-few-coins", "table-1-curve", "figure-sizes", "figure-roundabout", "figure-3-again", "figure-pays")
CURVE = paper.EXPERIMENTS["table-1-curve"]


class NotMade(Trained):
    """What a training left that was not made."""

    net: Any = None  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]


def trained_as(run):
    left: dict[str, Any] = dict.fromkeys(Trained._fields)
    return NotMade(**left | {"run": run, "wall_s": 1.0, "env_steps": 5, "earlier_s": 0.0})


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_a_run_of_its_own(name, tmp_path):
    rows = reproduce.forecast([name], tmp_path, [0]).rows
    assert len(rows) == len(reproduce.units(paper.EXPERIMENTS[name], [0])) > 6
    for env in {row["env"] for row in rows}:
        configs = [repr(row["config"]) for row in rows if row["env"] == env]
        assert len(set(configs)) == len(configs), env


def test_rows_are_what_the_pages_define(tmp_path):
    every = reproduce.forecast(NAMES, tmp_path, [0]).rows
    rows = {(row["env"], row["method"]): row["config"] for row in every if row["experiment"] != CURVE.name}
    curve = {(row["env"], row["method"]): row["config"] for row in every if row["experiment"] == CURVE.name}
    for shown in figure_few.SHOWN:
        for name in ("psiphi", "itd", "bc"):
            assert (rows["roundabout", f"{name}-{shown}"]["shown"], rows["roundabout", f"{name}-{shown}"]["updates"]) == (shown, 1_200)
    for episodes in table_1_curve.EPISODES:
        counts = curve["coingrid", f"itd-counts-{episodes}"]
        assert curve["coingrid", f"bc-{episodes}"]["episodes"] == counts["episodes"] == episodes
        assert counts["learner"] == {"steps": 8_000, "evaluate_every": 0} and counts["agent"]["w_only"]
        assert episodes > 100 or curve["roundabout", f"bc-{episodes}"]["episodes"] == episodes
    assert {env for env, _ in curve} == {"coingrid", "roundabout"} and ("roundabout", "itd-counts-1") not in curve
    for d in figure_sizes.SIZES:
        assert rows["coingrid", f"coingrid-d{d}"]["agent"]["num_cumulants"] == d
        plain = rows["highway-multi-task", f"highway-multi-task-d{d}-plain"]["agent"]["itd"]
        assert (plain["num_cumulants"], plain["l1_weight"], plain["sparsity"]) == (d, 0.0, 0.0)
    alone, watching, recorded = (rows["roundabout", name] for name in ("psiphi-alone", "psiphi", "psiphi-recorded"))
    assert (alone["demos"], watching["demos"], recorded["demos"], recorded["episodes"]) == ("none", "online", "recorded", 100)
    assert (alone["study"], watching["study"], recorded["study"], recorded["demonstrators"]) == (0, 0, 500, ("exr", "nxr"))
    default = training.default_run("psiphi", "roundabout")  # what a user gets is what is published
    assert all(config["agent"] == asdict(default.agent) for config in (alone, watching, recorded)) and default.agent.act_by_newest
    assert (default.demos, default.episodes, default.study) == ("recorded", 100, 500)
    assert all(config["world"]["same_actions"] for config in (alone, watching, recorded, rows["roundabout", "bc-2"]))


def test_an_action_is_foreseen_if_the_imitation_of_who_took_it_takes_it_too(monkeypatch):
    """On recorded coins, by imitations that always do the same: the first's goes on, the second's turns."""
    seen = []

    def as_said(run, **_):
        seen.append((run.episodes, run.demonstrators, run.agent.torso))
        return trained_as(training.completed(run))

    monkeypatch.setattr(measures, "train", as_said)
    monkeypatch.setattr(measures, "imitation_of", lambda trained, k: lambda obs: jnp.full(obs.shape[0], 2 * (k == 0)))
    monkeypatch.setattr(measures, "FORESEEN", 5)
    what = paper.EXPERIMENTS["figure-few-coins"]
    unit = Unit(what.variants[0], next(m for m in what.methods if m.name == "bc-3"), 4)
    done = measures.foresee(what, unit, [unit.method], Effort(), {})
    got = {figure.metric: value for figure, value, _ in done.figures["bc-3"]}
    assert seen == [(3, ("R", "G"), "egocentric")] and done.env_steps == 5
    assert list(got) == [figure.metric for figure in what.figures(unit.method, unit.variant)]
    for name, split, episodes in (("accuracy", "test", 5), ("shown_accuracy", "train", 3)):
        taken = coingrid.record(CoinGridConfig(), ("R", "G"), episodes, 4, split)
        real = np.asarray(taken.episode) >= 0
        assert not real.all()  # some of what is recorded is padding
        right = [int(a) == 2 * (k == 0) for k in range(2) for a, r in zip(taken.demos.steps.action[k], real[k], strict=True) if r]
        np.testing.assert_allclose(got[name], np.mean(right))


OLD, NEW = (2, 2, 1), (1, 1, 4)


@pytest.mark.parametrize(("method", "learns"), [("bc-10", [OLD]), ("sqil-10", [OLD, OLD]), ("dqn", [OLD, OLD, NEW, NEW])])
def test_policies_are_judged_in_the_changed_world_as_they_are_and_the_reference_learns_there(method, learns, monkeypatch):
    trained, played = [], []

    def train(run, **_):
        trained.append(run.world.coins)
        return trained_as(run)

    def returns(run, who, nets):
        played.append(run.world.coins)
        return dict.fromkeys(who, 2.0 if run.world.coins == OLD else 1.0)

    monkeypatch.setattr(measures, "train", train)
    monkeypatch.setattr(measures, "_returns", returns)
    monkeypatch.setattr(bc, "of_demonstrator", lambda net, k: net)
    (learner,) = [one for one in CURVE.methods if one.name == method]
    by = {"R": 1.0, "G": 4.0, "R, changed": 1.0, "G, changed": 2.0}
    done = measures.imitate(CURVE, Unit(CURVE.variants[0], learner, 1000), [learner], Effort(episodes=2), by)
    assert trained == learns and set(played) == {OLD, NEW}
    if method != "dqn":
        shares = [value for figure, value, _ in done.figures[method] if figure.metric == "normalised_return"]
        assert shares == [2.0, 0.5, 1.25, 1.0, 0.5, 0.75]


def test_a_reward_inferred_in_the_old_world_is_learned_on_in_both(monkeypatch):
    nothing: list[Any] = [None] * 4
    runs, inferred = [], Model(*nothing)

    def train(run, model=None, **_):
        runs.append((run.algorithm, run.world.coins, model))
        return trained_as(run)

    monkeypatch.setattr(measures, "train", train)
    monkeypatch.setattr(measures, "warn_of_collapse", lambda trained: None)
    monkeypatch.setattr(measures.answers, "model_of", lambda trained: inferred)
    monkeypatch.setattr(measures, "_returns", lambda run, who, nets: dict.fromkeys(who, 2.0))
    asked = []
    monkeypatch.setattr(measures, "ASKED", {"starc": lambda one, *_: asked.append((one.run.world.coins, one.model)) or []})
    worlds = []
    monkeypatch.setattr(measures, "_own_returns", lambda world, *_: worlds.append(world.coins) or 1.0)
    unit = Unit(CURVE.variants[0], next(one for one in CURVE.methods if one.name == "itd-10"), 1000)
    sharing = [one.method for one in reproduce.judged(CURVE, unit)]
    by: dict[str, float] = dict.fromkeys(("R", "G", "R, changed", "G, changed"), 1.0)
    done = measures.imitate(CURVE, unit, sharing, Effort(episodes=2), by)
    assert runs == [("itd", OLD, None), *[("dqn", OLD, inferred), ("dqn", NEW, inferred)] * 2] and worlds == [OLD, NEW] * 2
    assert set(done.figures) == {"itd-10", "itd-policy-10"} and asked == [(OLD, inferred), (NEW, inferred)]


def test_on_roundabout_the_reward_is_learned_on_anew_from_another_start(monkeypatch):
    nothing: list[Any] = [None] * 4
    runs, inferred = [], Model(*nothing)

    def train(run, model=None, **_):
        runs.append((run.algorithm, run.task, run.world.ego.s, run.demonstrator, model))
        return trained_as(run)

    monkeypatch.setattr(measures, "train", train)
    monkeypatch.setattr(measures, "_returns", lambda run, who, nets: dict.fromkeys(who, 2.0))
    earned = [dict.fromkeys(("exr", "nxr"), x) for x in (1.0, 3.0)]
    monkeypatch.setattr(roundabout, "together", lambda run, *_, **__: (earned, 7, 1.0, 0.0, inferred))
    monkeypatch.setattr(roundabout, "own_returns", lambda run, *_: dict.fromkeys(run.demonstrators, run.world.ego.s))
    distances = lambda asked, *_: [(paper.Figure("starc", who), 0.5, None) for who in asked.demonstrators]  # noqa: E731
    monkeypatch.setitem(measures.ASKED, "starc", distances)
    variant = CURVE.variants[1]
    unit = Unit(variant, next(one for one in CURVE.methods if one.name == "itd-10"), 1000)
    sharing = [one.method for one in reproduce.judged(CURVE, unit)]
    by: dict[str, float] = dict.fromkeys(("exr", "nxr", "exr, changed", "nxr, changed"), 1.0)
    done = measures.imitate(CURVE, unit, sharing, Effort(), by)
    assert runs == [("ppo", "exr", 125.0, 0, inferred), ("ppo", "nxr", 125.0, 1, inferred)]
    found = {name: {(f.metric, f.task): x for f, x, _ in rows} for name, rows in done.figures.items()}
    assert found["itd-10"]["return", "all"] == 1.0 and found["itd-10"]["return", "nxr, changed"] == 2.0
    assert found["itd-policy-10"]["return", "all, changed"] == 125.0
    assert [set(found[one.name]) for one in sharing] == [{(f.metric, f.task) for f in CURVE.figures(one, variant)} for one in sharing]


# --- How far an inferred reward is from the true one ---------------------------------------------------------------------

BOARD, GAMMA = CoinGridConfig(size=5, coins=(1, 1, 1)), 0.9


def true_reward(cells, weights):
    return coingrid_exact.reward_table(BOARD, cells, jnp.asarray(weights))


def shaping(cells):
    """gamma P(s') - P(s) for a random P that is 0 where the board has ended."""
    moves = coingrid_exact.moves(BOARD, cells)
    potential = jax.random.normal(jax.random.key(1), (coingrid_exact.num_masks(BOARD), coingrid_exact.num_poses(BOARD)))
    return GAMMA * moves.discount * potential[moves.mask, moves.pose] - potential[:, :, None]


@pytest.mark.parametrize(
    ("infer", "least", "most"),
    [
        (lambda cells: 3 * true_reward(cells, (1.0, 0.0, 0.0)) + shaping(cells), 0.0, 1e-2),
        (lambda cells: -true_reward(cells, (1.0, 0.0, 0.0)), 0.999, 1.001),
        (lambda cells: true_reward(cells, (0.0, 1.0, 0.0)), 0.3, 0.9),
        (lambda cells: 0 * true_reward(cells, (1.0, 0.0, 0.0)), 0.499, 0.501),
    ],
    ids=["scaled and shaped", "turned round", "another colour", "nothing"],
)
def test_starc_sees_what_is_wanted_and_neither_scale_nor_shaping(infer, least, most, monkeypatch):
    monkeypatch.setattr(coingrid, "_inferred_table", lambda config, model, cells: infer(cells)[..., None])
    net = tabular_net(EnvSpec((2,), jnp.float32, 3), heads=1, ensemble=1, num_cumulants=1)
    model = Model(net, jnp.ones((1, 1)), jnp.ones(1))
    (distance,) = coingrid.starc(BOARD, ("R",), model, jax.random.key(0), gamma=GAMMA, boards=2)
    assert least <= distance <= most


# --- The sampled STARC ---------------------------------------------------------------------------------------------------


def line_world() -> Env:
    """Nine places in a row, left, stay or right; who gets to the last is paid for every step there, and an end is at the first."""

    def reset(key):
        place = jax.random.randint(key, (), 3, 7)
        return place, place[None].astype(jnp.float32)

    def step(state, action, key):
        del key
        place = jnp.clip(state + action - 1, 0, 8)
        end = place == 0
        return place, TimeStep(place[None].astype(jnp.float32), on_the_line(place), jnp.where(end, 0.0, 1.0), end, {})

    return Env(EnvSpec((1,), jnp.float32, 3), reset, step)


def on_the_line(place):
    return jnp.where(place == 8, 1.0, 0.0)


def shaped_on_the_line(obs, next_obs, discount):
    height = lambda place: jnp.sin(2.0 * place)  # noqa: E731
    return 0.95 * discount * height(next_obs) - height(obs)


@pytest.mark.parametrize(
    ("infer", "least", "most"),
    [
        (lambda o, a, n, d: 3 * on_the_line(n[:, 0]) + shaped_on_the_line(o[:, 0], n[:, 0], d), 0.0, 0.05),
        (lambda o, a, n, d: -on_the_line(n[:, 0]), 0.999, 1.001),
        (lambda o, a, n, d: 1.0 * (n[:, 0] == 2.0), 0.6, 1.0),
        (lambda o, a, n, d: 0 * o[:, 0], 0.499, 0.501),
    ],
    ids=["scaled and shaped", "turned round", "the other way", "nothing"],
)
def test_the_sampled_starc_sees_what_is_wanted_and_neither_scale_nor_shaping(infer, least, most):
    distance = traffic.starc(line_world(), lambda state: jnp.asarray(2), infer, jax.random.key(0), 0.95, 20)
    assert least <= float(distance) <= most
