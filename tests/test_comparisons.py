"""PsiPhi-learning beside the baselines: how curves become figures, what is divided by what, and who shares whose training."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from psiphi import report
from psiphi.errors import UserError
from psiphi.experiments import baselines, cells, comparisons, models, paper, reproduce
from psiphi.experiments.comparisons import Inferred, Online
from psiphi.experiments.paper import ALL, EXPERIMENTS, Figure, has
from psiphi.experiments.reproduce import Effort

TABLE_1, CURVES = EXPERIMENTS["table-1"], EXPERIMENTS["figure-coingrid"]
METHODS = {method.name: method for method in TABLE_1.methods}


# --- Curves --------------------------------------------------------------------------------------------------------------


def test_area_by_hand():
    # 0.5 up to the first evaluation at 10, a line to 1 at 20, a line to 0 at 40: (5 + 7.5 + 10) / 40.
    assert comparisons.area([10, 20, 40], [0.5, 1.0, 0.0]) == pytest.approx(22.5 / 40)
    assert comparisons.area([10], [0.25]) == 0.25


def test_of_evaluations_after_the_same_steps_the_last_counts():
    rows = [{"env_steps": 8, "eval/normalised_return": 0.1}, {"env_steps": 8, "eval/normalised_return": 0.7}, {"env_steps": 16}]
    assert comparisons.curve_of(rows) == ([8], [0.7])


@pytest.mark.parametrize("method", CURVES.methods, ids=lambda method: method.name)
def test_every_curve_has_the_same_steps_to_learn_from(method):
    for variant in CURVES.variants:
        setting = comparisons.setting_of(CURVES, variant, method, steps=5_000)
        json.dumps(comparisons.described(setting))
        assert setting.steps == 5_000 and setting.evaluate_every == comparisons.EVALUATE_EVERY
        task = models.task(variant.task or "")
        assert task == (setting.setting.ego_task if isinstance(setting, Online) else models.task(setting.task))
        if isinstance(setting, Online):
            rounds = setting.study + (5_000 - comparisons.RANDOM_STEPS) // 8
            assert setting.setting.updates == 2 * rounds and setting.setting.itd.sparsity_ramp == setting.study / rounds
            assert setting.setting.prefill_steps == comparisons.RANDOM_STEPS
        else:
            assert setting.prefill_steps == comparisons.RANDOM_STEPS


def test_a_curve_yields_its_figures_and_keeps_itself(monkeypatch):
    rows = [{"env_steps": n, "eval/normalised_return": n / 100} for n in (10, 50, 95, 100)]
    monkeypatch.setattr(baselines, "train", lambda *_, **__: baselines.Trained(None, 100, 1.0, rows))  # pyright: ignore[reportArgumentType]
    figures, env_steps, _ = comparisons.curve(CURVES.variants[1], baselines.default("dqn"), 0)
    found = {figure: value for figure, value, _ in figures}
    assert set(found) == set(CURVES.figures(CURVES.methods[1], CURVES.variants[1])) and env_steps == 100
    assert found[Figure("steps_to_90", "R-G")] == 95 and found[Figure("final_return", "R-G")] == 1.0
    assert figures[0][2]["curve"] == {"env_steps": [10, 50, 95, 100], "normalised_return": [0.1, 0.5, 0.95, 1.0]}
    flat = replace(baselines.default("bc"), steps=40)
    monkeypatch.setattr(baselines, "train", lambda *_, **__: baselines.Trained(None, 0, 1.0, rows[:1]))  # pyright: ignore[reportArgumentType]
    assert comparisons.curve(CURVES.variants[1], flat, 0)[0][0][2]["curve"]["env_steps"] == [0, 40]


# --- Table 1 -------------------------------------------------------------------------------------------------------------


def test_returns_are_divided_by_those_of_the_reference_with_the_same_seed(monkeypatch):
    monkeypatch.setattr(comparisons, "imitated", lambda *_: ({"R": 1.5, "G": 0.5}, 7, 2.0))
    setting = baselines.default("bc")
    done = comparisons.imitate(TABLE_1, METHODS["bc"], setting, 0, {"R": 2.0, "G": 1.0})
    found = {figure: value for figure, value, _ in done.figures["bc"]}
    assert found[Figure("return", "R")] == 1.5 and found[Figure("return", ALL)] == 1.0
    assert found[Figure("normalised_return", "R")] == 0.75 and found[Figure("normalised_return", ALL)] == 0.625
    assert set(found) == set(TABLE_1.figures(METHODS["bc"], TABLE_1.variants[0]))
    reference = comparisons.imitate(TABLE_1, METHODS["dqn"], baselines.default("dqn"), 0, {})
    assert {figure for figure, *_ in reference.figures["dqn"]} == set(TABLE_1.figures(METHODS["dqn"], TABLE_1.variants[0]))
    with pytest.raises(UserError, match="bc is measured by the return of dqn, which there is none of with seed 3"):
        comparisons.imitate(TABLE_1, METHODS["bc"], setting, 3, {})


def test_the_reference_comes_first_and_is_always_run():
    wanted = reproduce.units(TABLE_1, [0, 1], ["bc", "itd-policy"], ["coingrid"])
    assert {unit.method.name for unit in wanted} == {"dqn", "itd", "bc"}
    first, rest = reproduce.in_order(TABLE_1, wanted)
    assert [(unit.method.name, unit.seed) for unit in first] == [("dqn", 0), ("dqn", 1)] and len(rest) == 4
    table_2 = EXPERIMENTS["table-2"]
    assert len(reproduce.in_order(table_2, reproduce.units(table_2, [0]))) == 1


def test_table_1_from_trainings_to_the_page(tmp_path, monkeypatch):
    returns = {"dqn": 2.0, "bc": 1.0, "sqil": 0.5}
    by_name = lambda setting: returns[baselines.name_of(setting.agent)]  # noqa: E731
    monkeypatch.setattr(comparisons, "imitated", lambda setting, *_: (dict.fromkeys("RG", by_name(setting)), 7, 2.0))
    own = {"itd": dict.fromkeys("RG", 1.9), "itd-policy": dict.fromkeys("RG", 1.8)}
    monkeypatch.setattr(comparisons, "on_inferred", lambda *_: (own, 9, 3.0))
    directory = reproduce.reproduce("table-1", tmp_path, [0, 1], methods=["bc", "sqil", "itd"], envs=["coingrid"])
    there = {(row["method"], row["metric"], row["task"], row["seed"]): row["value"] for row in cells.read(directory)}
    assert there["bc", "normalised_return", ALL, 1] == 0.5 and there["itd-policy", "normalised_return", "G", 0] == 0.9
    assert ("dqn", "normalised_return", ALL, 0) not in there
    page = (directory / "README.md").read_text()
    assert "| ITD, and RL on φ·w | 0.95 [0.95, 0.95] | 2 |" in page and "0.77 ± 0.03" in page
    before = len(cells.read(directory))
    reproduce.reproduce("table-1", tmp_path, [0, 1], methods=["bc", "sqil", "itd"], envs=["coingrid"])
    assert len(cells.read(directory)) == before


def test_settings_of_rows_say_what_the_learner_saw():
    variant = TABLE_1.variants[0]
    saw = {
        name: comparisons.saw(comparisons.setting_of(TABLE_1, variant, method)) for name, method in METHODS.items() if has(variant, method)
    }
    assert saw["dqn"][0] == "none" and saw["dqn"][2] == "of its own task"
    assert saw["bc"] == ["3,000 episodes of each of 2", "none", "none"] and saw["gail"][2] == "none"
    assert saw["itd"][2] == "what ITD inferred"
    assert isinstance(comparisons.setting_of(TABLE_1, variant, METHODS["itd"]), Inferred)
    control = comparisons.setting_of(TABLE_1, variant, METHODS["sqil-control"])
    assert np.all(np.asarray(control.demonstrators) == 0)
    small = comparisons.setting_of(TABLE_1, variant, METHODS["itd"], steps=100, episodes=3, updates=5)
    assert (small.dqn.steps, small.model.episodes, small.model.updates) == (100, 3, 5)


# --- Few-shot ------------------------------------------------------------------------------------------------------------


def test_adapting_reports_every_task_and_shot(monkeypatch):
    table = EXPERIMENTS["table-2"]
    (method,) = [method for method in table.methods if method.how == "adapt"]
    setting = comparisons.setting_of(table, table.variants[0], method)
    assert setting.before.pooled and not setting.before.agent.env_reward and setting.inside.env_reward
    monkeypatch.setattr(baselines, "demonstrations", lambda *_: None)
    monkeypatch.setattr(baselines, "train", lambda *_, **__: baselines.Trained(None, 100, 1.0, []))  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(comparisons, "_adapted", lambda *_: np.array([[0.0, 0.5, 1.0], [1.0, 0.5, 1.0]]))
    figures, *_ = comparisons.adapt(setting, 0)
    found = {figure: value for figure, value, _ in figures}
    assert set(found) == set(table.figures(method, table.variants[0])) and found[Figure("normalised_return", "R-G", 0)] == 0.5


# --- The page ------------------------------------------------------------------------------------------------------------


def test_curves_are_drawn_and_summed_up(tmp_path, monkeypatch):
    def learned(variant, setting, seed):
        curve = {"env_steps": [0, 10, 20], "normalised_return": [0.0, 0.5, 0.5 + seed / 10]}
        task = variant.task
        return (
            [
                (Figure("auc", task), 0.5, {"curve": curve}),
                (Figure("final_return", task), 0.7, None),
                (Figure("steps_to_90", task), 12_345.0, None),
            ],
            20,
            1.0,
        )

    monkeypatch.setattr(comparisons, "curve", learned)
    directory = reproduce.reproduce("figure-coingrid", tmp_path, [0, 1, 2], effort=Effort(steps=2_048), methods=["psiphi", "dqn"])
    page = (directory / "README.md").read_text()
    assert "12,345" in page and (directory / "curves.png").exists() and "<svg" in (directory / "curves.svg").read_text()
    drawing = report.curves_figure(report.load(directory))
    assert len(drawing.axes) == len(CURVES.variants) and all(len(ax.lines) == 2 * (3 + 1) + 1 for ax in drawing.axes)
    assert paper.SOLVED == 0.9 and asdict(Effort(steps=3))["steps"] == 3
