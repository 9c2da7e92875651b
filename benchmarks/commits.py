"""Two commits side by side: does a change make the library slower?

    git worktree add /tmp/before COMMIT
    python benchmarks/commits.py /tmp/before [--rounds 5] [--seconds 2] [--out FILE]

Each tree runs its own benchmarks in a process of its own, with one thread. The processes take turns, so that a busy moment hits both alike.
The ratio is the new tree's steps per CPU-second over the old one's, the median over turns: above 1, the new tree is faster.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parents[1]
NAMES = ("ITD updates", "ITD updates, paper preset", "CoinGrid steps", "Highway steps", "Roundabout steps")


def runners() -> dict[str, Callable[[], int]]:
    """What a tree's own benchmarks measure of psiphi."""
    import coingrid_speed
    import traffic_speed
    import update_speed

    highway, roundabout = traffic_speed.highway, traffic_speed.roundabout
    road = traffic_speed.replace(highway.like_highway_env(cars=21), simulation_frequency=5, policy_frequency=5, max_steps=100)
    circle = roundabout.like_highway_env()
    made = (
        lambda: update_speed.runner("default", 2_000),
        lambda: update_speed.runner("paper", 2_000),
        lambda: coingrid_speed.scan_runner(512),
        lambda: traffic_speed.ours(highway.make(road), 128, road.max_steps),
        lambda: traffic_speed.ours(roundabout.make(circle), 128, circle.max_steps),
    )
    return {name: make() for name, make in zip(NAMES, made, strict=True)}


def worker(seconds: float) -> None:
    """Answers each name on its input with the steps per CPU-second of one turn."""
    there = runners()
    for run in there.values():
        run()  # compile
    print("ready", flush=True)
    for line in sys.stdin:
        run, steps, wall, cpu = there[line.strip()], 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - wall < seconds:
            steps += run()
        print(steps / (time.process_time() - cpu), flush=True)


def started(tree: Path, seconds: float) -> subprocess.Popen[str]:
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    command = [sys.executable, str(Path(__file__).resolve()), str(tree), "--worker", "--seconds", str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "NPROC": "1", "XLA_FLAGS": flags}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)


def asked(process: subprocess.Popen[str], name: str) -> float:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{name}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a worktree of the commit to compare with")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each")
    parser.add_argument("--seconds", type=float, default=2.0, help="time of a turn")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        sys.path[0] = str(args.before / "benchmarks")  # the tree's own
        worker(args.seconds)
        return
    trees = {"before": started(args.before, args.seconds), "now": started(HERE, args.seconds)}
    for process in trees.values():
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    speeds = {name: {tree: [] for tree in trees} for name in NAMES}
    for turn in range(args.rounds):
        for name in NAMES:
            for tree in sorted(trees, reverse=bool(turn % 2)):  # neither is always the first
                speeds[name][tree].append(asked(trees[tree], name))
    for process in trees.values():
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    result = {}
    for name, of in speeds.items():
        ratios = np.array(of["now"]) / np.array(of["before"])
        result[name] = {tree: float(np.median(some)) for tree, some in of.items()} | {"ratio": float(np.median(ratios))}
        before, now, ratio = (result[name][key] for key in ("before", "now", "ratio"))
        print(f"{name:28}{before:14,.1f}{now:14,.1f}{ratio:8.2f}  [{ratios.min():.2f}, {ratios.max():.2f}]")
    if args.out:
        args.out.write_text(json.dumps({"steps_per_cpu_s": result, "rounds": args.rounds, "seconds": args.seconds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
