"""The tutorial runs from end to end, small, with whatever is installed."""

import importlib.util
from pathlib import Path

import psiphi

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tour_runs_small(tmp_path, capsys):
    tutorial = example("tutorial")
    found = tutorial.tour(tmp_path, tutorial.QUICK)
    said = capsys.readouterr().out
    assert psiphi.Demonstrations.read(tmp_path / "coins" / "strangers-v0").agents == ("red", "green")
    assert psiphi.load(tmp_path / "itd").agents == ("red", "green")
    assert all(part in said for part in ("(a)", "(b)", "(c)", "(d)"))
    assert (found["sb3"] is None) == ("stable-baselines3 is not installed" in said)
    assert all(abs(found[name]) <= 4 for name in ("red", "random", "R+G", "R-G before", "R-G after"))
