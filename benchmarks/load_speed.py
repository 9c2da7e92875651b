"""How long it takes to load demonstrations, and how much memory: psiphi, pandas and Minari on the same files.

    pip install 'psiphi[data]' pandas
    python benchmarks/load_speed.py [--steps 5000000] [--minari-steps 500000] [--repeats 3] [--out load.json]

Steps have 24 float32 as observation, episodes 100 steps, and there are 8 agents. Every load runs in a process of its own, which reports
its time and its largest resident memory, less what it had before it began (Linux only); the smallest time of the repeats counts, with
the files in the system's cache. CPU-seconds count all threads and say more than the clock on a machine that is busy. All end with the
same: psiphi's checked arrays, pandas' observations as one array beside its table, Minari's episodes and their observations in one array.
"""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ENTRIES, EPISODE, AGENTS = 24, 100, 8


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5_000_000, help="steps in the tables")
    parser.add_argument("--minari-steps", type=int, default=500_000, help="steps in the Minari dataset, which takes minutes to write")
    parser.add_argument("--repeats", type=int, default=3, help="loads of each kind; the fastest counts")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--measure", nargs=2, metavar=("KIND", "FILE"), help=argparse.SUPPRESS)
    return parser.parse_args()


def make(steps: int) -> Any:
    """Demonstrations of random numbers."""
    from psiphi.demos.demonstrations import Demonstrations, Episodes

    rng = np.random.default_rng(0)
    episodes = steps // EPISODE
    return Demonstrations(
        obs=rng.standard_normal((episodes * EPISODE, ENTRIES), np.float32),
        action=rng.integers(5, size=episodes * EPISODE, dtype=np.int32),
        agents=tuple(f"driver {k}" for k in range(AGENTS)),
        episodes=Episodes(
            start=np.arange(episodes + 1) * EPISODE,
            agent=(np.arange(episodes) % AGENTS).astype(np.int32),
            id=np.arange(episodes),
            terminated=rng.random(episodes) < 0.5,
            truncated=np.zeros(episodes, bool),
            final_obs=np.zeros((episodes, ENTRIES), np.float32),
            has_final=np.zeros(episodes, bool),
        ),
        num_actions=5,
    )


# --- One load, in a process of its own -----------------------------------------------------------------------------------


def load_psiphi(file: str) -> int:
    from psiphi.demos import Demonstrations

    return len(Demonstrations.read(file))


def load_pandas(file: str) -> int:
    table = importlib.import_module("pandas").read_parquet(file)
    return len(table[[name for name in table.columns if name.startswith("obs_")]].to_numpy())


def load_minari(file: str) -> int:
    episodes = list(importlib.import_module("minari").MinariDataset(Path(file) / "data").iterate_episodes())
    return len(np.concatenate([episode.observations[:-1] for episode in episodes]))


KINDS: dict[str, Callable[[str], int]] = {"psiphi": load_psiphi, "pandas": load_pandas, "minari": load_minari}
PACKAGES = {"psiphi": ["numpy", "psiphi.demos.files", "psiphi.demos.validate"], "pandas": ["pandas"], "minari": ["minari", "h5py"]}


def measure(kind: str, file: str) -> None:
    """Load once and print what it took. Imports are made before, as a program makes them once."""
    for name in [*PACKAGES[kind], *(["pyarrow.parquet"] if file.endswith("parquet") else [])]:
        importlib.import_module(name)
    before = memory("VmRSS")
    started, cpu_started = time.perf_counter(), time.process_time()
    steps = KINDS[kind](file)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    print(json.dumps({"steps": steps, "seconds": seconds, "cpu_seconds": cpu_seconds, "mebibytes": memory("VmHWM") - before}))


def memory(name: str) -> float:
    """Resident memory of this process in MiB, now (VmRSS) or at its largest (VmHWM), as Linux tells it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def best(kind: str, file: Path, repeats: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--measure", kind, str(file)]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(repeats)]
    found = min(runs, key=lambda run: run["seconds"]) | {"mebibytes": max(run["mebibytes"] for run in runs)}
    name = f"{kind}, {file.suffix.removeprefix('.') if file.is_file() else 'minari'}"
    figures = f"{found['seconds']:8.2f} s {found['cpu_seconds']:8.2f} CPU-s {found['mebibytes']:8.0f} MiB"
    print(f"{name:18} {found['steps']:>9,} steps {figures}", flush=True)
    return {"loader": kind, "file": name.split(", ")[1], "file_mebibytes": _size(file), **found}


def _size(path: Path) -> float:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files) / 2**20


def main() -> None:
    options = arguments()
    if options.measure:
        measure(*options.measure)
        return
    with tempfile.TemporaryDirectory() as directory:
        table, array, dataset = (Path(directory) / name for name in ("demos.parquet", "demos.npz", "demos-v0"))
        demos = make(options.steps)
        demos.write(table)
        demos.write(array)
        make(options.minari_steps).write(dataset)
        del demos
        pairs = [("psiphi", table), ("pandas", table), ("psiphi", array), ("psiphi", dataset), ("minari", dataset)]
        rows = [best(kind, file, options.repeats) for kind, file in pairs]
    packages = ("psiphi", "numpy", "pyarrow", "pandas", "minari", "h5py")
    found = {
        "benchmark": "load_speed",
        "entries": ENTRIES,
        "episode_steps": EPISODE,
        "raw_mebibytes": options.steps * ENTRIES * 4 / 2**20,
        "loads": rows,
        "pandas_over_psiphi": {name: rows[1][name] / rows[0][name] for name in ("seconds", "cpu_seconds", "mebibytes")},
        "minari_over_psiphi": {name: rows[4][name] / rows[3][name] for name in ("seconds", "cpu_seconds", "mebibytes")},
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in packages} | {"python": platform.python_version()},
    }
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
