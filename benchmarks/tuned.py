"""Settings that `psiphi tune` found against those of the preset, on fresh seeds.

    python benchmarks/tuned.py results/tune/dqn-highway-multi-task/best.json [--seeds 10] [--first-seed 100] [--steps 5000] [--out FILE]

Both train all seeds in one vmapped program and are judged every 1,000 steps by 64 episodes. The figures are the normalised return of the
last evaluation and its mean over the evaluations: interquartile means with 95 % bootstrap intervals, and every seed's number.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("found", type=Path, help="best.json of a search")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    return parser.parse_args()


def judged(run: Any, seeds: int) -> dict[str, Any]:
    from psiphi import training

    rows = training.train(run, seeds=seeds).rows
    name = "eval/normalised_return"
    curves = np.array([[row[name] for row in rows if row["seed"] == seed] for seed in range(run.seed, run.seed + seeds)])
    return {"at the end": described(curves[:, -1]), "area": described(curves[:, 1:].mean(axis=1))}


def described(x: np.ndarray) -> dict[str, Any]:
    from psiphi import stats

    low, high = stats.bootstrap_interval(x)
    return {"iqm": round(stats.iqm(x), 4), "interval": [round(low, 4), round(high, 4)], "seeds": [round(float(y), 4) for y in x]}


def main() -> None:
    options = arguments()
    from psiphi import disk, training
    from psiphi.experiments import cells

    found = training.run_from_json(disk.read_json(options.found), str(options.found))
    preset = training.default_run(found.algorithm, found.env)
    alike = {"seed": options.first_seed, "steps": options.steps, "evaluate_every": 1_000, "evaluate_episodes": 64, "task": found.task}
    runs = {"found": dataclasses.replace(found, **alike), "preset": dataclasses.replace(preset, **alike)}
    figures = {name: judged(run, options.seeds) for name, run in runs.items()}
    origin = {"command": cells.command(), "commit": cells.commit(), "versions": cells.versions()}
    whole = {**origin, "steps": options.steps, "seeds": [options.first_seed, options.first_seed + options.seeds - 1], **figures}
    text = json.dumps(whole, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
