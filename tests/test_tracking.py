"""Trackers follow metrics.jsonl: each of its values is there once, whatever moment a process dies at; read by the tools themselves."""

import importlib
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from psiphi import cli, disk, tracking
from psiphi.errors import UserError
from psiphi.loops import runs

ROWS = [
    {"step": 5 * i, "env_steps": 40 * i, "seed": 0, "wall_s": 1.5 * i, "eval/return": x, "train/w": [0.5, float(i)]}
    for i, x in enumerate((0.25, None, -1.5, 3.0))
]
EXPECTED = {
    name: [(row["step"], row[name]) for row in ROWS] for name in ("env_steps", "wall_s", "eval/return")
} | {f"train/w/{k}": [(row["step"], row["train/w"][k]) for row in ROWS] for k in range(2)}  # fmt: skip


def installed(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}: pip install 'psiphi[{name}]'")


def put_down(directory: Path, rows: int, beyond: int = 0) -> None:
    """A run whose checkpoint covers so many rows, and which wrote some more before it was killed."""
    (directory / runs.METRICS).unlink(missing_ok=True)
    runs.append_rows(directory, ROWS[:rows])
    runs.save(directory, {"x": np.zeros(2)}, step=ROWS[rows - 1]["step"], wall_s=0.0)
    if beyond:
        runs.append_rows(directory, ROWS[rows : rows + beyond])


class Recording:
    """A tracker that remembers what it has, also beyond the process that sent it; `fails` after so many steps."""

    sent: list[int] = []

    def __init__(self, directory: Path, name: str, config: dict):
        self.last = max(self.sent, default=-1)

    def send(self, step: int, values: dict[str, float]) -> None:
        self.sent.append(step)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_only_what_a_checkpoint_covers_is_sent_and_nothing_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(Recording, "sent", [])
    tracker = Recording(tmp_path, "", {})
    tracking.catch_up(tracker, tmp_path)  # nothing is there yet
    put_down(tmp_path, 1, beyond=2)
    for _ in range(2):
        tracking.catch_up(tracker, tmp_path)
    assert Recording.sent == [0]
    put_down(tmp_path, 3)
    tracking.catch_up(Recording(tmp_path, "", {}), tmp_path)
    put_down(tmp_path, 4)
    tracking.catch_up(Recording(tmp_path, "", {}), tmp_path)
    assert Recording.sent == [0, 5, 10, 15]


def test_seeds_are_named_where_there_are_several_and_what_is_not_finite_is_nan():
    found = tracking.by_step([{"step": 0, "seed": 0, "a": 1}, {"step": 0, "seed": 1, "a": None}, {"step": 1, "seed": 0, "a": [1] * 99}])
    assert found[0]["seed 0/a"] == 1.0 and math.isnan(found[0]["seed 1/a"]) and found[1] == {}


def test_a_tracker_that_fails_is_told_of_once_and_stops_nothing(tmp_path, monkeypatch, capsys):
    put_down(tmp_path, 2)

    class Broken(Recording):
        def send(self, step: int, values: dict[str, float]) -> None:
            raise ConnectionError("no network")

    monkeypatch.setitem(tracking.TRACKERS, "tensorboard", Broken)
    monkeypatch.setattr(tracking, "EVERY_S", 0.01)
    with tracking.following("tensorboard", tmp_path, {}):
        import time

        time.sleep(0.1)
    said = capsys.readouterr().err
    assert said == "psiphi: tensorboard failed (ConnectionError: no network); the training goes on without it.\n"


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_tool_is_named_with_its_command(name, tmp_path, monkeypatch):
    for module in [m for m in sys.modules if m.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"--track {name} needs {name}, .* pip install 'psiphi\[{name}\]'"):
        tracking.TRACKERS[name](tmp_path, "x", {})


def test_the_identity_of_a_run_stays(tmp_path):
    assert tracking._identity(tmp_path) == tracking._identity(tmp_path)
    disk.write(tmp_path / tracking.STATE, b'{"id": "../x"}')
    with pytest.raises(UserError, match="does not name a run"):
        tracking._identity(tmp_path)


def read_tensorboard(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """With TensorBoard's own reader; None for NaN."""
    reader: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    tags = found.Tags()["scalars"]
    return {tag: [(e.step, None if math.isnan(e.value) else e.value) for e in found.Scalars(tag)] for tag in tags}  # pyright: ignore[reportReturnType]


@installed("tensorboard")
def test_tensorboard_has_every_value_once_after_kills_in_the_middle_of_a_record(tmp_path):
    for rows in (1, 2, 3, 4):
        put_down(tmp_path, rows, beyond=min(1, 4 - rows))
        tracker = tracking.TensorBoard(tmp_path, "run", {})
        assert tracker.last <= (ROWS[rows - 2]["step"] if rows > 1 else -1)
        tracking.catch_up(tracker, tmp_path)
        tracker.close()
        # The kill leaves the last record unfinished: that step is sent again.
        file = max((tmp_path / "tensorboard").iterdir(), key=lambda path: (path.stat().st_mtime, path.name))
        if rows == 2:
            os.truncate(file, file.stat().st_size - 7)
    assert read_tensorboard(tmp_path) == EXPECTED


def read_wandb(directory: Path) -> dict[str, list[tuple[int, float | None]]]:
    """From the one file of an offline run: records in blocks of 32 KiB after 7 bytes, each with its checksum, length and kind."""
    proto: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (file,) = directory.glob("wandb/offline-run-*/*.wandb")
    data, at, whole, found = file.read_bytes(), 7, b"", {}
    while at + 7 <= len(data):
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if kind == 0:  # the rest of a block is empty
            at += 32768 - at % 32768
            continue
        whole = (b"" if kind in (1, 2) else whole) + data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind not in (1, 4):  # neither whole nor the last part
            continue
        record = proto.Record.FromString(whole)
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            if not name.startswith("_"):
                x = json.loads(item.value_json)
                found.setdefault(name, []).append((record.history.step.num, None if x in ("NaN", None) or math.isnan(x) else x))
    return found


def read_trackio(directory: Path) -> dict[str, list[tuple[int, float | None]]]:
    trackio: Any = importlib.import_module("trackio")
    found: dict[str, list[tuple[int, float | None]]] = {}
    for row in trackio.SQLiteStorage.get_logs(tracking.PROJECT, f"run-{tracking._identity(directory)}"):
        for name, x in row.items():
            if name not in ("step", "timestamp", "id", "log_id"):
                found.setdefault(name, []).append((row["step"], None if x is None or x == "NaN" or math.isnan(x) else x))
    return found


FOLLOWING = """
import os, signal, sys, time
from pathlib import Path
from psiphi import tracking
tool, directory, lives_s = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
tracker = tracking.TRACKERS[tool](directory, "run", {"agent": {"gamma": 0.9}})
tracking.catch_up(tracker, directory)
if lives_s >= 0:
    time.sleep(lives_s)
    os.kill(os.getpid(), signal.SIGKILL)
tracker.close()
"""
"""A process that sends what is there and is killed so many seconds later; with a number below 0 it ends as it should."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "read"),
    [
        pytest.param("tensorboard", read_tensorboard, marks=installed("tensorboard")),
        pytest.param("wandb", read_wandb, marks=installed("wandb")),
        pytest.param("trackio", read_trackio, marks=installed("trackio")),
    ],
)
def test_every_value_is_there_once_after_real_kills(tool, read, tmp_path):
    env = {**os.environ, "WANDB_MODE": "offline", "TRACKIO_DIR": str(tmp_path / "trackio"), "PYTHONPATH": os.pathsep.join(sys.path)}
    for rows, lives_s in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 0.3), (4, -1.0)):
        put_down(tmp_path, rows, beyond=min(1, 4 - rows))
        done = subprocess.run(
            [sys.executable, "-c", FOLLOWING, tool, str(tmp_path), str(lives_s)], env=env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == (0 if lives_s < 0 else -signal.SIGKILL), done.stderr
        assert done.stdout == "", "what a tool says is not what psiphi prints"
    asked = subprocess.run(
        [sys.executable, "-c", READING, read.__name__, str(tmp_path)], env=env, capture_output=True, text=True, check=True
    )
    found = {name: [(step, x) for step, x in values] for name, values in json.loads(asked.stdout).items()}
    assert found == EXPECTED


READING = f"""
import json, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_tracking
print(json.dumps(getattr(test_tracking, sys.argv[1])(Path(sys.argv[2]))))
"""
"""Tools choose their directories when they are imported, so that another process reads."""


@installed("tensorboard")
def test_a_training_is_followed_to_its_end(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(
            [
                "train",
                "bc",
                "--env",
                "coingrid",
                *tiny.flags("bc"),
                "--evaluate-every",
                "2",
                "--out",
                str(tmp_path),
                "--track",
                "tensorboard",
            ]
        )
    assert ended.value.code == 0, capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    found = read_tensorboard(tmp_path)
    assert dict(found["train/loss"]) == pytest.approx({row["step"]: row["train/loss"] for row in rows if "train/loss" in row})
    assert [step for step, _ in found["wall_s"]] == [row["step"] for row in rows] and len(rows) > 1
