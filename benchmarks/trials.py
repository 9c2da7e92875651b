"""What a trial of `psiphi tune` costs in one vmapped program, against a run by itself: processor time of whole commands.

    python benchmarks/trials.py [--trials 32] [--steps 3000] [--apart 32] [--algorithm dqn] [--env highway-multi-task] [--out FILE]

One command searches with population-based training in four rounds; then as many commands, one after the other, train one run each, with the
same steps, evaluations and seeds. Each command is a process of one thread, and everything that it does counts: imports, compiling,
training, evaluations, files. Both ways begin with an empty compilation cache; the separate runs share theirs, so that the first of them
compiles. With `--apart` below `--trials`, only so many separate runs are timed, and the rest are taken to cost what the mean of those
after the first does. Seconds are those of the processor, which other work on the machine lengthens less than the clock's.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS, EPISODES, SEED = 4, 16, 9_000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="dqn")
    parser.add_argument("--env", default="highway-multi-task")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--apart", type=int, default=32, help="separate runs that are timed, at least 2")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    return parser.parse_args()


def seconds(words: list[str], cache: Path) -> float:
    """Processor time of a command of psiphi's, and of whatever it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "NPROC": "1", "JAX_COMPILATION_CACHE_DIR": str(cache)}
    subprocess.run([sys.executable, "-m", "psiphi", *words, "--quiet"], env=env, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    options = arguments()
    from psiphi.experiments import cells

    same = [options.algorithm, "--env", options.env, "--steps", str(options.steps), "--evaluate-episodes", str(EPISODES)]
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        search = ["--trials", str(options.trials), "--rounds", str(ROUNDS), "--seed", str(SEED), "--out", str(place / "search")]
        together = seconds(["tune", *same, *search], place / "cache-search")
        each = ["--evaluate-every", str(options.steps // ROUNDS)]
        apart = [
            seconds(["train", *same, *each, "--seed", str(SEED + i), "--out", str(place / f"run-{i}")], place / "cache-runs")
            for i in range(options.apart)
        ]
    all_apart = sum(apart) + (options.trials - options.apart) * sum(apart[1:]) / (len(apart) - 1)
    figures = {
        "algorithm": options.algorithm,
        "env": options.env,
        "trials": options.trials,
        "steps": options.steps,
        "evaluations": ROUNDS,
        "episodes of an evaluation": EPISODES,
        "one program, CPU seconds": round(together, 1),
        "separate runs that were timed, CPU seconds": [round(x, 2) for x in apart],
        "all separate runs, CPU seconds": round(all_apart, 1),
        "a trial in one program over a run by itself": round(together / all_apart, 3),
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
