"""A run's directory: what was asked (config.json), what came out (metrics.jsonl), where it stands (checkpoint/).

Whatever moment a process dies at, the directory can be continued. Rows go to metrics.jsonl before the checkpoint that covers
them, and the checkpoint says how long the file then was: rows a killed run wrote later are cut off and written again.
"""

import contextlib
import json
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from psiphi import checkpoint
from psiphi.errors import UserError

CONFIG, METRICS, CHECKPOINT = "config.json", "metrics.jsonl", "checkpoint"

Row = dict[str, Any]
"""One line of metrics.jsonl: step, env_steps, seed, wall_s, then the figures by name."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM stopped a run after it had put down where it stands. `exit_code` is the shell's convention, 128 + signal."""

    def __init__(self, signum: int):
        super().__init__("interrupted; run the same command to continue")
        self.exit_code = 128 + signum


class Position(NamedTuple):
    """Where a directory's run stands: the step and seconds it had at its checkpoint, and the rows up to there."""

    step: int
    wall_s: float
    rows: list[Row]
    made_with: dict[str, Any]
    """What the checkpoint was computed with; another version or thread count may round differently."""


@contextlib.contextmanager
def opened(directory: Path, config: dict[str, Any]) -> Iterator[None]:
    """Hold a run directory for this process alone; make it, or check that it was made for the same config."""
    _make(directory)
    with _locked(directory):
        _check_config(directory, json.loads(json.dumps(config)))
        yield


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], int | None]]:
    """Within the block, the first Ctrl-C or SIGTERM is only remembered (the yielded function tells which); a second one ends the process.

    Only a main thread can catch signals; elsewhere, and for a signal the process was told to ignore, nothing changes.
    """
    caught: list[int] = []

    def remember(signum: int, _frame: Any) -> None:
        caught.append(signum)
        signal.signal(signum, signal.SIG_DFL)

    wanted = [signal.SIGINT, signal.SIGTERM] if threading.current_thread() is threading.main_thread() else []
    before = {signum: signal.getsignal(signum) for signum in wanted if signal.getsignal(signum) is not signal.SIG_IGN}
    for signum in before:
        signal.signal(signum, remember)
    try:
        yield lambda: caught[0] if caught else None
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def append_rows(directory: Path, rows: list[Row]) -> None:
    """Add lines to metrics.jsonl, down to the disk: the checkpoint that follows relies on them."""
    with open(directory / METRICS, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        file.flush()
        os.fsync(file.fileno())


def save(directory: Path, tree: Any, *, step: int, wall_s: float) -> None:
    """Put down a checkpoint that covers all rows written so far, in place of the one before it."""
    metrics = directory / METRICS
    length = metrics.stat().st_size if metrics.exists() else 0
    checkpoint.save(directory / CHECKPOINT, tree, meta={"step": step, "wall_s": wall_s, "metrics_bytes": length, "made_with": made_with()})


def rewind(directory: Path) -> Position | None:
    """Cut metrics.jsonl back to the checkpoint and say where that is; without a checkpoint, back to nothing."""
    if not _has_checkpoint(directory):
        _cut(directory / METRICS, 0)
        return None
    meta = checkpoint.read_meta(directory / CHECKPOINT)
    _cut(directory / METRICS, meta["metrics_bytes"])
    return Position(meta["step"], meta["wall_s"], read_rows(directory), meta["made_with"])


def restore(directory: Path, like: Any) -> Any:
    """The checkpoint's arrays in the structure of `like` (arrays or shapes)."""
    return checkpoint.load(directory / CHECKPOINT, like)


def read_rows(directory: Path) -> list[Row]:
    """The rows of metrics.jsonl; a last line that a dying process left unfinished is not a row."""
    path = directory / METRICS
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


def figures(metrics: dict[str, Any]) -> Row:
    """Arrays as JSON values. JSON has no word for what is not finite: null."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(x) for x in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {name: plain(np.asarray(value).tolist()) for name, value in metrics.items()}


def made_with() -> dict[str, Any]:
    """What decides how floating-point numbers round, besides the program: same here, same bits."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"jax": jax.__version__, "device": jax.devices()[0].device_kind, "threads": os.environ.get("NPROC", str(threads))}


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The run directory {directory} cannot be made: {error.strerror}.") from error


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """The system frees the lock when the process ends, however it ends. Where there is no flock, nobody checks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(directory / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"Another process is running in {directory}; wait for it or choose another directory.") from error
        yield


def _check_config(directory: Path, config: dict[str, Any]) -> None:
    path = directory / CONFIG
    if not path.exists():
        if _has_checkpoint(directory) or (directory / METRICS).exists():
            raise UserError(f"{directory} holds a run but no config.json that says which; choose another directory.")
        _write(path, json.dumps(config, indent=2) + "\n")
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not readable as JSON; choose another directory or restore the file.") from error
    difference = _first_difference(found, config)
    if difference:
        name, old, new = difference
        raise UserError(
            f"{directory} holds a run with {name} = {old}, but {new} was asked for; choose another directory or the same settings."
        )


def _first_difference(old: Any, new: Any, name: str = "") -> tuple[str, str, str] | None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            where = f"{name}.{key}" if name else key
            if key not in old or key not in new:
                return where, json.dumps(old[key]) if key in old else "nothing", json.dumps(new[key]) if key in new else "nothing"
            difference = _first_difference(old[key], new[key], where)
            if difference:
                return difference
        return None
    return None if old == new else (name, json.dumps(old), json.dumps(new))


def _has_checkpoint(directory: Path) -> bool:
    """Whether there is a whole one: a process that died in its first save leaves a directory without a manifest."""
    return (directory / CHECKPOINT / "manifest.json").exists()


def _cut(path: Path, length: int) -> None:
    found = path.stat().st_size if path.exists() else 0
    if found < length:
        raise UserError(f"{path} has {found} bytes, but its checkpoint covers {length}; restore the file or choose another directory.")
    if found > length:
        os.truncate(path, length)


def _write(path: Path, text: str) -> None:
    """All of it or nothing."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
