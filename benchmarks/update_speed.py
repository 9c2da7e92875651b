"""How many updates ITD makes per second on CoinGrid's shapes, with the default and with the paper's preset.

    python benchmarks/update_speed.py [--threads 1] [--seconds 10] [--out speed.json]

Demonstrations and experience are random boards and actions: the arithmetic is the same as in a real run, which moreover collects
experience and evaluates. Updates run as the library runs them, many in one compiled scan. Compilation is timed apart. Updates per
CPU-second divide by the CPU time of all threads, updates per second by the clock.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

DEMONSTRATORS = 2
CHUNK = 20
"""Updates per call into XLA."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads that XLA may use")
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each preset")
    parser.add_argument("--steps", type=int, default=2_000, help="demonstrated steps per demonstrator")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    return parser.parse_args()


def limit_threads(threads: int) -> None:
    """Before JAX is imported."""
    os.environ["NPROC"] = str(threads)
    if threads == 1:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def runner(preset: str, steps: int) -> Callable[[], int]:
    """A function that makes `CHUNK` updates and answers how many they were."""
    import jax

    from psiphi.agents import itd
    from psiphi.envs import coingrid
    from psiphi.training import default_run
    from psiphi.types import Pace

    config = default_run("itd", "coingrid", preset).agent
    pace = Pace(num_envs=8, updates=6_000)
    agent = itd.make(config, coingrid.spec(coingrid.CoinGridConfig()), DEMONSTRATORS, pace)
    demos, rollout = random_data(steps, pace.num_envs)
    state = jax.jit(lambda key: agent.observe(agent.init(key, demos), rollout))(jax.random.key(0))
    updates = jax.jit(lambda state, key: jax.lax.scan(agent.update, state, jax.random.split(key, CHUNK)), donate_argnums=0)
    carry: list[Any] = [state, 0]

    def run() -> int:
        carry[0], metrics = updates(carry[0], jax.random.key(carry[1]))
        carry[1] += 1
        jax.block_until_ready(metrics)
        return CHUNK

    return run


def random_data(steps: int, num_envs: int) -> tuple[Any, Any]:
    """Demonstrations and a rollout whose steps lead from a random board to another."""
    import jax
    import jax.numpy as jnp

    from psiphi.envs import coingrid
    from psiphi.types import Demonstration, Demos, Transition

    world = coingrid.CoinGridConfig()
    boards = jax.jit(jax.vmap(lambda key: coingrid.observe(world, coingrid.reset(world, key))))(jax.random.split(jax.random.key(0), steps))
    rng = np.random.default_rng(0)

    def some(*shape: int) -> tuple[Any, Any, Any]:
        obs, next_obs = (boards[rng.integers(0, steps, shape)] for _ in range(2))
        return obs, jnp.asarray(rng.integers(0, coingrid.NUM_ACTIONS, shape), jnp.int32), next_obs

    obs, action, next_obs = some(DEMONSTRATORS, steps)
    ends = jnp.asarray(rng.random(action.shape) < 0.05)
    demos = Demos(Demonstration(obs, action, 1.0 - ends, next_obs, action), jnp.full(DEMONSTRATORS, steps, jnp.int32))
    obs, action, next_obs = some(steps // num_envs, num_envs)
    blank = jnp.zeros(action.shape)
    return demos, Transition(obs, action, blank, blank + 1, next_obs, blank > 0)


def measure(run: Callable[[], int], seconds: float) -> dict[str, float]:
    """Updates per second and per CPU-second, and how long the first call took, which compiles."""
    begun = time.perf_counter()
    run()
    compiling = time.perf_counter() - begun
    updates, wall, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        updates += run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"updates_per_s": updates / wall, "updates_per_cpu_s": updates / cpu, "first_call_s": compiling, "updates": updates}


def main() -> None:
    args = arguments()
    limit_threads(args.threads)
    print(f"{'ITD, CoinGrid':16}{'updates/s':>12}{'updates/CPU-s':>16}{'first call, s':>16}   threads {args.threads}")
    speeds = {}
    for preset in ("default", "paper"):
        speeds[preset] = speed = measure(runner(preset, args.steps), args.seconds)
        print(f"{preset:16}{speed['updates_per_s']:12,.1f}{speed['updates_per_cpu_s']:16,.1f}{speed['first_call_s']:16,.1f}")
    if args.out:
        versions = {name: version(name) for name in ("psiphi", "jax", "jaxlib", "equinox", "optax")} | {"python": platform.python_version()}
        machine = {"machine": platform.machine(), "cpus": os.cpu_count()}
        args.out.write_text(json.dumps({"speeds": speeds, "threads": args.threads, "versions": versions} | machine, indent=1) + "\n")


if __name__ == "__main__":
    main()
