"""Many seeds of a DQN on Highway: one vmapped program, one run after the other, or two processes. Environment steps per second of each.

    python benchmarks/seeds.py [--seeds 10] [--steps 9000] [--turns 3] [--algorithm dqn] [--env highway-multi-task] [--out FILE]

Every run is the preset's, evaluations included, with fewer steps. A rate is of the stretches between evaluations but for the first, which
includes compiling, and the last. Each way runs in processes of its own with one thread, so that none profits from what another compiled.
Runs one after the other all have the same rate but for compiling, so one of them is timed for the rate of ten. The three ways take turns,
and medians over the turns count. On a machine with other work only rates per CPU second compare.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="dqn")
    parser.add_argument("--env", default="highway-multi-task")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=9_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--alone", type=int, help="only time so many vmapped seeds, in this process, and print the figures")
    return parser.parse_args()


def rate(algorithm: str, env: str, seeds: int, steps: int) -> dict[str, float]:
    """Environment steps of all seeds per second of clock and of CPU time, compiling left out, and the seconds of the whole call."""
    from psiphi import training

    run = training.default_run(algorithm, env, steps=steps, seed=1_000)
    marks: list[tuple[float, float, int]] = []

    def mark(rows: list[Any]) -> bool:
        marks.append((time.monotonic(), time.process_time(), rows[-1]["env_steps"]))
        return False

    started = time.monotonic()
    training.train(run, seeds=seeds, until=mark, progress=False)
    whole = time.monotonic() - started
    (began, cpu_began, before), (ended, cpu_ended, after) = next(m for m in marks if m[2] > run.prefill_steps), marks[-1]
    done = seeds * (after - before)
    return {"steps_per_s": done / (ended - began), "steps_per_cpu_s": done / (cpu_ended - cpu_began), "whole_s": whole}


def process(options: argparse.Namespace, seeds: int) -> subprocess.Popen[str]:
    flags = ["--algorithm", options.algorithm, "--env", options.env, "--steps", str(options.steps), "--alone", str(seeds)]
    return subprocess.Popen(
        [sys.executable, __file__, *flags], env={**os.environ, "NPROC": "1"}, stdout=subprocess.PIPE, text=True
    )  # fmt: skip


def measured(*processes: subprocess.Popen[str]) -> dict[str, float]:
    """What processes side by side come to: their rates together, the longest of their times."""
    found = [json.loads(p.communicate()[0]) for p in processes]
    rate = {"steps_per_s": sum(x["steps_per_s"] for x in found)}
    return {**rate, "steps_per_cpu_s": sum(x["steps_per_cpu_s"] for x in found) / len(found), "whole_s": max(x["whole_s"] for x in found)}


def medians(turns: list[dict[str, float]]) -> dict[str, Any]:
    """Of every figure, and the rate per CPU second in each turn."""
    found = {name: round(statistics.median(turn[name] for turn in turns), 1) for name in turns[0]}
    return {**found, "steps_per_cpu_s of each turn": [round(turn["steps_per_cpu_s"], 1) for turn in turns]}


def main() -> None:
    options = arguments()
    if options.alone:
        print(json.dumps(rate(options.algorithm, options.env, options.alone, options.steps)))
        return
    from psiphi.experiments import cells

    ways = {"one": (1,), "together": (options.seeds,), "two": (1, 1)}
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(options.turns):
        for name, seeds in ways.items():
            turns[name].append(measured(*(process(options, n) for n in seeds)))
            print(f"{name}: {turns[name][-1]}", file=sys.stderr, flush=True)
    one, together, two = (medians(turns[name]) for name in ways)
    figures = {
        "algorithm": options.algorithm,
        "env": options.env,
        "seeds": options.seeds,
        "steps": options.steps,
        "turns": options.turns,
        "one after the other": one,
        "one vmapped program": together,
        "two processes": two,
        "vmapped over one after the other": round(together["steps_per_s"] / one["steps_per_s"], 3),
        "vmapped over two processes": round(together["steps_per_s"] / two["steps_per_s"], 3),
        "vmapped over one after the other, per CPU second": round(together["steps_per_cpu_s"] / one["steps_per_cpu_s"], 3),
        "cores": len(os.sched_getaffinity(0)),
        "command": cells.command(),
        "commit": cells.commit(),
        "versions": cells.versions(),
    }
    text = json.dumps(figures, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
