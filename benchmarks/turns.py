"""Timing things side by side: they take turns, so that a busy moment hits them all alike."""

import time
from collections.abc import Callable

import numpy as np


def measure(runs: dict[str, Callable[[], int]], seconds: float, rounds: int = 5) -> dict[str, dict[str, float]]:
    """Speeds of functions which answer how many steps they took; they take turns, so that a busy moment hits them all alike."""
    spent = {name: np.zeros(3) for name in runs}
    for run in runs.values():
        run()  # warm up, compile
    for _ in range(rounds):
        for name, run in runs.items():
            steps, wall, cpu = 0, time.perf_counter(), time.process_time()
            while time.perf_counter() - wall < seconds / rounds:
                steps += run()
            spent[name] += steps, time.perf_counter() - wall, time.process_time() - cpu
    return {name: {"steps_per_s": steps / wall, "steps_per_cpu_s": steps / cpu} for name, (steps, wall, cpu) in spent.items()}
