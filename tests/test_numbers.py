"""The numbers in the README and in docs/ are those of the files under results/, and every table of numbers is one that a script writes."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from psiphi import stats
from psiphi.errors import UserError
from psiphi.experiments import cells, paper, reproduce
from psiphi.experiments.measures import Unit
from psiphi.experiments.runs import Effort

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("docs_published", ROOT / "docs" / "published.py")
assert _spec is not None and _spec.loader is not None
published = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(published)

PAGES = [page for page in published.PAGES if "<!-- numbers: " in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_are_what_the_cells_say(page):
    text = page.read_text(encoding="utf-8")
    assert published.written(text) == text, f"{page.name} is out of date; python docs/published.py writes it anew"


def test_every_table_is_closed():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("<!-- numbers: ") == text.count("<!-- /numbers -->") == len(published.BLOCK.findall(text))


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "results.md"], ids=lambda page: page.stem)
def test_no_measured_number_stands_outside_of_a_written_table(page):
    prose = published.BLOCK.sub("", page.read_text(encoding="utf-8"))
    prose = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", prose, flags=re.DOTALL)
    prose = prose.replace("Python 3.11", "").replace("Apache-2.0", "")
    assert not re.findall(r"(?<![\d.])-?\d*\.\d+", prose)


def values(name, **wanted):
    """Straight out of the file: a line per training, with its figures."""
    lines = (ROOT / "results" / name / "cells.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [training | figure for training in map(json.loads, lines) for figure in training["figures"]]
    return [row["value"] for row in rows if all(row.get(key) == value for key, value in wanted.items())]


PARKED = {"env": "highway-adversarial-crowd", "method": "psiphi-crowd", "metric": "auc"}


@pytest.mark.parametrize(
    ("row", "experiment", "wanted", "digits"),
    [
        ("Own task, as demonstrated", "figure-coingrid", {"env": "coingrid-aligned", "method": "psiphi", "metric": "steps_to_90"}, 0),
        ("Driving on Highway, others are parked", "figure-3-again", PARKED, 2),
        ("Imitation on Roundabout", "table-1", {"env": "roundabout", "method": "itd", "metric": "normalised_return", "task": "all"}, 2),
        ("Next actions on Roundabout", "figure-imitation", {"method": "psiphi", "metric": "accuracy"}, 3),
    ],
)
def test_the_headline_is_the_interquartile_mean_of_the_raw_values(row, experiment, wanted, digits):
    (line,) = [line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if f"[{row}" in line]
    shown = line.split("|")[2].split()[0]
    assert shown == f"{stats.iqm(values(experiment, **wanted)):,.{digits}f}"


def test_a_number_that_was_changed_by_hand_is_noticed():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert published.written(text.replace("939 [768", "839 [768")) == text


@pytest.mark.parametrize(
    ("mine", "other", "fewer", "expected"),
    [
        ((0.9, 0.8, 1.0), (0.5, 0.4, 0.6), False, "ahead"),
        ((0.9, 0.8, 1.0), (0.5, 0.4, 0.8), False, "tie"),
        ((0.5, 0.4, 0.6), (0.9, 0.8, 1.0), False, "behind"),
        ((0.5, 0.4, 0.6), (0.9, 0.8, 1.0), True, "ahead"),
        ((1.0, 1.0, 1.001), (1.003, 1.002, 1.004), False, "tie"),
    ],
)
def test_who_is_ahead_is_decided_by_the_printed_intervals(mine, other, fewer, expected):
    assert published.outcome(*(published.Estimate(*three, 5, 0) for three in (mine, other)), fewer=fewer) == expected


# --- Published results can be continued ----------------------------------------------------------------------------------

EFFORTS = {"ablation": Effort(updates=2_000), "figure-3-fruitbot / fruitbot-mild": Effort(steps=200_000)}
"""What the command in a result's README asks for besides the experiment's own: of a result, or of one world in it."""
OLDER = {("figure-sensitivity", "highway-multi-task")}
"""Cells of before rewards had an offset on Highway: they are kept as they are, and new ones are refused beside them."""
PUBLISHED = {
    name: what for name, what in {**paper.EXPERIMENTS, **paper.WITH_EXTRAS}.items() if (ROOT / "results" / name / "cells.jsonl").exists()
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_cells_are_what_their_experiment_asks_for_today(name):
    what, directory = PUBLISHED[name], ROOT / "results" / name
    there = cells.read(directory)
    known = {(cell["env"], cell["method"]) for cell in there}
    units = [Unit(variant, method, 0) for variant in what.variants for method in what.methods if (variant.name, method.name) in known]
    assert units
    for unit in units:
        effort = EFFORTS.get(f"{name} / {unit.variant.name}", EFFORTS.get(name, Effort()))
        asked = reproduce.config_of(what, unit, effort)
        if (name, unit.variant.name) in OLDER:
            with pytest.raises(UserError, match="reward_offset"):
                cells.check_config(directory, there, unit.variant.name, unit.method.name, asked)
        else:
            cells.check_config(directory, there, unit.variant.name, unit.method.name, asked)
