"""The experiments behind the pages of claims: what they run, and where they judge."""

from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from psiphi import training
from psiphi.agents import bc
from psiphi.envs import coingrid_exact
from psiphi.envs.coingrid import CoinGridConfig
from psiphi.experiments import measures, paper, reproduce
from psiphi.experiments.measures import Unit
from psiphi.experiments.paper import figure_few, figure_sizes, table_1_curve
from psiphi.experiments.runs import Effort
from psiphi.model import Model
from psiphi.training import Trained
from psiphi.types import EnvSpec
from psiphi.worlds import coingrid
from tables import tabular_net

NAMES = ("figure-few", "table-1-curve", "figure-sizes", "figure-roundabout", "figure-3-again", "figure-pays")
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
    rows = {(row["env"], row["method"]): row["config"] for row in reproduce.forecast(NAMES, tmp_path, [0]).rows}
    for shown in figure_few.SHOWN:
        for name in ("psiphi", "itd", "bc"):
            assert (rows["roundabout", f"{name}-{shown}"]["shown"], rows["roundabout", f"{name}-{shown}"]["updates"]) == (shown, 1_200)
    for episodes in table_1_curve.EPISODES:
        assert rows["coingrid", f"bc-{episodes}"]["episodes"] == rows["coingrid-changed", f"itd-{episodes}"]["episodes"] == episodes
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


@pytest.mark.parametrize(("method", "learns", "judged"), [("bc-10", (2, 2, 1), (1, 1, 4)), ("dqn", (1, 1, 4), (1, 1, 4))])
def test_in_the_changed_world_policies_are_judged_as_they_are_and_the_reference_learns_there(method, learns, judged, monkeypatch):
    trained, played = [], []

    def train(run, **_):
        trained.append(run)
        return trained_as(run)

    monkeypatch.setattr(measures, "train", train)
    monkeypatch.setattr(measures, "_returns", lambda run, who, nets: played.append(run) or dict.fromkeys(who, 2.0))
    monkeypatch.setattr(bc, "of_demonstrator", lambda net, k: net)
    (variant,) = [one for one in CURVE.variants if one.moved]
    (learner,) = [one for one in CURVE.methods if one.name == method]
    few = Effort(episodes=2)
    done = measures.imitate(CURVE, Unit(variant, learner, 1000), [learner], few, {"R": 1.0, "G": 4.0})
    assert {run.world.coins for run in trained} == {learns} and {run.world.coins for run in played} == {judged}
    if method != "dqn":
        assert [value for figure, value, _ in done.figures[method] if figure.metric == "normalised_return"] == [2.0, 0.5, 1.25]


def test_a_reward_inferred_in_the_old_world_is_learned_on_in_the_changed_one(monkeypatch):
    runs = []

    def train(run, model=None, **_):
        runs.append((run.algorithm, run.world.coins, model))
        return trained_as(run)

    monkeypatch.setattr(measures, "train", train)
    monkeypatch.setattr(measures, "warn_of_collapse", lambda trained: None)
    monkeypatch.setattr(measures.answers, "model_of", lambda trained: "inferred")
    monkeypatch.setattr(measures, "_returns", lambda run, who, nets: dict.fromkeys(who, 2.0))
    worlds = []
    monkeypatch.setattr(measures, "_own_returns", lambda world, *_: worlds.append(world.coins) or 1.0)
    (variant,) = [one for one in CURVE.variants if one.moved]
    unit = Unit(variant, next(one for one in CURVE.methods if one.name == "itd-10"), 1000)
    sharing = [one.method for one in reproduce.judged(CURVE, unit)]
    done = measures.imitate(CURVE, unit, sharing, Effort(episodes=2), {"R": 1.0, "G": 1.0})
    assert runs == [("itd", (2, 2, 1), None), *[("dqn", (1, 1, 4), "inferred")] * 2] and worlds == [(1, 1, 4)] * 2
    assert set(done.figures) == {"itd-10", "itd-policy-10"}


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
