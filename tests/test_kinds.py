"""Kinds: episodes without ids are sorted by what they do, by networks that did not see them."""

import csv
import dataclasses

import numpy as np
import pytest

import psiphi
from psiphi.api import kinds
from psiphi.errors import UserError
from psiphi.experiments import infer
from tiny import corners


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Fewer updates of smaller networks, for worlds this small; other widths are other programs."""
    before = kinds.FIRST, kinds.UPDATES, kinds.WIDTH
    kinds.FIRST, kinds.UPDATES, kinds.WIDTH = 100, 30, 32
    yield
    kinds.FIRST, kinds.UPDATES, kinds.WIDTH = before


THREE = [(0, 0), (4, 4), (0, 4)]


def test_episodes_are_sorted_by_where_they_go_and_their_number_is_found():
    demos = corners(THREE, 90)
    found = psiphi.find_kinds(demos, "auto", beginnings=1, progress=False)
    truth = np.arange(90) % 3
    assert found.number == 3 and found.share.shape == (90, 3)
    np.testing.assert_allclose(found.share.sum(axis=1), 1, atol=1e-5)
    for k in range(3):
        assert len(set(found.label[truth == k])) == 1, "all of one kind are sorted alike"
    assert len(set(found.label)) == 3 and found.nats[3] < found.nats[2] < found.nats[1]
    assert found.demos.agents == ("kind 1", "kind 2", "kind 3") and len(found.demos) == len(demos)
    assert np.array_equal(found.demos.episodes.agent, found.label) and "3 kinds" in str(found)


def test_one_kind_is_not_taken_for_several():
    assert psiphi.find_kinds(corners(THREE[:1], 60), "auto", beginnings=1, progress=False).number == 1


def test_agents_are_sorted_with_all_their_episodes():
    demos = corners(THREE[:2], 60)
    agents = tuple(f"a{i}" for i in range(12))
    many = dataclasses.replace(demos, agents=agents, episodes=demos.episodes._replace(agent=(np.arange(60) % 12).astype(np.int32)))
    found = psiphi.find_kinds(many, 2, of="agents", beginnings=1, progress=False)
    assert found.units == agents and sorted(np.bincount(found.label)) == [6, 6]
    assert len(set(found.label[::2])) == 1


def test_a_number_is_the_smallest_that_no_larger_one_beats_whose_kinds_are_told_apart():
    rng = np.random.default_rng(0)
    noise, turn = rng.normal(size=200), np.arange(200)
    gains = {1: 0.0, 2: 1.0, 3: 1.001, 4: 2.0}
    fits = {k: kinds.Fit(np.eye(k)[turn % k], noise + gain + 0.1 * rng.normal(size=200)) for k, gain in gains.items()}
    assert kinds._fewest({k: fits[k] for k in (1, 2, 3)}) == 2 and kinds._fewest(fits) == 4
    blurred = np.full((200, 4), 0.4 / 3)
    blurred[np.arange(200), np.arange(200) % 4] = 0.6
    assert kinds._fewest({**fits, 4: fits[4]._replace(share=blurred)}) == 2


def test_what_cannot_be_sorted_is_one_sentence(tmp_path):
    demos = corners(THREE[:2], 6)
    with pytest.raises(UserError, match="There is one agent only, expected several to sort into kinds, or --agent none"):
        psiphi.find_kinds(demos, 2, of="agents")
    with pytest.raises(UserError, match="There are 6 episodes to sort into 4 kinds, expected at least 8"):
        psiphi.find_kinds(demos, 4)
    demos.write(tmp_path / "log.csv")
    with pytest.raises(UserError, match="kinds is 'many', expected a number above 0, auto or none"):
        infer.run([str(tmp_path / "log.csv"), "--out", str(tmp_path / "out"), "--agent", "none", "--kinds", "many"])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_log_without_ids_becomes_a_report_on_kinds(tmp_path):
    corners(THREE[:2], 40).write(tmp_path / "log.csv")
    small = ["--updates", "20", "--itd.torso-hidden", "16", "--itd.phi-hidden", "16", "--itd.psi-hidden", "16", "--rewards", "30"]
    infer.run([str(tmp_path / "log.csv"), "--out", str(tmp_path / "out"), "--agent", "none", "--kinds", "2", *small])
    text = (tmp_path / "out" / "report.md").read_text()
    assert "## Kinds" in text and "40 episodes were sorted" in text and "| kind 2 | 20 |" in text
    with open(tmp_path / "out" / "kinds.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    kind = [row["kind"] for row in rows]
    assert len(rows) == 40 and len(set(kind[::2])) == len(set(kind[1::2])) == 1 and kind[0] != kind[1]
    assert float(rows[0][f"share of {kind[0]}"]) > 0.9
    assert psiphi.load(tmp_path / "out" / "model").agents == ("kind 1", "kind 2")
