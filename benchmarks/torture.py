"""Is a run that is killed again and again the unbroken run? And does every failed write leave a directory that can be continued?

    python benchmarks/torture.py kills [--kills 208] [--algorithms dqn ...] [--seconds 900] [--out results/survival]
    python benchmarks/torture.py faults [--out results/survival]
    python benchmarks/torture.py cost [--seconds 95] [--out results/survival]

`kills`: every algorithm in both loops (a small CoinGrid, compiled, and CartPole, Gymnasium's) is trained once unbroken. Then it is trained
again while it is killed by SIGKILL at random moments, every third time while a checkpoint is being written, and started again until it is
over. What must be equal: the sha256 of the last checkpoint's arrays, and metrics.jsonl but for `wall_s`. A kill counts as "in a
checkpoint" only if the process had said that it begins to write one and not that it is done.

`faults`: a directory is written as a run writes it, and the n-th call that changes the disk (open, write, fsync, truncate, rename, unlink,
mkdir, rmtree) fails, for every n: with an error; with the end of the process before it, after it, and, of a write, half-way. Then the
directory is continued. It must load, and hold exactly the rows and arrays of the step that it says it is at.

`cost`: the share of the training time that checkpoints take at the default interval, with a replay in the state and one that is stored
beside it.

Processes are forked from one that has imported everything and computed nothing. Each command adds lines to a file of its name.
"""

import argparse
import builtins
import contextlib
import dataclasses
import hashlib
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import tiny  # pyright: ignore[reportMissingImports]
from psiphi import checkpoint, disk, training
from psiphi.agents import ALGORITHMS
from psiphi.errors import UserError
from psiphi.experiments import cells
from psiphi.loops import runs

LOOPS = {"compiled": "coingrid", "gymnasium": "CartPole-v1"}
SEED = 5


def origin() -> dict[str, Any]:
    command = " ".join(["python", "benchmarks/torture.py", *sys.argv[1:]])
    return {"seed": SEED, "command": command, "commit": cells.commit(), "versions": cells.versions()}


def keep(out: Path, name: str, row: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with open(out / f"torture-{name}.jsonl", "a") as file:
        file.write(json.dumps(row | origin()) + "\n")


# --- Kills ---------------------------------------------------------------------------------------------------------------


def run_of(algorithm: str, env: str, demos: str) -> training.Run:
    """Twelve chunks or so, each of which leaves a row and a checkpoint; smaller than that nothing could be killed in its middle."""
    made = tiny.run(algorithm, env, seed=SEED)
    if env != "coingrid":
        made = dataclasses.replace(made, demos=demos if ALGORITHMS[algorithm].watches(made.agent) else "none")
    length = {"steps": 240, "updates": 0} if made.steps else {"steps": 0, "updates": 48}
    return dataclasses.replace(made, **length, evaluate_every=16 if made.steps else 4)


def child(work: Callable[[int], None]) -> tuple[int, int]:
    """A process that does the work, and the end of a pipe from which its letters come."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    code = 1
    try:
        os.close(read)
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
        work(write)
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def trained(run: training.Run, out: Path, write: int) -> None:
    """Train with a checkpoint after every chunk; says r for a row, s and e for the beginning and end of a checkpoint."""
    save, append = checkpoint.save, runs.append_rows

    def telling(*args: Any, **kwargs: Any) -> None:
        os.write(write, b"s")
        save(*args, **kwargs)
        os.write(write, b"e")

    def appended(*args: Any) -> None:
        append(*args)
        os.write(write, b"r")

    checkpoint.save, runs.append_rows = telling, appended
    training.train(run, out=out, progress=False, checkpoint_every_s=0.0)


def outcome(out: Path) -> tuple[str, str]:
    """Hashes of the last state and of the rows, without the seconds."""
    arrays = checkpoint.load_arrays(out / runs.CHECKPOINT)
    state = hashlib.sha256()
    for name in sorted(arrays):
        state.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode() + arrays[name].tobytes())
    rows = [{name: x for name, x in row.items() if name != "wall_s"} for row in runs.read_rows(out)]
    return state.hexdigest(), hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def life(run: training.Run, out: Path, draw: random.Random, saving: bool) -> str:
    """One life of the run, killed at a random moment: "over" if it ended before, "saving" or "between" otherwise."""
    pid, read = child(lambda write: trained(run, out, write))
    letters, said = 1 + draw.randrange(6), b""
    wanted = b"s" if saving else b"rse"
    try:
        while True:
            new = os.read(read, 1)
            said += new
            letters -= bool(new) and new in wanted
            if not new or letters <= 0:
                break
        if new:
            # A checkpoint this small takes about a millisecond; a chunk some.
            select.select([read], [], [], draw.uniform(0, 0.001) if saving else draw.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
        while new := os.read(read, 64):
            said += new
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(read)
    if os.WIFEXITED(status):
        if os.WEXITSTATUS(status):
            raise SystemExit(f"{run.algorithm} on {run.env} could not be continued.")
        return "over"
    return "saving" if said.rfind(b"s") > said.rfind(b"e") else "between"


def kills(wanted: int, algorithms: list[str], seconds: float, out: Path) -> None:
    """One algorithm and loop after the other, each killed equally often."""
    started, draw, total = time.monotonic(), random.Random(SEED), {"between": 0, "saving": 0}
    with tempfile.TemporaryDirectory() as made:
        demos = Path(made) / "cartpole.npz"
        pid, read = child(lambda _: tiny.cartpole(demos) and None)
        os.waitpid(pid, 0)
        os.close(read)
        cases = [(algorithm, loop) for algorithm in algorithms for loop in LOOPS]
        each = -(-wanted // len(cases))
        for algorithm, loop in cases:
            if time.monotonic() - started > seconds:
                break
            run = run_of(algorithm, LOOPS[loop], str(demos))
            whole, broken = Path(made) / f"{algorithm}-{loop}-whole", Path(made) / f"{algorithm}-{loop}"
            began = time.monotonic()
            if life_unbroken(run, whole) != 0:
                raise SystemExit(f"{algorithm} on {run.env} could not be trained.")
            unbroken_s = time.monotonic() - began
            if time.monotonic() - started > seconds:
                break
            count, equal, finished = {"between": 0, "saving": 0}, True, 0
            began = time.monotonic()
            while sum(count.values()) < each and time.monotonic() - started <= seconds:
                ended = life(run, broken, draw, saving=(sum(count.values()) % 3 == 2))
                if ended == "over":
                    equal &= outcome(broken) == outcome(whole)
                    finished += 1
                    shutil.rmtree(broken)
                else:
                    count[ended] += 1
            if life_unbroken(run, broken) != 0:
                raise SystemExit(f"{algorithm} on {run.env} could not be continued.")
            equal &= outcome(broken) == outcome(whole)
            finished += 1
            total = {name: total[name] + count[name] for name in total}
            row = {"algorithm": algorithm, "loop": loop, "kills": sum(count.values()), "in_a_checkpoint": count["saving"], "runs": finished}
            row |= {
                "equal": equal,
                "state_sha256": outcome(whole)[0],
                "unbroken_s": round(unbroken_s, 1),
                "seconds": round(time.monotonic() - began, 1),
            }
            print(
                json.dumps({name: row[name] for name in ("algorithm", "loop", "kills", "in_a_checkpoint", "equal", "seconds")}), flush=True
            )
            keep(out, "kills", row)
    print(f"{sum(total.values())} kills, {total['saving']} of them in a checkpoint, in {time.monotonic() - started:.0f} s")


def life_unbroken(run: training.Run, out: Path) -> int:
    """A run to its end; gives the exit status."""
    pid, read = child(lambda write: trained(run, out, write))
    while os.read(read, 64):
        pass
    os.close(read)
    return os.waitpid(pid, 0)[1]


# --- Faults --------------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """Stands for a process that ends at this very place: nothing that comes after it happens."""


class Faults:
    """Counts the calls that change the disk, and lets one of them go wrong."""

    def __init__(self, number: int | None, kind: str):
        self.number, self.kind, self.calls, self.dead = number, kind, 0, False

    def at(self, act: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        if self.dead:
            raise Crash
        self.calls += 1
        if self.calls - 1 != self.number:
            return act()
        if self.kind == "error":
            raise OSError(5, "Input/output error")
        self.dead = True
        if self.kind == "after":
            act()
        if self.kind == "half" and half is not None:
            half()
        raise Crash

    def file(self, file: Any) -> Any:
        return _File(file, self)


class _File:
    """A file whose writes count."""

    def __init__(self, file: Any, faults: Faults):
        self._file, self._faults = file, faults

    def write(self, data: Any) -> Any:
        def half() -> None:
            self._file.write(bytes(data)[: len(data) // 2])
            self._file.flush()

        return self._faults.at(lambda: self._file.write(data), half)

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextlib.contextmanager
def failing(faults: Faults) -> Iterator[None]:
    """Within the block the calls of `disk` and of whoever it calls are counted and may fail."""
    kept = {name: getattr(os, name) for name in ("replace", "rename", "fsync", "ftruncate", "unlink", "mkdir", "fdopen", "open")}
    rmtree = shutil.rmtree

    def patched(name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: faults.at(lambda: kept[name](*args, **kwargs))

    def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        changes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        return faults.at(lambda: kept["open"](path, flags, *args, **kwargs)) if changes else kept["open"](path, flags, *args, **kwargs)

    def plain(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if "w" not in mode:
            return builtins.open(path, mode, *args, **kwargs)
        return faults.file(faults.at(lambda: builtins.open(path, mode, *args, **kwargs)))

    for name in ("replace", "rename", "fsync", "ftruncate", "unlink", "mkdir"):
        setattr(os, name, patched(name))
    os.open = opened
    os.fdopen = lambda handle, mode="r", *args, **kwargs: (
        kept["fdopen"](handle, mode, *args, **kwargs) if mode == "rb" else faults.file(kept["fdopen"](handle, mode, *args, **kwargs))
    )
    shutil.rmtree = lambda *args, **kwargs: faults.at(lambda: rmtree(*args, **kwargs))
    disk.open = plain  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        for name, call in kept.items():
            setattr(os, name, call)
        shutil.rmtree = rmtree
        del disk.open  # pyright: ignore[reportAttributeAccessIssue]


def tree(step: int) -> dict[str, Any]:
    """The state at a step: a small array, and a large one of which a part changes."""
    large = np.zeros((64, 64), np.float32)
    large[: step * 8] = np.arange(step * 8, dtype=np.float32)[:, None]
    return {"step": np.int64(step), "small": np.arange(7, dtype=np.float32) * step, "large": large}


def row_of(step: int) -> dict[str, Any]:
    return {"step": step, "figure": step / 3}


STEPS = 4


def written(directory: Path) -> None:
    """What a run does with its directory, from where it stands to the end."""
    with runs.opened(directory, {"run": "torture"}):
        position = runs.rewind(directory)
        for step in range((position.step if position else 0) + 1, STEPS + 1):
            runs.append_rows(directory, [row_of(step)])
            runs.save(directory, tree(step), step=step, wall_s=0.0)


def verdict(directory: Path) -> str:
    """Of a directory after a fault: continued to its end it must be as if nothing had been."""
    try:
        with runs.opened(directory, {"run": "torture"}):
            position = runs.rewind(directory)
            if position is not None:
                found = runs.restore(directory, tree(0))
                right = tree(position.step)
                if position.rows != [row_of(step) for step in range(1, position.step + 1)]:
                    return "wrong"
                if any(np.asarray(found[name]).tobytes() != np.asarray(right[name]).tobytes() for name in right):
                    return "wrong"
        written(directory)
        found = runs.restore(directory, tree(0))
        whole = all(np.asarray(found[name]).tobytes() == np.asarray(x).tobytes() for name, x in tree(STEPS).items())
        return "right" if whole and runs.read_rows(directory) == [row_of(step) for step in range(1, STEPS + 1)] else "wrong"
    except UserError as error:
        print(f"unloadable: {error}", file=sys.stderr)
        return "unloadable"


def faults(out: Path) -> None:
    """Every boundary of every kind."""
    checkpoint.LARGE = 4096  # so that the large array has files of its own
    with tempfile.TemporaryDirectory() as made:
        counter = Faults(None, "")
        with failing(counter):
            written(Path(made) / "whole")
        for kind in ("error", "before", "after", "half"):
            count: dict[str, int] = {"right": 0, "wrong": 0, "unloadable": 0}
            told = 0
            for number in range(counter.calls):
                directory = Path(made) / f"{kind}-{number}"
                broken = Faults(number, kind)
                try:
                    with failing(broken):
                        written(directory)
                except (Crash, UserError, OSError):
                    told += 1
                count[verdict(directory)] += 1
                shutil.rmtree(directory)
            row = {"kind": kind, "boundaries": counter.calls, "stopped": told, **count}
            print(json.dumps(row), flush=True)
            keep(out, "faults", row)


# --- Cost ----------------------------------------------------------------------------------------------------------------


def cost(seconds: float, out: Path) -> None:
    """Train for so long at the default interval; a process for each, as memory of the one must not be the other's."""
    for name, changes in (("in the state", {}), ("beside it", {"agent.replay_size": 200_000})):
        pid, read = child(lambda write, name=name, changes=changes: _cost(name, changes, seconds, out))
        os.read(read, 1)
        os.close(read)
        if os.waitpid(pid, 0)[1]:
            raise SystemExit(f"The run with its replay {name} could not be trained.")


def _cost(name: str, changes: dict[str, Any], seconds: float, out: Path) -> None:
    took: list[float] = []
    save, append = runs.save, runs.append_rows

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            found = call(*args, **kwargs)
            took.append(time.monotonic() - began)
            return found

        return inner

    runs.save, runs.append_rows = timed(save), append
    run = training.changed(training.default_run("dqn", "highway-multi-task", seed=SEED), {"steps": 10_000_000, **changes})
    began: list[float] = []

    def until(rows: list[runs.Row]) -> bool:
        began.append(time.monotonic())
        return began[-1] - began[0] >= seconds

    with tempfile.TemporaryDirectory() as made:
        training.train(run, out=Path(made) / "run", progress=False, until=until)
        size = sum(file.stat().st_size for file in (Path(made) / "run" / "checkpoint").iterdir())
    trained_s = began[-1] - began[0]
    # The last save is the one at the end, which a run of any length has once.
    row = {"replay": name, "checkpoint_bytes": size, "training_s": round(trained_s, 1), "checkpoints": len(took) - 1}
    row |= {"checkpoint_s": [round(x, 3) for x in took], "share": round(sum(took[:-1]) / trained_s, 5)}
    keep(out, "cost", row)
    print(json.dumps(row), file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kills", "faults", "cost"])
    parser.add_argument("--kills", type=int, default=208)
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--out", type=Path, default=Path("results/survival"))
    given = parser.parse_args()
    if given.what == "kills":
        kills(given.kills, given.algorithms, given.seconds or 900, given.out)
    elif given.what == "faults":
        faults(given.out)
    else:
        cost(given.seconds or 95, given.out)


if __name__ == "__main__":
    main()
