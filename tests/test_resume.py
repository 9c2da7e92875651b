"""A run that is stopped, by a signal, by a kill or by a crash in the middle of a write, ends as the unbroken run ends: bit for bit.

Run as a program (``python test_resume.py OUT EVERY``) this file is the run that gets killed.
"""

import dataclasses
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import probes
from psiphi import checkpoint
from psiphi.errors import UserError
from psiphi.loops import runs, scan

ENV = probes.make(probes.medley(probes.say_what_you_see(), probes.time_limit()))
AGENT = probes.tabular_q(ENV.spec, num_envs=2, noise=0.1)
CONFIG = scan.LoopConfig(iterations=99, chunk=5, num_envs=2, num_seeds=2)
SLOW = dataclasses.replace(CONFIG, iterations=200, num_seeds=1)
"""The run that gets killed; it naps after each row, so that a slow machine still hits it alive."""


def evaluate(state: probes.Table, key) -> dict:
    """Depends on the key, so that a wrong one shows."""
    return {"q": state.q.sum() + jnp.sum(AGENT.act(state, jnp.eye(4), key))}


def train(out: Path, config: scan.LoopConfig = CONFIG, every: float = 0.0, settings: dict | None = None) -> scan.Result:
    return scan.run(ENV, AGENT, None, config, out=out, evaluate=evaluate, settings=settings, checkpoint_every_s=every, progress=False)


def outcome(out: Path) -> tuple[dict[str, np.ndarray], list[runs.Row]]:
    """All of a run that must not depend on its history."""
    rows = [{name: x for name, x in row.items() if name != "wall_s"} for row in runs.read_rows(out)]
    return checkpoint.load_arrays(out / "checkpoint"), rows


def assert_same(out: Path, unbroken: tuple[dict[str, np.ndarray], list[runs.Row]]) -> None:
    arrays, rows = outcome(out)
    assert rows == unbroken[1]
    assert arrays.keys() == unbroken[0].keys()
    for name, array in arrays.items():
        assert array.dtype == unbroken[0][name].dtype and array.tobytes() == unbroken[0][name].tobytes(), name


# --- Killed from outside -------------------------------------------------------------------------------------------------


def start(out: Path, every: float) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, __file__, str(out), str(every)], stdout=subprocess.PIPE, text=True)


def rows_written(out: Path) -> int:
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def stop_after(out: Path, rows: int, signum: int, every: float) -> tuple[int, str]:
    """Start the run, signal it once its file has so many rows, and give its exit code and what it said."""
    process = start(out, every)
    while rows_written(out) < rows and process.poll() is None:
        time.sleep(0.003)
    process.send_signal(signum)
    said, _ = process.communicate(timeout=120)
    assert rows_written(out) < 1 + SLOW.iterations // SLOW.chunk, "the run was over before it could be stopped"
    return process.returncode, said


def test_a_run_killed_terminated_and_interrupted_equals_the_unbroken_one(tmp_path):
    unbroken = start(tmp_path / "unbroken", every=0.0)
    out = tmp_path / "broken"
    # Checkpoints are rare at first: the kill leaves rows that no checkpoint covers.
    assert stop_after(out, 5, signal.SIGKILL, every=0.1) == (-signal.SIGKILL, "")
    assert stop_after(out, 12, signal.SIGTERM, every=1e9) == (143, "interrupted; run the same command to continue\n")
    assert checkpoint.read_meta(out / "checkpoint")["step"] == runs.read_rows(out)[-1]["step"]  # a polite stop loses nothing
    assert stop_after(out, 20, signal.SIGINT, every=0.0) == (130, "interrupted; run the same command to continue\n")
    last = start(out, every=0.0)
    assert last.wait(120) == 0 and unbroken.wait(120) == 0
    assert_same(out, outcome(tmp_path / "unbroken"))


def test_the_first_signal_is_remembered_and_the_second_is_left_to_the_system():
    before = signal.getsignal(signal.SIGINT)
    with runs.stoppable() as stop:
        assert stop() is None
        os.kill(os.getpid(), signal.SIGINT)
        assert stop() == signal.SIGINT
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is before


# --- Crashed at the worst moments ----------------------------------------------------------------------------------------


class Crash(BaseException):
    """Stands for a process that ends at this very place."""


@pytest.fixture(scope="module", autouse=True)
def _compiled_once():
    """All runs of this module in this process are one program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "compile_run", functools.cache(scan.compile_run))
        yield


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken")
    train(out)
    return outcome(out)


def in_the_middle_of_a_row(patch: pytest.MonkeyPatch, countdown) -> None:
    append = runs.append_rows

    def crash(directory: Path, rows: list[runs.Row]) -> None:
        if countdown():
            with open(directory / "metrics.jsonl", "a") as file:
                file.write(json.dumps(rows[0]) + "\n" + json.dumps(rows[1])[:20])
            raise Crash
        append(directory, rows)

    patch.setattr(runs, "append_rows", crash)


def before_a_checkpoint(patch: pytest.MonkeyPatch, countdown) -> None:
    save = checkpoint.save

    def crash(path: Path, tree, *, meta) -> None:
        if countdown():
            raise Crash
        save(path, tree, meta=meta)

    patch.setattr(checkpoint, "save", crash)


def before_a_checkpoint_counts(patch: pytest.MonkeyPatch, countdown) -> None:
    replace = os.replace

    def crash(source, target) -> None:
        if Path(target).name == "manifest.json" and countdown():
            raise Crash
        replace(source, target)

    patch.setattr(os, "replace", crash)


def after_a_checkpoint(patch: pytest.MonkeyPatch, countdown) -> None:
    save = checkpoint.save

    def crash(path: Path, tree, *, meta) -> None:
        save(path, tree, meta=meta)
        if countdown():
            raise Crash

    patch.setattr(checkpoint, "save", crash)


@pytest.mark.parametrize("at", [1, 2, 20])
@pytest.mark.parametrize("moment", [in_the_middle_of_a_row, before_a_checkpoint, before_a_checkpoint_counts, after_a_checkpoint])
def test_a_crash_at_a_bad_moment_leaves_no_trace(tmp_path, unbroken, moment, at):
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        moment(patch, lambda: calls.append(1) or len(calls) == at)
        with pytest.raises(Crash):
            train(tmp_path)
    train(tmp_path)
    assert_same(tmp_path, unbroken)


# --- What a directory is for ---------------------------------------------------------------------------------------------


def test_a_complete_run_is_returned_as_it_was(tmp_path):
    short = dataclasses.replace(CONFIG, iterations=10)
    first = train(tmp_path, short)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    again = train(tmp_path, short)
    assert again.rows == first.rows == runs.read_rows(tmp_path) and len(first.rows) == 3 * 2
    np.testing.assert_array_equal(again.carry.agent.q, first.carry.agent.q)
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())


def test_another_config_is_refused_and_the_field_named(tmp_path):
    short = dataclasses.replace(CONFIG, iterations=5)
    train(tmp_path, short, settings={"agent": {"name": "tabular", "sizes": (1, 2)}})
    train(tmp_path, short, settings={"agent": {"name": "tabular", "sizes": (1, 2)}})
    with pytest.raises(UserError, match=r"holds a run with loop\.num_envs = 2, but 3 was asked for"):
        train(tmp_path, dataclasses.replace(short, num_envs=3), settings={"agent": {"name": "tabular", "sizes": (1, 2)}})
    with pytest.raises(UserError, match=r"holds a run with agent\.sizes = \[1, 2\], but \[1, 3\] was asked for"):
        train(tmp_path, short, settings={"agent": {"name": "tabular", "sizes": (1, 3)}})
    with pytest.raises(UserError, match=r"holds a run with agent = .*, but nothing was asked for"):
        train(tmp_path, short)


def test_a_directory_has_one_run_at_a_time(tmp_path):
    with runs.opened(tmp_path, {}), pytest.raises(UserError, match="Another process is running in"), runs.opened(tmp_path, {}):
        pass
    with runs.opened(tmp_path, {}):
        pass


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda out: (out / "metrics.jsonl").write_text(""), "metrics.jsonl has 0 bytes, but its checkpoint covers"),
        (lambda out: (out / "config.json").write_text("{"), "config.json is not readable as JSON"),
        (lambda out: (out / "config.json").unlink(), "holds a run but no config.json"),
    ],
)
def test_a_damaged_directory_is_reported_in_one_sentence(tmp_path, damage, sentence):
    short = dataclasses.replace(CONFIG, iterations=5)
    train(tmp_path, short)
    damage(tmp_path)
    with pytest.raises(UserError, match=re.escape(sentence)):
        train(tmp_path, short)


def test_a_directory_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        train(tmp_path / "file" / "run")


def test_another_setup_is_mentioned(tmp_path, capsys, monkeypatch):
    short = dataclasses.replace(CONFIG, iterations=5)
    train(tmp_path, short)
    monkeypatch.setattr(runs, "made_with", lambda: {"jax": "0.0"})
    scan.run(ENV, AGENT, None, short, out=tmp_path, evaluate=evaluate, checkpoint_every_s=0.0)
    said = capsys.readouterr().err
    assert "holds this run, complete" in said and "another setup (jax" in said


if __name__ == "__main__":
    append = runs.append_rows

    def slowly(directory: Path, rows: list[runs.Row]) -> None:
        append(directory, rows)
        time.sleep(0.05)

    runs.append_rows = slowly
    try:
        train(Path(sys.argv[1]), SLOW, every=float(sys.argv[2]))
    except runs.Interrupted as interruption:
        print(interruption)
        sys.exit(interruption.exit_code)
