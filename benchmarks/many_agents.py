"""What an update of ITD from logs costs with many agents: a head for each of them, or a code for each and one network.

    python benchmarks/many_agents.py cost [--agents 2 8 64 512 1024] [--out results/many-agents/cost.json]
    python benchmarks/many_agents.py accuracy [--seeds 0 1 2] [--agents 64] [--out results/many-agents/accuracy.json]

Cost: random logs of 10 columns and 5 actions, 128 steps of each agent, the default config of `psiphi.ITD`. Milliseconds are of CPU time of
all threads; memory is of the network, its target and Adam's two moments. Accuracy: CoinGrid, each agent wants a random mixture of the three
colours; held-out episodes of the same agents, with heads and with codes, the same updates, batches and torso.

**Prediction, before the runs** (codes were tuned on seed 1000): from 2 to 1,024 agents, an update with codes takes at most 1.5 times as
long, and with heads more than 20 times from 2 to 512. At 64 agents, codes are right in at least as many held-out steps as heads less 0.01.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("NPROC", "1")

import numpy as np

HEADS_UP_TO = 512
"""Heads for more agents take gigabytes."""


def cost(agents: list[int], seconds: float) -> list[dict[str, Any]]:
    rows = []
    for coded in (True, False):
        for k in agents:
            if coded or k <= HEADS_UP_TO:
                rows.append({"agents": k, "with": "codes" if coded else "heads", **one_cost(k, coded, seconds)})
                print(rows[-1], flush=True)
    return rows


def one_cost(agents: int, coded: bool, seconds: float) -> dict[str, float]:
    import dataclasses

    import jax
    import jax.numpy as jnp

    from psiphi import cumulants
    from psiphi.agents import itd
    from psiphi.api import OFFLINE
    from psiphi.types import Demonstration, Demos, EnvSpec, Pace

    rng, steps, columns, actions = np.random.default_rng(0), 128, 10, 5
    config = dataclasses.replace(OFFLINE, gamma=0.9, num_cumulants=4, code=16 if coded else 0)
    obs = rng.normal(size=(agents, steps, columns)).astype(np.float32)
    action = rng.integers(actions, size=(agents, steps)).astype(np.int32)
    ones = np.ones((agents, steps), np.float32)
    data = Demonstration(obs, action, ones, np.roll(obs, -1, axis=1), np.roll(action, -1, axis=1))  # pyright: ignore[reportArgumentType]
    demos = Demos(jax.tree.map(jnp.asarray, data), jnp.full(agents, steps, jnp.int32))
    flat = [x[0] for x in (obs, action, np.roll(obs, -1, axis=1), ones)]
    given = cumulants.changes(flat, levels=tuple(range(columns)), ends="state")
    spec = EnvSpec((columns,), np.float32, actions)
    made = itd.make(config, spec, agents, Pace(updates=1_000), lambda key, heads: itd.initial_net(config, spec, heads, key, given))
    state = jax.jit(made.init)(jax.random.key(0), demos)
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((state.net, state.target, state.optimiser)))
    update = jax.jit(made.update, donate_argnums=0)
    for warm in range(2):  # compiled for the first state, and again for those that an update leaves, whose types may be stricter
        state, _ = jax.block_until_ready(update(state, jax.random.key(warm)))
    done, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        state, _ = update(state, jax.random.key(done + 2))
        jax.block_until_ready(state.count)
        done += 1
    return {"ms": 1_000 * (time.process_time() - began) / done, "updates": done, "mib": size / 2**20}


def accuracy(seeds: list[int], agents: int, episodes: int, updates: int) -> list[dict[str, Any]]:
    import dataclasses

    import psiphi
    from psiphi.api import LEARNED
    from psiphi.envs.coingrid import CoinGridConfig, task_name
    from psiphi.worlds import coingrid

    rows = []
    for seed in seeds:
        wants = np.round(np.random.default_rng(seed).normal(size=(agents, 3)), 2)
        names = tuple(task_name(row) for row in wants)
        got = coingrid.record(CoinGridConfig(num_layouts=25), names, episodes, seed)
        demos = psiphi.Demonstrations.from_demos(got.demos, got.episode, names, 3)
        train, test = demos.split(0.2, seed)
        for code in (16, 0):
            usual = {"num_cumulants": 8, "torso": "egocentric", "batch": 16, "cross_batch": 32, "axis_preferences": False}
            widths = {"torso_hidden": (64, 64), "phi_hidden": (64, 64), "psi_hidden": (64,)}  # small, so that 64 heads take a minute
            config = dataclasses.replace(LEARNED, **usual, **widths, code=code, agents_per_update=agents)
            began = time.process_time()
            itd = psiphi.ITD(config, seed=seed, updates=updates, refits=1).fit(train, progress=False)
            spent = time.process_time() - began
            right = itd.accuracy(test)
            rows.append({"seed": seed, "agents": agents, "with": "codes" if code else "heads", "accuracy": right, "cpu_s": spent})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "accuracy"))
    parser.add_argument("--agents", type=int, nargs="+")
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU time of each measurement")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=40, help="of each agent")
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.what == "cost":
        rows = cost(given.agents or [2, 8, 64, 512, 1_024], given.seconds)
    else:
        rows = accuracy(given.seeds, (given.agents or [64])[0], given.episodes, given.updates)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
