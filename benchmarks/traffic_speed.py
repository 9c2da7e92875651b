"""Highway's and Roundabout's speed beside highway-env's, in one run on one machine.

    python benchmarks/traffic_speed.py [--envs 128] [--seconds 10] [--out speed.json]

The contenders drive the same traffic with the same frequencies and random low-level actions, with automatic reset:

- 20 cars, 5 Hz: highway-v0 with 20 others, 4 lanes, simulated and acted upon five times per second, continuous actions, six cars observed;
  ours in `like_highway_env` with the same numbers.
- default: highway-v0 as it comes, 50 others, 15 sub-steps per second, one action per second; ours with the same numbers.
- roundabout: roundabout-v0's cars, 15 sub-steps and five actions per second.

Ours is stepped as the library does it, many environments in one compiled scan; "with demonstrations" also keeps the step's
demonstrations, which highway-env has not. Steps per CPU-second divide by the CPU time of all threads. Needs highway-env.
"""

import argparse
import json
import logging
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("NPROC", "1")  # highway-env has one thread, so JAX gets one too; before JAX is imported

import gymnasium
import highway_env  # noqa: F401 - registers its environments
import jax
import jax.numpy as jnp
import numpy as np
from highway_env.envs.roundabout_env import RoundaboutEnv
from turns import measure

from psiphi.envs import highway, roundabout
from psiphi.types import Env

KINEMATICS = {"type": "Kinematics", "features": ["x", "y", "vx", "vy"], "see_behind": True}


def theirs(name: str, config: dict[str, Any], observed: int, chunk: int = 10) -> Callable[[], int]:
    """Steps of highway-env with random continuous actions."""
    kinematics = {**KINEMATICS, "vehicles_count": observed + 1}
    env = gymnasium.make(name, config={**config, "action": {"type": "ContinuousAction"}, "observation": kinematics}).unwrapped
    env.reset(seed=0)
    rng = np.random.default_rng(0)

    def run() -> int:
        for _ in range(chunk):
            _, _, terminated, truncated, _ = env.step(rng.uniform(-0.3, 0.3, 2) * (1.0, 0.1))
            if terminated or truncated:
                env.reset()
        return chunk

    return run


def ours(env: Env, num_envs: int, length: int, demonstrations: bool = False) -> Callable[[], int]:
    """Steps of many environments in one compiled scan, each reset where its episode ends."""
    keys = jax.random.split(jax.random.key(0), num_envs)
    state, _ = jax.jit(jax.vmap(env.reset))(keys)
    # Ages are spread, else all episodes would end, and be reset, in the same step.
    carry = [state._replace(t=jnp.arange(num_envs, dtype=jnp.int32) % length), jax.random.key(1)]

    def step(state: Any, key: jax.Array) -> tuple[Any, Any]:
        keys = jax.random.split(key, num_envs)
        action = jax.random.randint(key, (num_envs,), 0, env.spec.num_actions)
        after, reached = jax.vmap(env.step)(state, action, keys)

        def renew(after: Any) -> Any:
            fresh, _ = jax.vmap(env.reset)(keys)
            return jax.tree.map(lambda new, old: jnp.where(reached.last.reshape(-1, *[1] * (old.ndim - 1)), new, old), fresh, after)

        kept = (reached.obs, reached.reward, reached.discount, reached.last)
        shown = (reached.extras["demonstrator"], reached.extras["demonstration"]) if demonstrations else ()
        return jax.lax.cond(reached.last.any(), renew, lambda after: after, after), (kept, shown)

    @jax.jit
    def rollout(state: Any, key: jax.Array) -> tuple[Any, jax.Array, Any]:
        next_key, here = jax.random.split(key)
        state, out = jax.lax.scan(step, state, jax.random.split(here, 20))
        return state, next_key, out

    def run() -> int:
        *carry[:], out = rollout(*carry)
        jax.block_until_ready(out)
        return num_envs * 20

    return run


def contenders(num_envs: int) -> dict[str, dict[str, Callable[[], int]]]:
    fast = replace(highway.like_highway_env(cars=21), simulation_frequency=5, policy_frequency=5, max_steps=100)
    default = highway.like_highway_env(cars=51)
    circle = roundabout.like_highway_env()
    five_hertz = {"vehicles_count": 20, "simulation_frequency": 5, "policy_frequency": 5, "duration": 20}
    return {
        "20 cars, 5 Hz": {
            "highway-env": theirs("highway-v0", five_hertz, 5),
            "psiphi": ours(highway.make(fast), num_envs, fast.max_steps),
            "psiphi, with demonstrations": ours(highway.make(fast), num_envs, fast.max_steps, demonstrations=True),
        },
        "default": {
            "highway-env": theirs("highway-v0", {}, 5, chunk=2),
            "psiphi": ours(highway.make(default), num_envs, default.max_steps),
        },
        "roundabout": {
            "highway-env": theirs("roundabout-v0", {"policy_frequency": 5, "duration": 20}, 3),
            "psiphi": ours(roundabout.make(circle), num_envs, circle.max_steps),
            "psiphi, with demonstrations": ours(roundabout.make(circle), num_envs, circle.max_steps, demonstrations=True),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, default=128, help="environments of ours side by side")
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each contender")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # of routes that a car has left
    # roundabout-v0's own reward cannot compare a continuous action with its numbers.
    RoundaboutEnv._rewards = lambda self, action: {"on_road_reward": 1.0}  # pyright: ignore[reportAttributeAccessIssue]
    speeds = {}
    print(f"{'':20}{'':30}{'steps/CPU-s':>14}{'x highway-env':>16}")
    for setting, runs in contenders(args.envs).items():
        speeds[setting] = {name: speed["steps_per_cpu_s"] for name, speed in measure(runs, args.seconds, rounds=3).items()}
        for name, speed in speeds[setting].items():
            print(f"{setting:20}{name:30}{speed:14,.1f}{speed / speeds[setting]['highway-env']:16,.0f}", flush=True)
    if args.out:
        versions = {name: version(name) for name in ("jax", "highway-env", "gymnasium", "numpy")} | {"python": platform.python_version()}
        result = {"steps_per_cpu_s": speeds, "envs": args.envs, "versions": versions, "machine": platform.machine()}
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
