"""A run's directory: what was asked (config.json), what came out (metrics.jsonl), where it stands (checkpoint/).

Whatever moment a process dies at, the directory can be continued. Rows go to metrics.jsonl before the checkpoint that covers
them, and the checkpoint says how long the file then was: rows a killed run wrote later are cut off and written again.

What is in a directory belongs together, and is refused where it does not: the checkpoint carries the hash of the config and of the rows it
covers, and the lock file remembers the step of the last checkpoint.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from psiphi import checkpoint, disk, limits
from psiphi.errors import UserError

CONFIG, METRICS, CHECKPOINT, LOCK = "config.json", "metrics.jsonl", "checkpoint", ".lock"

Row = dict[str, Any]
"""One line of metrics.jsonl: step, env_steps, seed, wall_s, then the figures by name."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM stopped a run after it had put down where it stands. `exit_code` is the shell's convention, 128 + signal."""

    def __init__(self, signum: int):
        super().__init__("interrupted; run the same command to continue")
        self.exit_code = 128 + signum


class BusyError(UserError):
    """Another process is running in a directory."""


class Position(NamedTuple):
    """Where a directory's run stands: the step and seconds it had at its checkpoint, and the rows up to there."""

    step: int
    wall_s: float
    rows: list[Row]
    made_with: dict[str, Any]
    """What the checkpoint was computed with; another version or thread count may round differently."""


class _Held:
    """A directory that this process runs in: its lock, and the rows as they should be."""

    def __init__(self, path: Path, lock: Any):
        self.path, self.lock = path, lock
        self.rows = hashlib.sha256()
        self.length: int | None = None
        """Bytes of metrics.jsonl; None until it was read."""


_HELD: dict[Path, _Held] = {}
"""The directories that this process runs in."""


@contextlib.contextmanager
def opened(directory: Path, config: dict[str, Any]) -> Iterator[None]:
    """Hold a run directory for this process alone; make it, or check that it was made for the same config."""
    disk.make_directory(directory)
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


SPARING, SLOW_S = 40, 0.75
"""After a checkpoint that took longer than this, so many times as long passes before the next: a replay of pictures is large. With 30
seconds between others, checkpoints take less than 3 % of the time."""


def pause_after(took: float) -> float:
    """Seconds before the next checkpoint, after one that took so long."""
    return SPARING * took if took > SLOW_S else 0.0


class Stretched(NamedTuple):
    """Where a training that goes by stretches ended, its rows, and the seconds that processes before this one had put down."""

    state: Any
    rows: list[Row]
    earlier_s: float


def by_stretches(
    settings: dict[str, Any],
    begin: Callable[[], Any],
    stretch: Callable[[Any, int], tuple[Any, int, Row]],
    total: int,
    *,
    out: Path | None = None,
    checkpoint_every_s: float = 30.0,
) -> Stretched:
    """A training with a loop of its own, kept in the directory `out` as the loops keep theirs: what was interrupted continues there.

    ``stretch(state, done) -> state, done, figures`` goes on for a while; it depends on nothing else. `begin` can be traced.
    """
    state, rows, done = None, [], 0
    if out is None:
        state = strong(begin())
        while done < total:
            state, done, figures = stretch(state, done)
            rows.append({"step": done, **figures})
        return Stretched(state, rows, 0.0)
    with opened(out, settings), stoppable() as stop:
        position, started = rewind(out), time.monotonic()
        done, earlier_s, rows = (position.step, position.wall_s, position.rows) if position else (0, 0.0, [])
        state = restore(out, jax.eval_shape(begin)) if position else strong(begin())
        saved, pause = started, 0.0
        while done < total:
            state, done, figures = stretch(state, done)
            rows.append({"step": done, **figures})
            append_rows(out, rows[-1:])
            signum, now = stop(), time.monotonic()
            if signum is not None or done >= total or now - saved >= max(checkpoint_every_s, pause):
                save(out, state, step=done, wall_s=earlier_s + now - started)
                saved = time.monotonic()
                pause = pause_after(saved - now)
            if signum is not None:
                raise Interrupted(signum)
        return Stretched(state, rows, earlier_s)


def strong(tree: Any) -> Any:
    """The same without JAX's weak types (``1.0 - x`` may have one): a checkpoint loses them, then what continues is another program."""

    def one(x: jax.Array) -> jax.Array:
        return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else jax.lax.convert_element_type(x, x.dtype)

    return jax.tree.map(lambda x: one(jnp.asarray(x)), tree)


def append_rows(directory: Path, rows: list[Row]) -> None:
    """Add lines to metrics.jsonl, down to the disk: the checkpoint that follows relies on them."""
    data = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
    held = _undisturbed(directory)
    length = disk.append(directory / METRICS, data)
    if held and held.length is not None:
        held.rows.update(data)
        held.length = length


def save(directory: Path, tree: Any, *, step: int, wall_s: float) -> None:
    """Put down a checkpoint that covers all rows written so far, in place of the one before it."""
    held = _undisturbed(directory)
    if held and held.length is not None:
        covered = {"metrics_bytes": held.length, "metrics_sha256": held.rows.hexdigest()}
    else:
        data = _rows_file(directory)
        covered = {"metrics_bytes": len(data), "metrics_sha256": hashlib.sha256(data).hexdigest()}
    meta = {"step": step, "wall_s": wall_s, **covered, "config_sha256": _config_hash(directory), "made_with": made_with()}
    checkpoint.save(directory / CHECKPOINT, tree, meta=meta)
    if held:
        _remember(held, step)


def rewind(directory: Path) -> Position | None:
    """Cut metrics.jsonl back to the checkpoint and say where that is; without a checkpoint, back to nothing.

    Nothing is cut before it is known that the directory belongs together and that what is cut was written after the checkpoint.
    """
    disk.refuse_link(directory / CHECKPOINT)
    meta = _checked_meta(directory) if _has_checkpoint(directory) else None
    last, step, covered = _remembered(directory), -1 if meta is None else meta["step"], 0 if meta is None else meta["metrics_bytes"]
    if last > step:
        found = "there is none" if meta is None else f"it is of step {step}"
        raise UserError(
            f"{directory} had a checkpoint of step {last}, but now {found}, and the rows since then would be cut off; "
            f"restore {CHECKPOINT} or choose another directory."
        )
    data = _rows_file(directory)
    path = directory / METRICS
    if len(data) < covered:
        raise UserError(f"{path} has {len(data)} bytes, but its checkpoint covers {covered}; restore the file or choose another directory.")
    rows = hashlib.sha256(data[:covered])
    if meta is not None and meta.get("metrics_sha256", rows.hexdigest()) != rows.hexdigest():
        raise UserError(f"{path} is not the file that its checkpoint covers; restore it or choose another directory.")
    _check_tail(path, data[covered:], step)
    if len(data) > covered:
        disk.cut(path, covered)
    if held := _HELD.get(directory.absolute()):
        held.rows, held.length = rows, covered
    if meta is None:
        return None
    return Position(step, meta["wall_s"], _parsed_rows(path, data[:covered]), meta["made_with"])


def restore(directory: Path, like: Any) -> Any:
    """The checkpoint's arrays in the structure of `like` (arrays or shapes)."""
    return checkpoint.load(directory / CHECKPOINT, like)


def read_rows(directory: Path, length: int | None = None) -> list[Row]:
    """The rows of metrics.jsonl, or of its first bytes; a last line that a dying process left unfinished is not a row."""
    return _parsed_rows(directory / METRICS, _rows_file(directory)[:length])


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


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """The system frees the lock when the process ends, however it ends. Where there is no flock, it is not checked."""
    with disk.lock_file(directory / LOCK) as file:
        with contextlib.suppress(ImportError):
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BusyError(f"Another process is running in {directory}; wait for it or choose another directory.") from error
        _HELD[directory.absolute()] = _Held(directory / LOCK, file)
        try:
            yield
        finally:
            del _HELD[directory.absolute()]


def _undisturbed(directory: Path) -> _Held | None:
    """What this process holds of a directory, if it does; files that were removed or replaced under a running training are noticed."""
    held = _HELD.get(directory.absolute())
    if held is None:
        return None
    try:
        same = os.path.samestat(os.stat(directory / LOCK, follow_symlinks=False), os.fstat(held.lock.fileno()))
    except OSError:
        same = False
    changed = [LOCK] * (not same) + [CONFIG] * (not (directory / CONFIG).is_file())
    if same and held.length is not None and disk.length(directory / METRICS) != held.length:
        changed.append(METRICS)
    if changed:
        raise UserError(f"{directory / changed[0]} was removed or changed while a training ran there, expected it to be left alone.")
    return held


def _remember(held: _Held, step: int) -> None:
    """The step of the last checkpoint, in the lock file: one that is older, or none, is then not taken for the last."""
    with disk.sentences(held.path, "written"):
        held.lock.seek(0)
        held.lock.write(f"{step:<20}\n".encode())  # of fixed length: a single write that needs no truncation
        held.lock.flush()


def _remembered(directory: Path) -> int:
    """That step; -1 if there was none yet."""
    with contextlib.suppress(FileNotFoundError, UserError):
        text = disk.read(directory / LOCK, 64).strip()
        return int(text) if text.isdigit() else -1
    return -1


def _checked_meta(directory: Path) -> dict[str, Any]:
    """What the checkpoint says of itself, if it is whole and of this run."""
    path = directory / CHECKPOINT
    meta = checkpoint.verified_meta(path)
    kinds = {"step": int, "wall_s": int | float, "metrics_bytes": int, "made_with": dict}
    wrong = [name for name, kind in kinds.items() if not isinstance(meta.get(name), kind)]
    if wrong or meta["step"] < 0 or meta["metrics_bytes"] < 0 or not math.isfinite(meta["wall_s"]):
        raise UserError(f"Checkpoint {path} does not say where a run stands; expected one that a training left.")
    if meta.get("config_sha256", config := _config_hash(directory)) != config:
        raise UserError(f"Checkpoint {path} is of a run with another {CONFIG}; restore what belongs together or choose another directory.")
    return meta


def _config_hash(directory: Path) -> str:
    """Of what config.json says, however it is laid out."""
    try:
        found = disk.read_json(directory / CONFIG)
    except FileNotFoundError:
        return ""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _rows_file(directory: Path) -> bytes:
    path = directory / METRICS
    limits.check_memory(path, 4 * disk.length(path))
    try:
        return disk.read(path, limits.MOST_ROWS_BYTES)
    except FileNotFoundError:
        return b""


def _parsed_rows(path: Path, data: bytes) -> list[Row]:
    rows = [disk.parsed(line, f"{path}, line {i}") for i, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1)]
    if not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path} is damaged: a line is not a row of figures by name.")
    return rows


def _check_tail(path: Path, data: bytes, step: int) -> None:
    """What is about to be cut must be rows that this run wrote after the step; its last line may be unfinished."""
    try:
        strange = any(type(row.get("step")) is not int or row["step"] <= step for row in _parsed_rows(path, data))
    except UserError:
        strange = True
    if strange:
        after = "that no checkpoint covers" if step < 0 else f"after its checkpoint of step {step}"
        raise UserError(f"{path} has lines {after} that this run did not write and that would be cut off; move the file away first.")


def _check_config(directory: Path, config: dict[str, Any]) -> None:
    path = directory / CONFIG
    if not os.path.lexists(path):
        if _has_checkpoint(directory) or (directory / METRICS).exists():
            raise UserError(f"{directory} holds a run but no config.json that says which; choose another directory.")
        disk.remove_drafts(directory, re.compile(re.escape(CONFIG)))
        disk.write(path, (json.dumps(config, indent=2) + "\n").encode())
        return
    try:
        found = json.loads(disk.read(path, limits.MOST_JSON_BYTES))
    except (ValueError, RecursionError) as error:
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
