"""CoinGrid's speed beside MiniGrid's Python environment, in one run on one machine.

    python benchmarks/coingrid_speed.py [--envs 512] [--seconds 5] [--out speed.json]

Random actions, observations of the whole board, episodes of at most 40 steps with automatic reset, everywhere. The contenders:

- MiniGrid: a 7x7 room with the same coins, written as a MiniGrid user would (a subclass of MiniGridEnv, FullyObsWrapper).
- MiniGrid, empty: the stock EmptyEnv of that size with its own 7x7 partial view, so that nobody can say our coins slowed it down.
- psiphi/CoinGrid-v0: our Gymnasium environment, one step at a time.
- CoinGrid: `psiphi.envs.coingrid` as the library runs it, many environments in one compiled scan that keeps every transition.

Steps per CPU-second divide by the CPU time of all threads, steps per second by the clock. Needs the `test` extra (minigrid).
"""

import argparse
import json
import os
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("NPROC", "1")  # MiniGrid has one thread, so JAX gets one too; before JAX is imported

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.core.world_object import Floor
from minigrid.envs.empty import EmptyEnv
from minigrid.minigrid_env import MiniGridEnv
from minigrid.wrappers import FullyObsWrapper
from turns import measure

from psiphi.envs import coingrid
from psiphi.envs.coingrid_gym import CoinGridEnv
from psiphi.loops.scan import collect

CONFIG = coingrid.CoinGridConfig()
WEIGHTS = {"red": 1.0, "green": 1.0, "yellow": 0.0}


class MiniGridCoins(MiniGridEnv):
    """The same coins and rewards in MiniGrid; a coin is a coloured tile that goes when stepped on."""

    def __init__(self):
        mission = MissionSpace(mission_func=lambda: "collect coins")
        super().__init__(mission, grid_size=CONFIG.size, max_steps=CONFIG.max_steps, see_through_walls=True)

    def _gen_grid(self, width: int, height: int) -> None:
        self.grid = Grid(width, height)
        self.grid.wall_rect(0, 0, width, height)
        for colour, count in zip(coingrid.COLOURS, CONFIG.coins, strict=True):
            for _ in range(count):
                self.place_obj(Floor(colour))
        self.place_agent()
        self.left = sum(CONFIG.coins)
        self.mission = "collect coins"

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        obs, _, terminated, truncated, info = super().step(action)
        x, y = self.agent_pos
        coin = self.grid.get(x, y)
        if coin is None:
            return obs, 0.0, terminated, truncated, info
        self.grid.set(x, y, None)
        self.left -= 1
        return obs, WEIGHTS[coin.color], self.left == 0, truncated, info


def gymnasium_runner(env: gymnasium.Env, chunk: int = 200) -> Callable[[], int]:
    """Steps of one Gymnasium environment with random actions."""
    actions = np.random.default_rng(0).integers(0, coingrid.NUM_ACTIONS, chunk)
    env.reset(seed=0)

    def run() -> int:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return chunk

    return run


def scan_runner(num_envs: int, length: int = 20) -> Callable[[], int]:
    """Steps of many CoinGrids in one compiled scan, by the library's own loop."""
    env = coingrid.make(CONFIG, tuple(WEIGHTS.values()))
    state, obs = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), num_envs))
    # Ages are spread, else all episodes would end, and be reset, in the same step.
    carry = [state._replace(t=jnp.arange(num_envs, dtype=jnp.int32) % CONFIG.max_steps), obs, jax.random.key(1)]

    @jax.jit
    def rollout(state, obs, key):
        next_key, here = jax.random.split(key)
        act = lambda obs, key: jax.random.randint(key, obs.shape[:1], 0, coingrid.NUM_ACTIONS)  # noqa: E731
        state, obs, transitions = collect(env, act, state, obs, here, length)
        return state, obs, next_key, transitions

    def run() -> int:
        *carry[:], transitions = rollout(*carry)
        jax.block_until_ready(transitions)
        return num_envs * length

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, default=512, help="CoinGrids side by side")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each contender")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    contenders = {
        "MiniGrid": gymnasium_runner(FullyObsWrapper(MiniGridCoins())),
        "MiniGrid, empty": gymnasium_runner(EmptyEnv(size=CONFIG.size, max_steps=CONFIG.max_steps)),
        "psiphi/CoinGrid-v0": gymnasium_runner(CoinGridEnv()),
        f"CoinGrid x {args.envs}": scan_runner(args.envs),
    }
    speeds = measure(contenders, args.seconds)
    *_, ours = speeds
    print(f"{'':20}{'steps/s':>14}{'steps/CPU-s':>14}{'x MiniGrid (wall)':>20}{'(per CPU-s)':>14}")
    for name, speed in speeds.items():
        ratio = {key: speed[key] / speeds["MiniGrid"][key] for key in speed}
        print(
            f"{name:20}{speed['steps_per_s']:14,.0f}{speed['steps_per_cpu_s']:14,.0f}{ratio['steps_per_s']:20,.1f}{ratio['steps_per_cpu_s']:14,.1f}"
        )
    if args.out:
        versions = {name: version(name) for name in ("jax", "minigrid", "gymnasium", "numpy")} | {"python": platform.python_version()}
        ratios = {key: speeds[ours][key] / speeds["MiniGrid"][key] for key in speeds[ours]}
        result = {"speeds": speeds, "ratio_to_minigrid": ratios, "envs": args.envs, "versions": versions, "machine": platform.machine()}
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
