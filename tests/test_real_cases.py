"""The examples of real cases, on small made-up files of the same form: what they read is right, and they run to the end."""

import gzip
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


def example(name: str) -> ModuleType:
    path = Path(__file__).parents[1] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"examples_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def maze(path: Path, bouts: int = 8) -> Path:
    """Random walks in a tree, from the entrance until they are home again."""
    rng, rows = np.random.default_rng(0), ["mouse,bout,t,node"]
    for mouse in ("B1", "D4"):
        for bout in range(bouts):
            node, t = 1, 0
            while node:
                rows.append(f"{mouse},{bout},{t},{node}")
                node, t = (node // 2 if node >= 64 or rng.random() < 0.5 else 2 * node + int(rng.integers(2))), t + 1
    with gzip.open(path, "wt") as file:
        file.write("\n".join(rows))
    return path


def traffic(path: Path) -> Path:
    """Four scenes of two roads with five cars each, ten times a second."""
    rng, parts = np.random.default_rng(0), []
    for scene in ("USA_US101-1_1_T-1", "USA_US101-2_1_T-1", "USA_Lanker-1_1_T-1", "USA_Lanker-1_2_T-1"):
        for car in range(5):
            t = np.arange(60)
            v = 10 + rng.normal(size=60).cumsum() * 0.3
            x, y = (0.1 * v).cumsum() + 20 * car, 3.5 * (car % 2) + 0.02 * rng.normal(size=60).cumsum()
            parts.append((np.full(60, scene), np.full(60, car), t, x, y, np.zeros(60)))
    np.savez(path, **dict(zip(("sc", "id", "t", "x", "y", "h"), map(np.concatenate, zip(*parts, strict=True)), strict=True)))
    return path


def test_mice_visits_become_moves():
    mice = example("mice")
    nodes = np.array([1, 2, 5, 2, 1, 3, 1])
    assert mice.moves(nodes).tolist() == [mice.LEFT, mice.RIGHT, mice.BACK, mice.BACK, mice.RIGHT, mice.BACK, mice.BACK]
    seen = mice.seen(nodes)
    assert seen.shape == (7, 127 + 3 + 6) and (seen[:, :127].argmax(1) + 1).tolist() == nodes.tolist()
    came = seen[:, 127:130].argmax(1)
    assert came.tolist() == [mice.BACK, mice.BACK, mice.BACK, mice.RIGHT, mice.LEFT, mice.BACK, mice.RIGHT]
    assert seen[3, 130:133].tolist() == [0, 0, 1] and seen[3, 133:].tolist() == [0, 1, 0]  # right, and left before that


def test_mice_features_tell_ends_home_and_turning_round(tmp_path):
    mice = example("mice")
    demos = mice.demonstrations(mice.read(maze(tmp_path / "moves.csv.gz"), ("B1", "D4")))
    assert demos.agents == ("B1", "D4") and demos.num_episodes == 16 and demos.action_names == ("back", "left", "right")
    assert demos.episodes.terminated.all()
    nodes = np.array([1, 2, 1])
    obs = mice.seen(nodes)
    found = np.asarray(mice.features(obs, mice.moves(nodes), np.roll(obs, -1, axis=0), np.array([False, False, True])))
    assert found[:, -3:].tolist() == [[0, 0, 1], [0, 1, 1], [1, 0, 1]]  # on; back to where it came from; home


def test_traffic_becomes_demonstrations_by_road(tmp_path):
    ngsim = example("ngsim")
    demos = ngsim.demonstrations(ngsim.read(traffic(tmp_path / "tracks.npz")))
    assert set(demos.agents) == {"motorway", "Lankershim"} and demos.num_episodes == 20 and len(demos.groups) == 4
    assert demos.discretiser.columns == ("acc", "lat") and demos.num_actions == 9
    features = ngsim.features(demos)(demos.obs[:5], demos.action[:5], demos.obs[1:6], np.zeros(5, bool))
    assert features.shape == (5, len(ngsim.WANTS)) and np.isfinite(features).all()


@pytest.mark.slow
def test_both_examples_run_to_a_verdict(tmp_path, capsys):
    example("mice").main(maze(tmp_path / "moves.csv.gz"), ("B1", "D4"), 4, 0)
    assert "area under the curve" in capsys.readouterr().out
    example("ngsim").main(traffic(tmp_path / "tracks.npz"), 4, 0)
    said = capsys.readouterr().out
    assert "bits per step" in said and "What logs alone never tell" in said
