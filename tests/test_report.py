import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psiphi import report, stats
from psiphi.errors import UserError
from psiphi.experiments import cells, paper
from psiphi.experiments.paper import Figure

PNG = b"\x89PNG\r\n"
CONFIG = {
    "itd": {"cross_policy": 10.0, "sparsity": 0.3, "cross_policy_on": "experience"},
    "ego_task": None,
    "episodes": 3000,
    "demonstrators": [[1, 0, 0]] * 2,
}


def cell(experiment: str, method: str, figure: Figure, value: float | None, seed: int = 0, **more) -> cells.Cell:
    shots = {} if figure.shots is None else {"shots": figure.shots}
    return {
        **{"experiment": experiment, "env": "coingrid", "method": method, "seed": seed, "metric": figure.metric, "task": figure.task},
        **{
            "value": value,
            "env_steps": 42048,
            "wall_s": 90.0,
            "train_s": 60.0,
            "config": CONFIG,
            "commit": "abc",
            "command": "psiphi reproduce x",
        },
        **{"versions": {"jax": "1"}, **shots, **more},
    }


def picture() -> report.Picture:
    board = np.zeros((7, 7, 5), int)
    board[1, 2, 0] = board[4, 4, 1] = board[3, 3, 2] = 1
    phi = np.linspace(-1, 1, 50).reshape(2, 5, 5)
    return {
        "board": board.tolist(),
        "phi": phi.tolist(),
        "correlation": [[0.97, 0.02, -0.01], [0.0, -0.95, 0.1]],
        "demonstrators": ["R", "G<script>"],
        "preferences": [[1.0, 0.0], [0.0, -1.0]],
    }


def extra(experiment: paper.Experiment, method: paper.Method, figure: Figure) -> dict[str, Any]:
    """What some cells keep to be drawn."""
    if figure.task == paper.WORST:
        return {"extra": picture()}
    over, of = experiment.axes
    drawn = {"curve": "auc", "predict": "accuracy"}.get(method.how) == figure.metric
    return {"extra": {"curve": {over: [0, 8], of: [0.0, 1.0]}}} if drawn else {}


def all_cells(name: str, seeds: int) -> list[cells.Cell]:
    experiment = paper.EXPERIMENTS[name]
    return [
        cell(name, method.name, figure, 0.1 * seed, seed, env=variant.name, **extra(experiment, method, figure))
        for variant in experiment.variants
        for method in experiment.methods
        for seed in range(seeds)
        for figure in experiment.figures(method, variant)
    ]


def row(page: str, label: str, table: str) -> list[str]:
    """The cells of a table's row."""
    section = page.split(f"### {table}\n")[1]
    (line,) = [line for line in section.split("\n#")[0].splitlines() if line.startswith(f"| {label} |")]
    return [word.strip() for word in line.strip("|").split("|")][1:]


@pytest.mark.parametrize("name", paper.EXPERIMENTS)
def test_every_experiment_is_rendered_whole(tmp_path, name):
    cells.append(tmp_path, all_cells(name, seeds=2))
    page = report.render(tmp_path).read_text(encoding="utf-8")
    linked = re.findall(r"!\[.*?\]\((.*?)\)", page)
    assert linked and all((tmp_path / file).read_bytes().startswith(PNG) for file in linked)
    for method in paper.EXPERIMENTS[name].methods:
        assert f"| {method.label} |" in page
    assert "–" not in "".join(line for line in page.splitlines() if line.startswith("| p")), (
        "a figure of a method that was measured is missing"
    )


def test_a_number_is_the_iqm_with_its_interval_beside_the_papers(tmp_path):
    got = [0.1, 0.5, 0.6, 0.7, 0.9]
    figure = Figure("normalised_return", "R-G", 0)
    cells.append(tmp_path, [cell("table-2", "psiphi", figure, value, seed) for seed, value in enumerate(got)])
    page = report.render(tmp_path).read_text(encoding="utf-8")
    low, high = stats.bootstrap_interval(got)
    assert row(page, "psiphi (default)", "0-shot") == ["–", f"{stats.iqm(got):.2f} [{low:.2f}, {high:.2f}]", "–", "–", "5"]
    assert row(page, f"*{paper.PSIPHI}*", "0-shot") == ["*1.0 ± 0.0*", "*0.2 ± 0.1*", "*0.2 ± 0.1*", "*-0.4 ± 0.2*", ""]


def test_the_exact_planner_stands_beside_the_shots_but_not_beside_the_first_episode(tmp_path):
    exact = [cell("table-2", "exact", Figure("gpi_ceiling", task), 0.98) for task in paper.TASKS]
    cells.append(tmp_path, [*exact, cell("table-2", "psiphi", Figure("normalised_return", "R+G", 0), 1.0)])
    page = report.render(tmp_path).read_text(encoding="utf-8")
    assert row(page, "ceiling: GPI with exact ψ, φ, w", "1-shot") == ["0.98"] * 4 + ["1"]
    assert "ceiling" not in page.split("### 0-shot")[1].split("###")[0]


def test_who_learned_nothing_is_shown_by_what_it_was_judged_by(tmp_path):
    figure = Figure("normalised_return", paper.ALL)
    found = [cell("table-2-highway", "demonstrator", figure, 0.8 + 0.1 * seed, seed, env="highway-multi-task") for seed in range(2)]
    learned = cell("table-2-highway", "psiphi", Figure("normalised_return", paper.ALL, 1), 0.5, env="highway-multi-task")
    cells.append(tmp_path, [*found, learned])
    page = report.render(tmp_path).read_text(encoding="utf-8")
    assert row(page, "Best demonstrator (IDM)", "Share of the DQN's return, mean over the eight goals")[3:4] == ["0.85 [0.80, 0.90]"]


def test_a_value_that_is_not_finite_is_counted_not_averaged(tmp_path):
    figure = Figure("r2", "R")
    cells.append(tmp_path, [cell("table-2", "psiphi", figure, value, seed) for seed, value in enumerate([0.5, None, 0.5])])
    cells.append(tmp_path, [cell("table-2", "paper", figure, None)])
    page = report.render(tmp_path).read_text(encoding="utf-8")
    assert row(page, "psiphi (default)", "What was inferred")[0] == "0.50 [0.50, 0.50] (1 not finite)"
    assert row(page, "paper's losses, ego on R+G", "What was inferred")[0] == "not finite"


def test_what_was_seen_is_said(tmp_path):
    """In the words of the cells' configs, which are a stranger's as far as the page is concerned."""
    words = ["3,000 episodes of each of 2", "42,048, random and reward-free", "none | <b>"]
    cells.append(tmp_path, [cell("table-2", "psiphi", Figure("r2", "R"), 0.5, config={**CONFIG, "saw": words})])
    page = report.render(tmp_path).read_text(encoding="utf-8")
    assert "| psiphi (default) | 3,000 episodes of each of 2 | 42,048, random and reward-free | none \\| " in page and "<b>" not in page


def test_commands_commits_and_seeds_are_said_once_each(tmp_path):
    figure = Figure("accuracy", paper.ALL)
    made = [
        cell("ablation", "default", figure, 0.9, seed, commit=commit) for seed, commit in [(0, "abc"), (1, "abc"), (2, "def"), (7, None)]
    ]
    cells.append(tmp_path, made)
    page = report.render(tmp_path).read_text(encoding="utf-8")
    assert page.count("psiphi reproduce x") == 1 and page.count("- Commit: abc") == 1 and "- Commit: def" in page
    assert "- Commit: no commit" in page and "- Seeds: 0–2, 7" in page


def test_the_page_holds_its_picture_and_cannot_be_scripted(tmp_path):
    report.draw_cumulants(tmp_path / "a.png", tmp_path / "a.html", picture(), "Cumulants <of> a board")
    page = (tmp_path / "a.html").read_text()
    assert "data:image/png;base64,iVBOR" in page and "http" not in page and "<script" not in page
    assert "+0.97" in page and "-0.95" in page and "Cumulants &lt;of&gt; a board" in page


def test_what_cannot_be_reported_is_said_in_a_sentence(tmp_path):
    with pytest.raises(UserError, match="nothing to report"):
        report.render(tmp_path)
    cells.append(tmp_path, [cell("table-9", "psiphi", Figure("r2", "R"), 1.0)])
    with pytest.raises(UserError, match="holds cells of table-9, expected those of one of table-1, table-2"):
        report.render(tmp_path)


def test_reporting_needs_no_jax():
    code = "import sys, psiphi.report; print({'jax', 'equinox', 'optax'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"


def test_rendering_again_changes_nothing(tmp_path: Path):
    cells.append(tmp_path, all_cells("itd-coingrid", seeds=3))
    first = report.render(tmp_path).read_text()
    assert report.render(tmp_path).read_text() == first
    assert not [file for file in tmp_path.iterdir() if file.name.endswith(".draft")]


@pytest.mark.parametrize("name", ["figure-roundabout", "figure-3-again"])
def test_a_legend_lies_inside_of_its_picture_and_below_the_panels(tmp_path: Path, name: str):
    cells.append(tmp_path, all_cells(name, seeds=1))
    drawing = report.curves_figure(report.load(tmp_path))
    drawing.canvas.draw()
    (legend,), panels = drawing.legends, [ax for ax in drawing.axes if ax.get_visible()]
    extent = legend.get_window_extent()
    assert 0 <= extent.x0 < extent.x1 <= drawing.bbox.width
    assert extent.y1 <= min(ax.xaxis.label.get_window_extent().y0 for ax in panels if ax.get_xlabel())
    assert len(panels) == len(paper.EXPERIMENTS[name].variants) == len({ax.get_position().bounds for ax in panels})


def test_steps_to_the_best_are_read_off_the_curves_once_the_best_is_known():
    def run(method: str, seed: int, returns: list[float]) -> list[dict[str, Any]]:
        who = {"env": "highway-multi-task", "method": method, "seed": seed, "task": "t"}
        curve = {"env_steps": [1, 2, 3], "normalised_return": returns}
        return [
            {**who, "metric": "auc", "value": 0.0, "extra": {"curve": curve}},
            {**who, "metric": "final_return", "value": returns[-1]},
        ]

    found = [*run("psiphi", 0, [0.0, 1.0, 1.2]), *run("psiphi", 1, [0.0, 0.9, 1.0]), *run("dqn", 0, [0.0, 0.5, 0.98])]
    steps = [(cell["method"], cell["seed"], cell["metric"], cell["value"]) for cell in report.steps_to_best(found)]
    assert [step[3] for step in steps if step[2] == paper.STEPS_TO_BEST] == [2.0, 3.0, 3.0]  # at .99 = .9 of the mean of 1.2 and 1.0
    assert [step[3] for step in steps if step[2] == report.NEVER + paper.STEPS_TO_BEST] == [0.0, 0.0, 1.0]  # the DQN does not get there
    assert [step[3] for step in steps if step[2] == report.NEVER + "steps_to_90"] == [0.0, 0.0, 0.0]
    poor = report.steps_to_best([*run("psiphi", 0, [-3.0, -2.0, -1.0]), *run("dqn", 0, [0.0, -3.0, -2.0])])
    assert [(cell["metric"], cell["value"]) for cell in poor] == [(report.NEVER + "steps_to_90", 1.0)] * 2, "of less than nothing no share"


def test_what_never_came_is_not_told_as_steps(tmp_path):
    def curve(method: str, seed: int, returns: list[float]) -> list[cells.Cell]:
        drawn, more = {"curve": {"env_steps": [10, 20], "normalised_return": returns}}, {"env": "highway-multi-task", "seed": seed}
        steps = stats.steps_to([10, 20], returns, paper.SOLVED)
        return [
            cell("figure-3", method, Figure("auc", paper.EGO), 0.5, extra=drawn, **more),
            cell("figure-3", method, Figure("final_return", paper.EGO), returns[-1], **more),
            cell("figure-3", method, Figure("steps_to_90", paper.EGO), steps, **more),
        ]

    rows = [("psiphi", 0, [0.95, 1.0]), ("psiphi", 1, [0.0, 0.8]), ("dqn", 0, [0.1, 0.2]), ("dqn", 1, [0.1, 0.3]), ("bc", 0, [1.0, 1.0])]
    found = [one for given in rows for one in curve(*given)]
    task = next(variant.task for variant in paper.EXPERIMENTS["figure-3"].variants if variant.name == "highway-multi-task")
    cells.append(tmp_path, [{**one, "task": task} for one in found])
    page = report.render(tmp_path).read_text(encoding="utf-8")
    assert row(page, "PsiPhi-learning", "While it learns")[2].endswith("(1 of 2 never)")
    assert row(page, "DQN", "While it learns")[2] == "never"
    assert row(page, "BC", "While it learns")[2] == "10"


def test_who_takes_no_steps_is_drawn_as_far_as_the_others_and_counts_have_a_picture(tmp_path):
    what = paper.WITH_EXTRAS["figure-3-fruitbot"]
    (variant,) = [one for one in what.variants if one.name == "fruitbot"]

    def curve(method: str, env_steps: int, steps: list[int], fruits: list[float]) -> cells.Cell:
        drawn = {"curve": {"env_steps": [0, 8], "normalised_return": [0.1, 0.2]}, "also": {"env_steps": steps, "fruits": fruits}}
        figure = Figure("auc", variant.task or "")
        return {**cell(what.name, method, figure, 0.2, env="fruitbot", extra=drawn), "env_steps": env_steps}

    cells.append(tmp_path, [curve("ppo", 100, [0, 100, 100], [1.0, 2.0, 3.0]), curve("bc", 0, [0, 0], [1.0, 4.0])])
    found = report.load(tmp_path)
    by_name = {method.name: method for method in what.methods}
    assert report._series(found, variant, by_name["ppo"], "also", "fruits") == [([0, 100], [1.0, 3.0])]
    assert report._series(found, variant, by_name["bc"], "also", "fruits") == [([0, 100], [4.0, 4.0])]
    page = report.render(tmp_path).read_text(encoding="utf-8")
    assert "](counts.png)" in page and (tmp_path / "counts.png").read_bytes().startswith(PNG)
    assert row(page, "BC", "In an episode, at the end") == ["4.00", "–", "–", "1"]


def test_what_demonstrations_are_worth_is_the_ratio_of_steps_with_the_same_seed(tmp_path):
    def curve(method: str, seed: int, when: int) -> list[cells.Cell]:
        drawn = {"curve": {"env_steps": [0, when, 90], "normalised_return": [0.0, 1.0, 1.0]}}
        more = {"env": "coingrid-R+G", "seed": seed}
        return [
            cell("figure-pays", method, Figure("auc", "R+G"), 0.5, extra=drawn, **more),
            cell("figure-pays", method, Figure("final_return", "R+G"), 1.0, **more),
        ]

    rows = [("psiphi-10", 0, 20), ("psiphi-10", 1, 30), ("psiphi-alone", 0, 40), ("psiphi-alone", 1, 20), ("dqn", 2, 50)]
    cells.append(tmp_path, [one for given in rows for one in curve(*given)])
    page = report.render(tmp_path).read_text(encoding="utf-8")
    ratios = [20 / 40, 30 / 20]
    low, high = stats.bootstrap_interval(ratios)
    table = "What demonstrations are worth"
    assert row(page, "PsiPhi-learning, 10 episodes", table)[0] == f"{stats.iqm(ratios):.2f} [{low:.2f}, {high:.2f}]"
    assert row(page, "PsiPhi-learning, watching nothing", table)[0] == "1.00 [1.00, 1.00]"
    assert row(page, "DQN", table)[0] == "–"  # the control has not this seed


def test_there_are_no_steps_to_the_best_where_nothing_was_returned():
    accuracy = {"env": "roundabout", "method": "bc", "seed": 0, "task": "all", "metric": "accuracy", "value": 0.9}
    assert report.steps_to_best([{**accuracy, "extra": {"curve": {"updates": [1], "accuracy": [0.9]}}}]) == []


def test_returns_are_shares_of_the_rules_with_the_same_seed():
    methods = (
        paper.Method("script", "the script", how="rule", algorithm="script"),
        paper.Method("bc", "BC", how="imitate", algorithm="bc"),
    )
    earned = {
        ("script", 1): (40.0, 20.0),
        ("script", 2): (20.0, 20.0),
        ("bc", 1): (10.0, 15.0),
        ("bc", 2): (10.0, -5.0),
        ("bc", 3): (9.0, 9.0),
    }
    found = [
        {"env": "fruitbot", "method": method, "seed": seed, "task": task, "metric": "return", "value": value}
        for (method, seed), returns in earned.items()
        for task, value in zip(("a", "b"), returns, strict=True)
    ]
    shares = {(cell["method"], cell["seed"], cell["task"]): cell["value"] for cell in report.of_the_rule(found, methods)}
    assert {key: value for key, value in shares.items() if key[0] == "bc"} == {
        ("bc", 1, "a"): 0.25, ("bc", 1, "b"): 0.75, ("bc", 1, paper.ALL): 0.5,
        ("bc", 2, "a"): 0.5, ("bc", 2, "b"): -0.25, ("bc", 2, paper.ALL): 0.125,
    }  # fmt: skip
    assert report.of_the_rule(found, methods[1:]) == []


@pytest.mark.parametrize("earned", [0.0, -3.0])
def test_a_rule_that_earns_nothing_has_no_shares(earned):
    methods = (paper.Method("script", "the script", how="rule", algorithm="script"),)
    found = [{"env": "fruitbot", "method": "script", "seed": 1, "task": "a", "metric": "return", "value": earned}]
    assert report.of_the_rule(found, methods) == []
