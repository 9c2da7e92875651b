"""What a run writes to metrics.jsonl, shown in TensorBoard, Weights & Biases or Trackio as well.

metrics.jsonl is the truth, and a tracker follows it. It is sent only rows that a checkpoint covers, since later ones may be cut off and
written again, and of these only steps that it does not have yet, which it is asked for when a run begins or continues. So a kill at any
moment loses no value and doubles none. A tracker that fails is told of and does not stop the training; the next one continues there.
"""

import contextlib
import glob
import importlib
import json
import math
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from psiphi import checkpoint, disk, printable
from psiphi.errors import UserError
from psiphi.loops import runs

Kind = Literal["none", "tensorboard", "wandb", "trackio"]
EVERY_S = 5.0
"""Seconds between two looks at the file."""
PROJECT = "psiphi"
STATE = "tracking.json"
"""What names a run to trackers that keep it elsewhere; in the run's directory."""
MOST_ENTRIES = 64
"""Of a figure that is a list; a longer one is left out."""


@runtime_checkable
class Tracker(Protocol):
    """What a tool must be able to do."""

    last: int
    """The last step that it has; -1 if none."""

    def send(self, step: int, values: dict[str, float]) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


# --- One class for each tool ---------------------------------------------------------------------------------------------


class TensorBoard:
    """Event files in the run's directory. A step is one record with a checksum: it is there as a whole or not at all."""

    def __init__(self, directory: Path, name: str, config: dict[str, Any]):
        reading = _imported("tensorboard", "tensorboard.backend.event_processing.event_file_loader")
        writing = _imported("tensorboard", "tensorboard.summary.writer.event_file_writer")
        self._event = _imported("tensorboard", "tensorboard.compat.proto.event_pb2").Event
        self._summary = _imported("tensorboard", "tensorboard.compat.proto.summary_pb2").Summary
        logs = directory / "tensorboard"
        self.last = -1
        for file in glob.glob(f"{glob.escape(str(logs))}/events.out.tfevents.*"):
            for data in reading.RawEventFileLoader(file).Load():
                event = self._event.FromString(data)
                self.last = max(self.last, event.step if event.HasField("summary") else -1)
        self._writer = writing.EventFileWriter(str(logs))

    def send(self, step: int, values: dict[str, float]) -> None:
        figures = [self._summary.Value(tag=name, simple_value=x) for name, x in values.items()]
        self._writer.add_event(self._event(step=step, wall_time=time.time(), summary=self._summary(value=figures)))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A run of Weights & Biases. On its server the last step is known; offline, what a process left that did not end is written anew."""

    def __init__(self, directory: Path, name: str, config: dict[str, Any]):
        wandb = _imported("wandb", "wandb")
        mine = _identity(directory)
        if wandb.setup().settings.mode == "offline":
            for left in glob.glob(f"{glob.escape(str(directory))}/wandb/offline-run-*-{mine}"):
                shutil.rmtree(left)
        try:
            self._run = wandb.init(project=PROJECT, name=name, id=mine, dir=directory, config=config, resume="allow", settings=_QUIET)
        except (wandb.Error, OSError) as error:
            raise UserError(
                f"Weights & Biases cannot be reached ({printable.sentence(error)}); expected a login (wandb login) or WANDB_MODE=offline."
            ) from error
        self.last = self._run.step - 1 if self._run.resumed else -1

    def send(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step, commit=True)

    def flush(self) -> None:
        """It sends by itself."""

    def close(self) -> None:
        self._run.finish()


_QUIET = {"silent": True, "console": "off", "x_disable_stats": True, "disable_git": True, "x_disable_meta": True, "disable_code": True}
"""Nothing but what the run itself says is sent."""


class Trackio:
    """A run in Trackio's database on this machine. A step is a row of a transaction."""

    def __init__(self, directory: Path, name: str, config: dict[str, Any]):
        self._trackio = trackio = _imported("trackio", "trackio")
        mine = f"{name}-{_identity(directory)}"
        with contextlib.redirect_stdout(sys.stderr):
            quiet = {"auto_log_gpu": False, "auto_log_cpu": False, "embed": False}
            self._run = trackio.init(project=PROJECT, name=mine, config=config, resume="allow", **quiet)
        self.last = -1 if (found := trackio.SQLiteStorage.get_max_step_for_run(PROJECT, mine)) is None else int(found)

    def send(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def flush(self) -> None:
        """It sends by itself."""

    def close(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self._trackio.finish()  # the run's own method would be called once more at exit, and speak to stdout


TRACKERS: dict[str, Callable[[Path, str, dict[str, Any]], Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}


def _imported(name: str, module: str) -> Any:
    """A module of a tool's."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"--track {name} needs {name}, expected it to be installed: pip install 'psiphi[{name}]'.") from error


def _identity(directory: Path) -> str:
    """A name that no other run has, and that this one keeps."""
    path = directory / STATE
    with contextlib.suppress(FileNotFoundError):
        found = disk.read_json(path)
        if isinstance(found, dict) and isinstance(found.get("id"), str) and found["id"].isalnum():
            return found["id"]
        raise UserError(f"{path} does not name a run, expected what psiphi wrote there.")
    made = secrets.token_hex(4)
    disk.write(path, json.dumps({"id": made}).encode())
    return made


# --- Following -----------------------------------------------------------------------------------------------------------


def covered(directory: Path) -> list[runs.Row]:
    """The rows that the last checkpoint covers: these stay as they are."""
    try:
        length = checkpoint.read_meta(directory / runs.CHECKPOINT).get("metrics_bytes")
    except UserError:  # there is none yet
        return []
    return runs.read_rows(directory, length) if isinstance(length, int) else []


def by_step(rows: list[runs.Row]) -> dict[int, dict[str, float]]:
    """The figures of each step by name; where a run has several seeds, each is named."""
    several = len({row.get("seed") for row in rows}) > 1
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        named = {f"seed {row['seed']}/{name}" if several else name: x for name, x in row.items() if name not in ("step", "seed")}
        found.setdefault(row["step"], {}).update(_numbers(named))
    return found


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    """Figures as numbers: what is not finite is NaN, a list is one figure for each entry."""
    found: dict[str, float] = {}
    for name, x in row.items():
        if isinstance(x, list):
            found |= _numbers({f"{name}/{i}": entry for i, entry in enumerate(x)}) if len(x) <= MOST_ENTRIES else {}
        elif x is None or isinstance(x, int | float):
            found[name] = math.nan if x is None else float(x)
    return found


def catch_up(tracker: Tracker, directory: Path) -> None:
    """Send what it does not have yet."""
    for step, values in by_step(covered(directory)).items():
        if step > tracker.last:
            tracker.send(step, values)
            tracker.last = step
    tracker.flush()


@contextlib.contextmanager
def following(kind: Kind, directory: Path, config: dict[str, Any]) -> Iterator[None]:
    """Within the block, a tracker follows the run in a directory."""
    if kind == "none":
        yield
        return
    tracker = TRACKERS[kind](directory, directory.absolute().name, config)
    over, told = threading.Event(), threading.Event()

    def follow(last: bool) -> None:
        if told.is_set():
            return
        try:
            catch_up(tracker, directory)
            if last:
                tracker.close()
        except Exception as error:  # whatever a tracker may do, the training goes on
            told.set()
            words = printable.sentence(f"{kind} failed ({type(error).__name__}: {error}); the training goes on without it.")
            print(f"psiphi: {words}", file=sys.stderr)

    def watch() -> None:
        while not over.wait(EVERY_S):
            follow(last=False)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        follow(last=True)
