"""Many seeds of a DQN on Highway: one vmapped program, one run after the other, or two processes. Environment steps per second of each.

    python benchmarks/seeds.py [--seeds 10] [--steps 9000] [--algorithm dqn] [--env highway-multi-task] [--out FILE]

Every run is the preset's, evaluations included, with fewer steps. A rate is of the stretches between evaluations but for the first, which
includes compiling, and the last. Each way runs in processes of its own with one thread, so that none profits from what another compiled.
Runs one after the other all have the same rate but for compiling, so one of them is timed for the rate of ten.
"""

import argparse
import json
import os
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
    rates = {name: sum(x[name] for x in found) for name in ("steps_per_s",)}
    return {**rates, "steps_per_cpu_s": sum(x["steps_per_cpu_s"] for x in found) / len(found), "whole_s": max(x["whole_s"] for x in found)}


def main() -> None:
    options = arguments()
    if options.alone:
        print(json.dumps(rate(options.algorithm, options.env, options.alone, options.steps)))
        return
    from psiphi.experiments import cells

    one = measured(process(options, 1))
    together = measured(process(options, options.seeds))
    two = measured(process(options, 1), process(options, 1))
    figures = {
        "algorithm": options.algorithm,
        "env": options.env,
        "seeds": options.seeds,
        "steps": options.steps,
        "one after the other": one,
        "one vmapped program": together,
        "two processes": two,
        "vmapped over one after the other": together["steps_per_s"] / one["steps_per_s"],
        "vmapped over two processes": together["steps_per_s"] / two["steps_per_s"],
        "vmapped over one after the other, per CPU second": together["steps_per_cpu_s"] / one["steps_per_cpu_s"],
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
