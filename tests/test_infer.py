"""`psiphi infer`: from a table to tables, a picture and a report; and the arithmetic that finds what a reward goes with."""

import csv
import random
import re
from pathlib import Path

import numpy as np
import pytest

import psiphi
from psiphi.demos import Demonstrations, Problem
from psiphi.errors import UserError
from psiphi.experiments import infer

WAYS = [(1, 0), (0, 1), (-1, 0), (0, -1)]


def write_walks(path: Path, episodes: int) -> None:
    """Ann walks to one corner of a board of 4 by 4, bob to another; in a stranger's words."""
    rng = random.Random(0)
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["who", "walk", "x", "y", "way", "terminated", "reward"])
        for who, place in (("ann", (3, 3)), ("bob", (0, 3))):
            for walk in range(episodes):
                at = rng.randrange(4), rng.randrange(3)
                while at != place:
                    good = [a for a, (x, y) in enumerate(WAYS) if x * (place[0] - at[0]) > 0 or y * (place[1] - at[1]) > 0]
                    way = rng.choice(good)
                    after = at[0] + WAYS[way][0], at[1] + WAYS[way][1]
                    rows.writerow([who, walk, *at, way, int(after == place), 0])
                    at = after
                rows.writerow([who, walk, *at, "", "", ""])


COLUMNS = ["--agent", "who", "--episode", "walk", "--obs", "x,y", "--action", "way", "--num-actions", "4"]
SMALL = ["--updates", "20", "--itd.torso-hidden", "16", "--itd.phi-hidden", "16", "--itd.psi-hidden", "16"]


@pytest.fixture(scope="module")
def inferred(tmp_path_factory) -> Path:
    """What one call leaves, trained far too little."""
    directory = tmp_path_factory.mktemp("infer")
    write_walks(directory / "walks.csv", episodes=20)
    infer.run([str(directory / "walks.csv"), "--out", str(directory / "out"), "--rewards", "30", *COLUMNS, *SMALL])
    return directory / "out"


def test_everything_that_was_promised_is_written(inferred):
    left = {path.name for path in inferred.iterdir()}
    tables = {"verdict.txt", "preferences.csv", "preferences.md", "rewards.csv"}
    assert left == {"model", *tables, "wants.svg", "wants.png", "explore.html", "report.md"}
    assert (inferred / "wants.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (inferred / "wants.svg").read_bytes()


def test_what_was_interrupted_continues_and_what_is_finished_leaves_nothing_behind(inferred, tmp_path, monkeypatch):
    command = [str(inferred.parent / "walks.csv"), "--out", str(tmp_path), "--rewards", "30", *COLUMNS, *SMALL]

    def ends(*_args, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(infer, "looked_at", ends)
        with pytest.raises(KeyboardInterrupt):
            infer.run(command)
    (unfinished,) = tmp_path.iterdir()
    assert re.fullmatch(infer.UNFINISHED, unfinished.name) and (unfinished / "checkpoint").is_dir()
    rows, write = (unfinished / "metrics.jsonl").read_bytes(), infer.write

    def looks(config: infer.Infer, found: infer.Inferred) -> None:
        assert (unfinished / "metrics.jsonl").read_bytes() == rows  # the clock is in them, too: nothing was fitted again
        write(config, found)

    monkeypatch.setattr(infer, "write", looks)
    infer.run(command)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in inferred.iterdir()}
    assert (tmp_path / "preferences.csv").read_bytes() == (inferred / "preferences.csv").read_bytes()


def test_the_tables_are_the_models(inferred):
    itd = psiphi.load(inferred / "model")
    demos = Demonstrations.read(inferred.parent / "walks.csv", infer.Columns(agent="who", episode="walk", obs="x,y", action="way"))
    with open(inferred / "preferences.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["agent"] for row in rows] == ["ann", "bob"]
    w = [[float(row[name]) for name in itd.preferences.names] for row in rows]
    assert {"change of x", "end", "y at the end", "every step"} <= set(itd.preferences.names)
    assert [bool(int(row["doubtful"])) for row in rows] == [agent in itd.verdict.doubtful for agent in itd.agents]
    np.testing.assert_allclose(w, itd.preferences.w, atol=1e-4)
    assert {"with x", "with y", "with action 0", "with action 3"} <= set(rows[0])
    with open(inferred / "rewards.csv", newline="") as file:
        listed = list(csv.DictReader(file))
    assert len(listed) == 30
    led, _ = infer.followed(demos)
    paid = itd.reward("bob")(demos.obs[:30], demos.action[:30], led[:30], demos.terminated[:30])
    np.testing.assert_allclose([float(row["reward of bob"]) for row in listed], paid, atol=1e-4)
    assert [int(row["action"]) for row in listed] == demos.action[:30].tolist()


def test_the_report_judges_by_episodes_that_were_held_out(inferred):
    columns = infer.Columns(agent="who", episode="walk", obs="x,y", action="way")
    _, test = Demonstrations.read(inferred.parent / "walks.csv", columns).split(0.1, seed=0)
    text = (inferred / "report.md").read_text()
    for agent, accuracy in psiphi.load(inferred / "model").accuracies(test).items():
        (row,) = [line.split(" | ") for line in text.splitlines() if line.replace("*", "").startswith(f"| {agent} | 20 |")]
        assert float(row[4]) == pytest.approx(accuracy, abs=6e-4)
    assert text.index("## Before you believe it") < text.index("## What was learned") and "What logs alone never tell" in text
    assert "Seed 0" in text and "](wants.png)" in text


def test_a_wrong_column_is_one_sentence_and_nothing_is_written(tmp_path):
    write_walks(tmp_path / "walks.csv", episodes=1)
    with pytest.raises(UserError, match="no column 'agent' for the agent"):
        infer.run([str(tmp_path / "walks.csv"), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


# --- What a reward goes with ----------------------------------------------------------------------------------------------


def test_correlations_are_pearsons_and_zero_where_nothing_changes():
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(50, 2)), rng.normal(size=(50, 3))
    right[:, 2] = 7.1
    found = infer.correlations(left, right)
    expected = np.corrcoef(left.T, right[:, :2].T)[:2, 2:]
    np.testing.assert_allclose(found[:, :2], expected)
    assert (found[:, 2] == 0).all()


def test_the_telling_pair_is_found_among_others_and_needs_no_line():
    rng = np.random.default_rng(0)
    entries = rng.normal(size=(4000, 6))
    reward = ((entries[:, 4] > 0) ^ (entries[:, 1] > 0.5)) + 0.2 * (entries[:, 4] > 0)
    pair = infer.telling_pair(entries, reward[:, None].astype(float))
    assert pair is not None and set(pair) == {1, 4}
    assert infer.telling_pair(entries[:, :1], reward[:, None]) is None


def test_few_values_are_cut_between_them_and_many_into_equal_parts():
    assert infer.edges(np.array([0.0, 1.0, 1.0, 3.0])).tolist() == [-0.75, 0.5, 2.0, 3.75]
    cuts = infer.edges(np.arange(800.0))
    counts, _ = np.histogram(np.arange(800.0), cuts)
    assert len(counts) == infer.BINS and counts.min() >= 99


def test_steps_are_looked_at_where_it_is_known_where_they_led():
    obs = [np.array([[0.0], [1.0], [2.0]]), np.array([[5.0], [6.0]])]
    demos = Demonstrations.from_lists(obs, [[0, 1], [1, 0]], ["ann", "bob"], terminated=[True, False])
    steps, led = infer.looked_at(demos, 10)
    assert steps.tolist() == [0, 1, 2] and led[:, 0].tolist() == [1.0, 2.0, 6.0]


def test_problems_of_one_kind_are_one_line():
    problems = [Problem("warning", kind, "log.csv", "ann", e, None, f"{kind} was found") for kind in ("a tail", "a gap") for e in range(3)]
    lines = infer.problem_lines(infer.Infer(Path("log.csv"), Path("out")), [*problems, problems[0]._replace(kind="else", text="else")])
    assert lines == [
        "log.csv: agent 'ann', episode 0: a tail was found. There are 3 such problems; psiphi demos validate log.csv lists them.",
        "log.csv: agent 'ann', episode 0: a gap was found. There are 3 such problems; psiphi demos validate log.csv lists them.",
        "log.csv: agent 'ann', episode 0: else.",
    ]
