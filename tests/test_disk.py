"""Files whole or not at all, only where psiphi was told, and a sentence for what a disk may do."""

import errno
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import probes
from psiphi import checkpoint, disk
from psiphi.errors import UserError
from psiphi.loops import runs, scan

ENV = probes.make(probes.say_what_you_see())
AGENT = probes.tabular_q(ENV.spec, num_envs=2, noise=0.1)
CONFIG = scan.LoopConfig(iterations=10, chunk=5, num_envs=2)
PROGRAM = scan.compile_run(ENV, AGENT, CONFIG)


@pytest.fixture(autouse=True)
def _compiled_once(monkeypatch):
    monkeypatch.setattr(scan, "compile_run", lambda *_: PROGRAM)


def train(out: Path) -> scan.Result:
    return scan.run(ENV, AGENT, None, CONFIG, out=out, checkpoint_every_s=0.0, progress=False)


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


# --- Whole or not at all -------------------------------------------------------------------------------------------------


def test_a_write_replaces_in_one_step_and_leaves_no_draft(tmp_path):
    disk.write(tmp_path / "a", b"one")
    disk.write(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two" and names(tmp_path) == ["a"]
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) & 0o400


def test_a_draft_cannot_be_guessed():
    seen = []
    for _ in range(2):
        with pytest.raises(KeyError), disk.drafted(Path("/tmp/psiphi-draft")) as draft:
            seen.append(draft.name)
            raise KeyError
        assert not draft.exists()
    assert seen[0] != seen[1] and disk.DRAFT.fullmatch(seen[0])


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch, call):
    disk.write(tmp_path / "a", b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(UserError, match=r"a cannot be written: No space left on device\."):
        disk.write(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old" and names(tmp_path) == ["a"]


def test_a_failed_append_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    disk.append(tmp_path / "a", b"old\n")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="cannot be written: No space left on device"):
        disk.append(tmp_path / "a", b"half of a row")
    assert (tmp_path / "a").read_bytes() == b"old\n"


# --- Only what is ours ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "act", [lambda p: disk.read(p, 99), lambda p: disk.append(p, b"x"), lambda p: disk.cut(p, 0), disk.length, disk.lock_file]
)
def test_links_and_pipes_are_not_followed(tmp_path, act):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link").symlink_to("precious")
    with pytest.raises(UserError, match="link is a symbolic link, expected a file"):
        act(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is not a regular file"):
        act(tmp_path / "pipe")
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_link_in_the_place_of_a_written_file_is_replaced_itself(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link").symlink_to("precious")
    disk.write(tmp_path / "link", b"new")
    assert (tmp_path / "precious").read_text() == "precious" and not (tmp_path / "link").is_symlink()


def test_only_files_of_the_size_that_is_allowed_are_read(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 100)
    assert len(disk.read(tmp_path / "a", 100)) == 100
    with pytest.raises(UserError, match="a has 100 bytes, expected at most 99"):
        disk.read(tmp_path / "a", 99)


def test_a_save_does_not_touch_what_is_not_ours(tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
    (tmp_path / "arrays-theirs.safetensors").write_text("theirs")
    with pytest.raises(UserError, match="has a manifest.json that is not psiphi's, so it is not replaced"):
        checkpoint.save(tmp_path, {"x": 1}, meta={})
    assert names(tmp_path) == ["arrays-theirs.safetensors", "manifest.json"]
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "arrays-0123456789abcdef.safetensors").symlink_to("arrays-theirs.safetensors")
    checkpoint.save(tmp_path, {"x": 1}, meta={})
    checkpoint.save(tmp_path, {"x": 2}, meta={})
    assert (tmp_path / "arrays-theirs.safetensors").read_text() == "theirs"
    assert (tmp_path / "arrays-0123456789abcdef.safetensors").is_symlink()


def test_what_is_said_to_be_ours_must_be_a_directory_and_no_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(UserError, match="link is a symbolic link, expected a directory"):
        checkpoint.save(tmp_path / "link", {"x": 1}, meta={})
    assert names(tmp_path / "real") == []


# --- What belongs together -----------------------------------------------------------------------------------------------


def test_an_edited_manifest_is_noticed_and_an_old_one_without_the_hash_is_read(tmp_path):
    import json

    import safetensors.numpy

    checkpoint.save(tmp_path / "c", {"x": 1}, meta={"step": 3})
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    manifest["meta"]["step"] = 4
    (tmp_path / "c" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="its manifest.json was changed since it was written"):
        checkpoint.load_arrays(tmp_path / "c")
    # As it was written before arrays carried the hash.
    (old,) = (tmp_path / "c").glob("arrays-*")
    data = safetensors.numpy.save(safetensors.numpy.load(old.read_bytes()))
    import hashlib

    manifest |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (tmp_path / "c" / f"arrays-{manifest['sha256'][:16]}.safetensors").write_bytes(data)
    (tmp_path / "c" / "manifest.json").write_text(json.dumps(manifest))
    assert checkpoint.verified_meta(tmp_path / "c") == {"step": 4}


def copy_checkpoint(source: Path, target: Path) -> None:
    import shutil

    shutil.rmtree(target / "checkpoint")
    shutil.copytree(source / "checkpoint", target / "checkpoint")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda out, other: copy_checkpoint(other, out), "is of a run with another config.json"),
        (lambda out, other: (out / "metrics.jsonl").write_bytes(b"x" * 9_999), "is not the file that its checkpoint covers"),
        (lambda out, other: (out / "metrics.jsonl").open("a").write("my notes\n"), "that this run did not write"),
        (lambda out, other: (out / "metrics.jsonl").open("a").write('{"step": 5}\n'), "that this run did not write"),
        (lambda out, other: __import__("shutil").rmtree(out / "checkpoint"), "had a checkpoint of step 10, but now there is none"),
        (lambda out, other: __import__("shutil").copytree(out / "old", out / "checkpoint", dirs_exist_ok=True), "but now it is of step 5"),
    ],
)  # fmt: skip
def test_a_run_directory_of_parts_that_do_not_belong_together_is_refused_untouched(tmp_path, monkeypatch, damage, said):
    import shutil

    out, other = tmp_path / "run", tmp_path / "other"
    save = runs.save

    def keeping(directory, tree, *, step, wall_s):
        save(directory, tree, step=step, wall_s=wall_s)
        if step == 5:
            shutil.copytree(directory / "checkpoint", directory / "old")

    with monkeypatch.context() as patch:
        patch.setattr(runs, "save", keeping)
        train(out)
    scan.run(ENV, AGENT, None, CONFIG, out=other, settings={"x": 1}, checkpoint_every_s=0.0, progress=False)
    damage(out, other)
    before = (out / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match=said):
        train(out)
    assert (out / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("name", [".lock", "config.json", "metrics.jsonl"])
def test_files_that_vanish_under_a_running_training_are_noticed(tmp_path, monkeypatch, name):
    append = runs.append_rows

    def vanish(directory, rows):
        append(directory, rows)
        (directory / name).unlink()

    monkeypatch.setattr(runs, "append_rows", vanish)
    with pytest.raises(UserError, match=rf"{re.escape(name)} was removed or changed while a training ran there"):
        train(tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint").exists()


# --- Full disks ----------------------------------------------------------------------------------------------------------


def fails_at(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """The n-th write to the disk finds it full; gives a list that grows with each."""
    real, count = os.fsync, []

    def fsync(handle):
        count.append(1)
        if len(count) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return count


def test_a_disk_that_is_full_at_any_write_is_one_sentence_and_the_same_command_continues(tmp_path):
    train(tmp_path / "unbroken")
    unbroken = checkpoint.load_arrays(tmp_path / "unbroken" / "checkpoint")
    for number in range(1, 100):
        out = tmp_path / str(number)
        with pytest.MonkeyPatch.context() as patch:
            count = fails_at(patch, number)
            try:
                train(out)
                assert len(count) < number
                break
            except UserError as error:
                assert "No space left on device" in str(error)
        assert not [file for file in out.rglob("*") if file.name.endswith(".draft")]
        train(out)
        arrays = checkpoint.load_arrays(out / "checkpoint")
        assert all(arrays[name].tobytes() == unbroken[name].tobytes() for name in unbroken)
        assert len(runs.read_rows(out)) == len(runs.read_rows(tmp_path / "unbroken"))
    assert number > 8  # pyright: ignore[reportPossiblyUnboundVariable]


def test_a_place_that_cannot_be_written_to_is_refused_before_anything_is_done(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file is a file, expected a directory"):
        disk.check_directory(tmp_path / "file")
    with pytest.raises(UserError, match="cannot be made"):
        disk.check_directory(Path("/proc/psiphi/run"))
    with pytest.raises(UserError, match="is a directory, expected the name of a file"):
        disk.check_file(tmp_path)
    disk.check_file(tmp_path / "new" / "file.gif")
    assert names(tmp_path) == ["file", "new"] and names(tmp_path / "new") == []


def test_a_killed_reproduction_leaves_no_worker():
    """A worker ends with its parent, however that ends."""
    code = (
        "import subprocess, sys, os, signal\n"
        "worker = subprocess.Popen([sys.executable, '-c', 'from psiphi.experiments import reproduce; import time; "
        "reproduce.end_with_parent(); print(1, flush=True); time.sleep(600)'], stdin=subprocess.PIPE, stdout=subprocess.PIPE,"
        " start_new_session=True)\n"
        "worker.stdout.readline()\n"
        "print(worker.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    worker = int(done.stdout)
    import time

    for _ in range(100):
        if not _runs(worker):
            return
        time.sleep(0.05)
    os.kill(worker, 9)
    raise AssertionError("the worker outlived its parent")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] not in "ZX"
    except OSError:
        return False


def test_every_training_has_the_flag_for_checkpoints():
    from psiphi.agents import ALGORITHMS
    from psiphi.cli import train

    assert all(train.parse(name, []).keeping.checkpoint_every_s == 30.0 for name in ALGORITHMS)
    assert train.parse("dqn", ["--checkpoint-every-s", "0"]).keeping.checkpoint_every_s == 0.0


@pytest.mark.parametrize(("written", "left"), [([], []), (["a/note"], ["a", "a/note"])])
def test_what_is_refused_leaves_no_directory_that_was_made_for_it(tmp_path, written, left):
    with pytest.raises(UserError, match="no"), disk.left_alone(tmp_path / "a" / "b" / "c"):
        disk.make_directory(tmp_path / "a" / "b" / "c")
        for name in written:
            (tmp_path / name).write_text("kept")
        raise UserError("no")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == left
