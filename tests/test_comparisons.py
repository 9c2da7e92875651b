"""PsiPhi-learning beside the baselines: how curves become figures, what is divided by what, and who shares whose training."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from psiphi import report, training
from psiphi.envs.coingrid import CoinGridConfig
from psiphi.errors import UserError
from psiphi.experiments import cells, measures, paper, reproduce, runs
from psiphi.experiments.measures import Done, Unit
from psiphi.experiments.paper import ALL, CHANGED, EXPERIMENTS, Figure, has
from psiphi.experiments.reproduce import Effort
from psiphi.worlds import coingrid

TABLE_1, CURVES = EXPERIMENTS["table-1"], EXPERIMENTS["figure-coingrid"]
METHODS = {method.name: method for method in TABLE_1.methods}


def unit(what, variant, name: str, seed: int = 0) -> Unit:
    (method,) = [method for method in what.methods if method.name == name]
    return Unit(variant, method, seed)


def trained(rows: list, env_steps: int = 100) -> SimpleNamespace:
    """What a training leaves, as far as curves look into it."""
    return SimpleNamespace(rows=rows, env_steps=env_steps, wall_s=1.0, earlier_s=0.0, net=None)


# --- Curves --------------------------------------------------------------------------------------------------------------


def test_area_by_hand():
    # 0.5 up to the first evaluation at 10, a line to 1 at 20, a line to 0 at 40: (5 + 7.5 + 10) / 40.
    assert measures.area([10, 20, 40], [0.5, 1.0, 0.0]) == pytest.approx(22.5 / 40)
    assert measures.area([10], [0.25]) == 0.25


def test_of_evaluations_after_the_same_steps_the_last_counts():
    rows = [{"env_steps": 8, "eval/normalised_return": 0.1}, {"env_steps": 8, "eval/normalised_return": 0.7}, {"env_steps": 16}]
    assert measures.curve_of(rows) == ([8], [0.7])


@pytest.mark.parametrize("method", CURVES.methods, ids=lambda method: method.name)
def test_every_curve_has_the_same_steps_to_learn_from(method):
    for variant in CURVES.variants:
        run = training.completed(runs.run_of(CURVES, variant, method, Effort(steps=5_000)))
        json.dumps(runs.described(run))
        assert run.evaluate_every == 256 and coingrid.weights_of(run.task) == coingrid.weights_of(variant.task or "")
        if method.algorithm == "bc":  # it takes none at all
            assert (run.steps, training.loop_of(run).rollout_length) == (0, 1) and not training.acts(run)
            continue
        assert run.steps == 5_000
        loop = training.loop_of(run)
        assert 5_000 <= loop.env_steps(loop.iterations) < 5_000 + loop.num_envs * loop.rollout_length
        if method.algorithm == "psiphi":
            rounds = run.study + (5_000 - 512) // 8
            assert loop.iterations == rounds and loop.updates_per_rollout == 2
            assert run.agent.itd.sparsity_ramp == run.study / rounds
        assert run.prefill_steps == 512


def test_a_curve_yields_its_figures_and_keeps_itself(monkeypatch):
    rows = [{"env_steps": n, "eval/normalised_return": n / 100} for n in (10, 50, 95, 100)]
    monkeypatch.setattr(measures, "train", lambda *_, **__: trained(rows))
    of_dqn = unit(CURVES, CURVES.variants[1], "dqn")
    done = measures.curve(CURVES, of_dqn, [of_dqn.method], Effort(), {})
    figures = done.figures["dqn"]
    found = {figure: value for figure, value, _ in figures}
    assert set(found) == set(CURVES.figures(of_dqn.method, CURVES.variants[1])) and done.env_steps == 100
    assert found[Figure("steps_to_90", "R-G")] == 95 and found[Figure("final_return", "R-G")] == 1.0
    assert figures[0][2]["curve"] == {"env_steps": [10, 50, 95, 100], "normalised_return": [0.1, 0.5, 0.95, 1.0]}
    monkeypatch.setattr(measures, "train", lambda *_, **__: trained(rows[:1], env_steps=0))
    of_bc = unit(CURVES, CURVES.variants[1], "bc")
    flat = measures.curve(CURVES, of_bc, [of_bc.method], Effort(steps=40), {})
    assert flat.figures["bc"][0][2]["curve"]["env_steps"] == [0, 40]


# --- Table 1 -------------------------------------------------------------------------------------------------------------


def test_returns_are_divided_by_those_of_the_reference_with_the_same_seed(monkeypatch):
    monkeypatch.setattr(measures, "_imitated", lambda what, unit, *_: ([{"R": 1.5, "G": 0.5}], 7, 2.0, 0.0))
    variant = TABLE_1.variants[0]
    of_bc, of_dqn = unit(TABLE_1, variant, "bc"), unit(TABLE_1, variant, "dqn")
    done = measures.imitate(TABLE_1, of_bc, [of_bc.method], Effort(), {"R": 2.0, "G": 1.0})
    found = {figure: value for figure, value, _ in done.figures["bc"]}
    assert found[Figure("return", "R")] == 1.5 and found[Figure("return", ALL)] == 1.0
    assert found[Figure("normalised_return", "R")] == 0.75 and found[Figure("normalised_return", ALL)] == 0.625
    assert set(found) == set(TABLE_1.figures(METHODS["bc"], variant))
    reference = measures.imitate(TABLE_1, of_dqn, [of_dqn.method], Effort(), {})
    assert {figure for figure, *_ in reference.figures["dqn"]} == set(TABLE_1.figures(METHODS["dqn"], variant))
    with pytest.raises(UserError, match="bc is measured by the return of dqn, which there is none of with seed 3"):
        measures.imitate(TABLE_1, of_bc._replace(seed=3), [of_bc.method], Effort(), {})


def test_one_training_is_judged_in_the_changed_world_too(monkeypatch):
    what = EXPERIMENTS["table-1-curve"]
    variant = what.variants[0]
    of_bc = unit(what, variant, "bc-1")
    returns = {"R": 1.0, "G": 2.0, "R, changed": 0.0, "G, changed": 1.0}
    monkeypatch.setattr(measures, "_imitated", lambda what, unit, *_: ([returns], 7, 2.0, 0.0))
    done = measures.imitate(what, of_bc, [of_bc.method], Effort(), {"R": 2.0, "G": 2.0, "R, changed": 1.0, "G, changed": 1.0})
    found = {figure: value for figure, value, _ in done.figures["bc-1"]}
    assert found[Figure("normalised_return", ALL)] == 0.75 and found[Figure("normalised_return", ALL + CHANGED)] == 0.5
    assert set(found) == set(what.figures(of_bc.method, variant))
    run = runs.run_of(what, variant, of_bc.method, Effort())
    assert [(end, moved.world.coins) for end, moved in measures._judged_in(variant, run)] == [("", (2, 2, 1)), (CHANGED, (1, 1, 4))]
    assert [end for end, _ in measures._judged_in(TABLE_1.variants[0], run)] == [""], "there is no second world"


def test_the_reference_comes_first_and_is_always_run():
    wanted = reproduce.units(TABLE_1, [0, 1], ["bc", "itd-policy"], ["coingrid"])
    assert {unit.method.name for unit in wanted} == {"dqn", "itd", "bc"}
    first, rest = reproduce.in_order(TABLE_1, wanted)
    assert [(unit.method.name, unit.seed) for unit in first] == [("dqn", 0), ("dqn", 1)] and len(rest) == 4
    table_2 = EXPERIMENTS["table-2"]
    assert len(reproduce.in_order(table_2, reproduce.units(table_2, [0]))) == 1


def test_table_1_from_trainings_to_the_page(tmp_path, monkeypatch):
    returns = {"dqn": 2.0, "bc": 1.0, "sqil": 0.5}

    def imitated(what, unit, *_):
        if unit.method.name == "itd":
            return [dict.fromkeys("RG", 1.9), dict.fromkeys("RG", 1.8)], 9, 3.0, 0.0
        return [dict.fromkeys("RG", returns[unit.method.name])], 7, 2.0, 0.0

    monkeypatch.setattr(measures, "_imitated", imitated)
    directory = reproduce.reproduce("table-1", tmp_path, [0, 1], methods=["bc", "sqil", "itd"], envs=["coingrid"])
    there = {(row["method"], row["metric"], row["task"], row["seed"]): row["value"] for row in cells.read(directory)}
    assert there["bc", "normalised_return", ALL, 1] == 0.5 and there["itd-policy", "normalised_return", "G", 0] == 0.9
    assert ("dqn", "normalised_return", ALL, 0) not in there
    page = (directory / "README.md").read_text()
    assert "| ITD, and RL on φ·w | 0.95 [0.95, 0.95] | 2 |" in page and "0.77 ± 0.03" in page
    before = len(cells.read(directory))
    reproduce.reproduce("table-1", tmp_path, [0, 1], methods=["bc", "sqil", "itd"], envs=["coingrid"])
    assert len(cells.read(directory)) == before


def test_configs_of_rows_say_what_the_learner_saw():
    variant = TABLE_1.variants[0]
    config = {
        name: reproduce.config_of(TABLE_1, Unit(variant, method, 0), Effort()) for name, method in METHODS.items() if has(variant, method)
    }
    saw = {name: found["saw"] for name, found in config.items()}
    assert saw["dqn"][0] == "none" and saw["dqn"][2] == "of its own task"
    assert saw["bc"] == ["3,000 episodes of each of 2", "none", "none"] and saw["gail"][2] == "none"
    assert saw["itd"][1:] == ["20,000 for each reward, beside ITD's random ones", "what ITD inferred"]
    assert config["sqil-control"]["demonstrators"] == (coingrid.NOTHING,) * 2, "who is imitated there wants nothing"
    assert coingrid.weights_of(coingrid.NOTHING) == (0.0, 0.0, 0.0)
    small = reproduce.config_of(TABLE_1, Unit(variant, METHODS["itd"], 0), Effort(steps=100, episodes=3, updates=5))
    assert (small["learner"]["steps"], small["episodes"], small["updates"]) == (100, 3, 5)


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, "50,048, random and reward-free"),
        ({"agent.cross_policy_on": "pooled"}, "none"),
        ({"agent.cross_policy": 0.0, "agent.sparsity": 0.0}, "none"),
        ({"agent.cross_policy": 0.0}, "50,048, random and reward-free"),
    ],
    ids=str,
)
def test_itd_says_which_steps_it_looked_at(changes, steps):
    run = training.completed(training.changed(training.default_run("itd", "coingrid"), changes))
    assert runs.saw(run) == ["3,000 episodes of each of 2", steps, "none"]


def test_who_is_paid_says_so():
    run = training.completed(training.default_run("psiphi", "coingrid", task="R-G"))
    assert runs.saw(run)[1:] == ["8,192", "of its own task"] and runs.described(run)["task"] == "R-G"


# --- Few-shot ------------------------------------------------------------------------------------------------------------


def test_adapting_reports_every_task_and_shot(monkeypatch):
    table = EXPERIMENTS["table-2"]
    (method,) = [method for method in table.methods if method.how == "adapt"]
    run = runs.run_of(table, table.variants[0], method, Effort(episodes=2))
    assert run.pooled and not run.agent.env_reward and measures.INSIDE["env_reward"] and isinstance(run.world, CoinGridConfig)
    monkeypatch.setattr(training, "pool", lambda demos: demos)
    monkeypatch.setattr(measures, "train", lambda *_, **__: trained([]))
    monkeypatch.setattr(measures, "_adapted", lambda *_: np.array([[0.0, 0.5, 1.0], [1.0, 0.5, 1.0]]))
    done = measures.adapt(table, Unit(table.variants[0], method, 0), [method], Effort(episodes=2), {})
    found = {figure: value for figure, value, _ in done.figures[method.name]}
    assert set(found) == set(table.figures(method, table.variants[0])) and found[Figure("normalised_return", "R-G", 0)] == 0.5


# --- The page ------------------------------------------------------------------------------------------------------------


def test_curves_are_drawn_and_summed_up(tmp_path, monkeypatch):
    def learned(what, unit, *_):
        curve = {"env_steps": [0, 10, 20], "normalised_return": [0.0, 0.5, paper.SOLVED + unit.seed / 20]}
        task = unit.variant.task
        figures = [
            (Figure("auc", task), 0.5, {"curve": curve}),
            (Figure("final_return", task), 0.7, None),
            (Figure("steps_to_90", task), 12_345.0, None),
        ]
        return Done({unit.method.name: figures}, 20, 1.0)

    monkeypatch.setitem(measures.HOW, "curve", learned)
    directory = reproduce.reproduce("figure-coingrid", tmp_path, [0, 1, 2], effort=Effort(steps=2_048), methods=["psiphi", "dqn"])
    page = (directory / "README.md").read_text()
    assert "12,345" in page and (directory / "curves.png").exists() and "<svg" in (directory / "curves.svg").read_text()
    drawing = report.curves_figure(report.load(directory))
    assert len(drawing.axes) == len(CURVES.variants) and all(len(ax.lines) == 2 * (3 + 1) + 1 for ax in drawing.axes)
    assert paper.SOLVED == 0.9 and asdict(Effort(steps=3))["steps"] == 3
