"""How fast our DQN and PPO are beside stable-baselines3's on CoinGrid, on the same work, in one run on one machine.

    python benchmarks/peers/speed.py [--rounds 5] [--out speed.json]

The same network, batch, numbers of environment steps and of updates; one thread each. "loop" is all of training: acting, the
environment (ours compiled with the agent, theirs `psiphi/CoinGrid-v0` as any Gymnasium user has it), memory and updates. "update" is
the gradient steps alone, on what the loop has left in memory, so that nobody takes the one for the other. "default" are
stable-baselines3's own defaults, "benchmark" the settings of settings.py with the wider network. Both sides stay alive and take turns,
so that a busy moment hits both. Compiling is timed apart, without a cache. Ratios are medians over rounds, of wall-clock and of CPU time.
"""
# pyright: reportMissingImports=false

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import settings

WORLD = "CoinGrid"

DEFAULTS: dict[str, settings.Settings] = {
    "dqn": {
        "steps": 1_000_000, "hidden": (64, 64), "learning_rate": 1e-4, "batch": 32, "replay": 100_000, "warmup": 100, "gamma": 0.99,
        "target_steps": 10_000, "rollout": 4, "updates_per_rollout": 1, "epsilon_fraction": 0.1, "epsilon_end": 0.05,
    },
    "ppo": {
        "steps": 1_000_000, "hidden": (64, 64), "num_envs": 1, "rollout": 2_048, "minibatch": 64, "epochs": 10, "gamma": 0.99,
        "lambda": 0.95, "learning_rate": 3e-4, "decay": "constant", "clip_ratio": 0.2, "clip_ratio_decays": False, "entropy": 0.0,
        "normalised": False,
    },
}  # fmt: skip
"""What stable-baselines3 does unless told otherwise (its replay of a million boards excepted)."""

STEPS = {"dqn": 4_000, "ppo": 4_096}
"""Environment steps per turn."""
DQN_UPDATES = 500
"""Updates per turn where they are measured alone; PPO makes those of one rollout."""


def chosen(method: str, preset: str) -> settings.Settings:
    values = DEFAULTS[method] if preset == "default" else settings.settings(method, WORLD)
    return values | {"ours": {"torso": "mlp"}}  # ReLU, and so the peer's


def gradient_steps(method: str, s: settings.Settings) -> int:
    """Per turn, of the updates alone."""
    return DQN_UPDATES if method == "dqn" else s["epochs"] * s["num_envs"] * s["rollout"] // s["minibatch"]


# --- One side: says "ready", then answers each line with what that took --------------------------------------------------


def timed(work: Callable[[], Any]) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def serve(ready: dict[str, Any], works: dict[str, Callable[[], Any]]) -> None:
    for work in works.values():
        work()  # warm up
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        print(json.dumps(timed(works[line.strip()])), flush=True)


def their_side(method: str, s: settings.Settings) -> None:
    import gymnasium
    import sb3
    import torch

    import psiphi  # noqa: F401 - registers CoinGrid

    torch.set_num_threads(1)
    same = {"activation_fn": torch.nn.ReLU}
    agent: Any = sb3.learner(method, WORLD, settings.task(method, WORLD), s, 0, same)
    env = gymnasium.make("psiphi/CoinGrid-v0")
    env.reset(seed=0)

    def step_alone() -> None:
        for action in np.random.default_rng(0).integers(0, 3, STEPS[method]):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    def update() -> None:
        if method == "dqn":
            agent.train(DQN_UPDATES, s["batch"])
        else:
            agent.train()

    agent.learn(s.get("warmup", 0) + STEPS[method])
    serve({}, {"loop": lambda: agent.learn(STEPS[method], reset_num_timesteps=False), "update": update, "environment": step_alone})


def our_side(method: str, s: settings.Settings) -> None:
    import jax
    import jax.numpy as jnp
    import ours

    from psiphi.loops import scan

    what = ours.cell(method, WORLD, s, 0)
    iterations = STEPS[method] // (what.loop.num_envs * what.loop.rollout_length)
    program: Any = scan.compile_run(what.env, what.agent, what.loop)
    keys = jnp.stack([jax.random.key(0)])
    begun = time.perf_counter()
    begin = program.begin.lower(keys, None).compile()
    chunk = program.chunk.lower(jax.eval_shape(program.begin, keys, None), iterations).compile()
    ready = {"compile_s": time.perf_counter() - begun}
    carry = [begin(keys, None)]
    updates = jax.jit(lambda state, keys: jax.lax.scan(what.agent.update, state, keys)[0], donate_argnums=0)
    update_keys = jax.random.split(jax.random.key(1), DQN_UPDATES if method == "dqn" else 1)

    def loop() -> None:
        carry[0], _ = chunk(carry[0], iterations)
        jax.block_until_ready(carry[0])

    loop()
    state = [jax.tree.map(lambda x: x[0], carry[0].agent)]

    def update() -> None:
        state[0] = updates(state[0], update_keys)
        jax.block_until_ready(state[0])

    serve(ready, {"loop": loop, "update": update})


# --- Both ----------------------------------------------------------------------------------------------------------------


class Side:
    """A process that works when told to."""

    def __init__(self, side: str, method: str, preset: str):
        import run

        command = [str(run.environment(side)), __file__, "--side", side, "--method", method, "--preset", preset]
        variables = run.one_thread(side)
        variables.pop("JAX_COMPILATION_CACHE_DIR", None)
        self.process = subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{' '.join(self.process.args)} died.")  # pyright: ignore[reportArgumentType, reportCallIssue]
        return json.loads(line)

    def do(self, work: str) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(work + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(method: str, preset: str, rounds: int) -> dict[str, Any]:
    """Medians over turns, and the ratios theirs / ours."""
    theirs, ours = Side("sb3", method, preset), Side("ours", method, preset)
    turns = {(side, work): [] for side in ("theirs", "ours") for work in ("loop", "update")}
    environment = []
    for _ in range(rounds):
        for work in ("loop", "update"):
            turns["theirs", work].append(theirs.do(work))
            turns["ours", work].append(ours.do(work))
        environment.append(theirs.do("environment"))
    theirs.close()
    ours.close()

    def median(found: list[dict[str, float]], clock: str) -> float:
        return float(np.median([x[clock] for x in found]))

    s = chosen(method, preset)
    counts = {"loop": STEPS[method], "update": gradient_steps(method, s)}
    result: dict[str, Any] = {"method": method, "preset": preset, "settings": s, "compile_s": ours.ready["compile_s"], "counts": counts}
    for clock in ("wall_s", "cpu_s"):
        medians = {f"{side} {work}": median(found, clock) for (side, work), found in turns.items()}
        ratios = {work: medians[f"theirs {work}"] / medians[f"ours {work}"] for work in counts}
        share = median(environment, clock) / medians["theirs loop"]
        result[clock] = {"medians": medians, "ratio": ratios, "environment_share": share}
    return result


def shown(result: dict[str, Any]) -> str:
    """One line."""
    cpu, counts, s = result["cpu_s"], result["counts"], result["settings"]
    rate = {name: counts[name.split()[1]] / seconds for name, seconds in cpu["medians"].items()}
    return (
        f"{result['method']:4}{result['preset']:10}{str(s['hidden']):11}{rate['theirs loop']:9,.0f}{rate['ours loop']:9,.0f}"
        f"{cpu['ratio']['loop']:7.1f}{result['wall_s']['ratio']['loop']:7.1f}{rate['theirs update']:10,.0f}{rate['ours update']:10,.0f}"
        f"{cpu['ratio']['update']:7.1f}{result['wall_s']['ratio']['update']:7.1f}{result['compile_s']:9.1f}{cpu['environment_share']:8.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--side", choices=("sb3", "ours"), help=argparse.SUPPRESS)
    parser.add_argument("--method", choices=("dqn", "ppo"), help="only this one")
    parser.add_argument("--preset", choices=("default", "benchmark"), help="only this one")
    args = parser.parse_args()
    if args.side:
        {"sb3": their_side, "ours": our_side}[args.side](args.method, chosen(args.method, args.preset))
        return
    print("CPU-seconds, one thread   loop: steps/s    ratio          update: steps/s    ratio           compile    env")
    print(f"{'':25}{'SB3':>9}{'psiphi':>9}{'CPU':>7}{'wall':>7}{'SB3':>10}{'psiphi':>10}{'CPU':>7}{'wall':>7}{'s':>9}{'share':>8}")
    results = []
    for method in [args.method] if args.method else ["dqn", "ppo"]:
        for preset in [args.preset] if args.preset else ["default", "benchmark"]:
            results.append(compare(method, preset, args.rounds))
            print(shown(results[-1]), flush=True)
    if args.out:
        import run

        from psiphi.experiments import cells

        about = {"rounds": args.rounds, "pins": run.PINS["sb3"], "versions": cells.versions(), "commit": cells.commit()}
        about |= {"machine": platform.machine(), "cpus": os.cpu_count()}
        args.out.write_text(json.dumps({"results": results} | about, indent=1) + "\n")


if __name__ == "__main__":
    main()
