"""The published experiments still yield what they did, to the bit, and are still asked for what was published."""

import json
from pathlib import Path
from typing import Any

import pytest

import golden
from psiphi.experiments import cells, paper, reproduce
from psiphi.experiments.reproduce import Effort, Unit

PINNED = golden.read()
ELSEWHERE = golden.elsewhere(PINNED)
CHEAP = ("figure-coingrid/coingrid-aligned/bc", "figure-coingrid/coingrid-aligned/dqn", "table-1/coingrid/bc")
RESULTS = Path(__file__).parents[1] / "results"

same_bits = pytest.mark.skipif(bool(ELSEWHERE), reason=f"golden.json was written elsewhere: {ELSEWHERE}")


@pytest.fixture(scope="module")
def cheap() -> dict[str, list[golden.Difference]]:
    """All in one process: they share what is imported and compiled."""
    return dict(golden.again(PINNED, CHEAP))


@same_bits
@pytest.mark.parametrize("name", CHEAP)
def test_a_cheap_run_yields_what_it_did(name, cheap):
    assert cheap[name] == []


@pytest.mark.slow
@same_bits
@pytest.mark.parametrize("name", paper.EXPERIMENTS)
def test_every_run_yields_what_it_did(name):
    names = [one for one in golden.chosen(PINNED["units"], [name]) if one not in CHEAP]
    if not names:
        pytest.skip("all that is pinned of it is cheap")
    assert dict(golden.again(PINNED, names)) == {one: [] for one in names}


def test_everything_is_pinned_or_has_a_reason_not_to_be():
    pinned, skipped = set(PINNED["units"]), set(PINNED["skipped"])
    assert pinned | skipped == set(golden.every()) and not pinned & skipped
    assert all(PINNED["skipped"].values())


def test_what_was_pinned_after_the_rebuild_is_named():
    since = PINNED["since the rebuild"]
    assert set(since) < set(PINNED["units"]) and all("after the rebuild" in why for why in since.values())


def test_every_experiment_and_every_kind_of_method_is_pinned_somewhere():
    for kind in (lambda what, _: what.name, lambda _, unit: (unit.method.how, unit.method.algorithm, unit.method.preset)):
        kinds = {name: kind(what, unit) for name, (what, unit) in golden.every().items()}
        costly = {("adapt", "sqil", "default")}  # no effort makes its 100 shots fewer
        costly |= {("goals", algorithm, "default") for algorithm in ("dqn", "itd", "psiphi")}  # minutes to compile, seconds to run
        assert set(kinds.values()) - costly == {kinds[name] for name in PINNED["units"]} - costly


def test_a_difference_in_the_last_bit_is_found():
    unit = PINNED["units"][CHEAP[0]]
    changed = json.loads(json.dumps(unit))
    assert golden.differences(unit, changed) == []
    curve = changed["cells"][0]["extra"]["curve"]["normalised_return"]
    curve[1] += 1e-16 if curve[1] == 0 else abs(curve[1]) * 2**-52
    del changed["cells"][2]
    found = golden.differences(unit, changed)
    assert [one.where for one in found][0].endswith("extra.curve.normalised_return[1]") and len(found) == 2


def test_methods_are_told_apart():
    """Of methods that differ, what is pinned differs: a change that is lost on the way to the learner is seen."""
    for what in map(reproduce.find, paper.EXPERIMENTS):
        for variant in what.variants:
            seen = {}
            for name in golden.chosen(PINNED["units"], [f"{what.name}/{variant.name}"]):
                if name == "figure-imitation/roundabout/bc-many":  # BC that was shown more, but for the effort
                    continue
                numbers = json.dumps([[cell.get("extra"), cell["value"]] for cell in PINNED["units"][name]["cells"]])
                assert seen.setdefault(numbers, name) == name


# --- What was published --------------------------------------------------------------------------------------------------

PUBLISHED_WITH = {"ablation": Effort(updates=2_000)}
"""Where it was less than all of it; the commands in the files say so."""

SINCE = {
    ("figure-sensitivity", "highway-multi-task"): {"agent.reward_offset"},
}
"""What was changed on purpose after it was published."""


@pytest.mark.parametrize("name", [name for name in paper.EXPERIMENTS if (RESULTS / name).exists()])
def test_what_is_asked_for_is_what_was_published(name):
    """All that a published cell says of its setting still holds; what it does not name did not exist then."""
    what = reproduce.find(name)
    variants, methods = ({one.name: one for one in some} for some in (what.variants, what.methods))
    published = {(cell["env"], cell["method"]): cell["config"] for cell in cells.read(RESULTS / name)}
    for (env, method), config in published.items():
        unit = Unit(variants[env], methods[method], golden.SEED)  # pyright: ignore[reportArgumentType]
        now = json.loads(json.dumps(reproduce.config_of(what, unit, PUBLISHED_WITH.get(name, Effort()))))
        assert not_kept(config, now) == SINCE.get((name, env), set()), (env, method)


def not_kept(old: Any, new: Any, name: str = "") -> set[str]:
    """Dotted names of what the old config has and the new one has not, or not so."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {one for key in old for one in not_kept(old[key], new.get(key, "nothing"), f"{name}.{key}".lstrip("."))}
    return set() if old == new else {name}
