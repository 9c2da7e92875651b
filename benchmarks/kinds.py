"""Are kinds found where ids are withheld, and are ids noticed that mean nothing? CoinGrid, with demonstrators whose intents are known.

    python benchmarks/kinds.py sort [--seeds 10 11 12 13 14] [--out results/kinds/sort.json]
    python benchmarks/kinds.py ids [--seeds 0 1 ... 19] [--out results/kinds/ids.json]

**Sort.** 3 to 6 intents, the first of R, G, Y, R+G, R+Y, G+Y. Of each, 200 episodes on fresh layouts, and an agent leaves when it has
what it came for, after 10 steps on average. *Tracks*: 50 individuals of each intent make 4 episodes each; who made an episode is known,
and of which intent an individual is, is not. `psiphi.find_kinds(demos, "auto", of="agents", beginnings=1, torso="egocentric")` finds the
number of kinds (`number`); `ari` is the adjusted Rand index of its sorting. *Episodes*: nothing is known of an episode, and the number of
kinds is given (`ari_episodes`). `ceiling` and `ceiling_episodes` are the indices of who knows the intents' policies exactly and takes the
likeliest: no method can do better on average. A single episode leaves much open, as the shortest way to what one wants often leads over
what another wants.

**Ids.** R, G and Y, 60 episodes of each on 4 layouts. `psiphi.ITD` is fitted briefly, once with the true ids and once with the ids of all
episodes shuffled. `warned` is whether the verdict finds `shuffled-ids`; `figure` is what it judges by, `threshold` 4.

**Prediction, before the runs of these seeds** (all settings were chosen on seeds from 1000; of seed 0, three intents had been sorted into
five kinds before `auto` asked that kinds be told apart): of tracks, the number of kinds is right in at least 18 of 20 sortings and the
index is above 0.95 in the mean for each number of intents. Of single episodes the index is below the ceiling, and below 0.95 from 5
intents. Shuffled ids are noticed in all of 20 logs; right ones are suspected in at most one.
"""

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("NPROC", "1")

import numpy as np

INTENTS = ("R", "G", "Y", "R+G", "R+Y", "G+Y")
EPISODES, EACH = 200, 4
"""Of each intent, and of each individual."""


def adjusted_rand(a: np.ndarray, b: np.ndarray) -> float:
    """1: the same sorting, but for the names of the kinds; 0: as alike as chance."""
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1)

    def pairs(x: Any) -> float:
        return float((x * (x - 1) / 2).sum())

    both, first, second = pairs(table), pairs(table.sum(1)), pairs(table.sum(0))
    expected = first * second / pairs(np.array(len(a)))
    return (both - expected) / ((first + second) / 2 - expected)


def recorded(names: tuple[str, ...], episodes: int, seed: int, layouts: int = 0) -> Any:
    import psiphi
    from psiphi.envs.coingrid import CoinGridConfig
    from psiphi.worlds import coingrid

    got = coingrid.record(CoinGridConfig(num_layouts=layouts), names, episodes, seed)
    return psiphi.Demonstrations.from_demos(got.demos, got.episode, names, 3)


def log_likely(demos: Any) -> np.ndarray:
    """``[E, K]``: of each episode under the exact policy of each intent, which leaves when it has what it wants and not before."""
    import jax
    import jax.numpy as jnp

    from psiphi.envs import coingrid, coingrid_exact
    from psiphi.envs.coingrid import CoinGridConfig
    from psiphi.worlds.coingrid import GAMMA, TEMPERATURE, weights_of

    config = CoinGridConfig()
    inner = config.size - 2
    firsts = demos.obs[demos.episodes.start[:-1]][:, 1:-1, 1:-1].astype(int).reshape(demos.num_episodes, inner**2, -1)
    coins = np.stack([np.concatenate([np.flatnonzero(board[:, c]) for c in range(3)]) for board in firsts])
    pose = [_pose(obs) for obs in demos.obs[demos.episodes.start[:-1]]]
    starts = jax.vmap(lambda c, p, d: coingrid.reset_to(config, c, p, d))(*map(jnp.asarray, (coins, *np.array(pose).T)))
    lengths, ended = demos.lengths, demos.episodes.terminated
    action = np.zeros((demos.num_episodes, config.max_steps), np.int32)
    action[np.arange(config.max_steps) < lengths[:, None]] = demos.action

    @jax.jit
    def of(starts: Any, action: Any, length: Any, ended: Any, weights: Any) -> Any:
        policy = coingrid_exact.policy_boltzmann(coingrid_exact.q_values(config, starts.cells, weights, GAMMA), TEMPERATURE)
        wanted = weights[coingrid.coin_colours(config)] > 0

        def one(state: Any, policy: Any, action: Any, length: Any, ended: Any) -> Any:
            def step(state: Any, now: Any) -> Any:
                t, a = now
                likely = jnp.log(policy[coingrid_exact.to_index(state)][a] + 1e-9)
                state, _ = coingrid.move(config, state, a)
                content = ~(state.alive & wanted).any()
                left = ended & (t == length - 1)
                return state, jnp.where(t < length, likely + jnp.where(left == content, 0.0, np.log(1e-3)), 0.0)

            return jnp.sum(jax.lax.scan(step, state, (jnp.arange(config.max_steps), action))[1])

        return jax.vmap(one)(starts, policy, action, length, ended)

    found = []
    for first in range(0, demos.num_episodes, 50):
        some = slice(first, first + 50)
        given = jax.tree.map(lambda x, some=some: x[some], (starts, action, lengths, ended))
        found.append(np.stack([np.asarray(of(*given, jnp.asarray(weights_of(name)))) for name in demos.agents], axis=1))
    return np.concatenate(found)


def _pose(obs: np.ndarray) -> tuple[int, int]:
    """The agent's cell in the room, and where it looks."""
    y, x = np.argwhere(obs[..., -1] == 2)[0]
    front = np.argwhere(obs[..., -1] == 1)[0] - (y, x)
    return (y - 1) * (obs.shape[0] - 2) + x - 1, [(0, 1), (1, 0), (0, -1), (-1, 0)].index(tuple(front.tolist()))


def sort(seed: int) -> list[dict[str, Any]]:
    import psiphi

    everybody = recorded(INTENTS, EPISODES, seed)
    likely = log_likely(everybody)
    rows = []
    for intents in range(3, len(INTENTS) + 1):
        demos = everybody.filter(agents=list(INTENTS[:intents]))
        truth = demos.episodes.agent.astype(np.int64)
        track = np.arange(len(truth)) // EACH  # episodes are in order of intents
        names = tuple(f"i{i}" for i in range(track.max() + 1))
        tracks = dataclasses.replace(demos, agents=names, episodes=demos.episodes._replace(agent=track.astype(np.int32)))
        began = time.process_time()
        found = psiphi.find_kinds(tracks, "auto", of="agents", seed=seed, beginnings=1, torso="egocentric", progress=False)
        spent = time.process_time() - began
        alone = psiphi.find_kinds(demos, intents, of="episodes", seed=seed, torso="egocentric", progress=False)
        known = likely[: len(truth), :intents]
        together = np.add.reduceat(known, np.arange(0, len(truth), EACH))
        rows.append(
            {
                "seed": seed,
                "intents": intents,
                "number": found.number,
                "ari": adjusted_rand(truth[::EACH], found.label),
                "ceiling": adjusted_rand(truth[::EACH], together.argmax(1)),
                "ari_episodes": adjusted_rand(truth, alone.label),
                "ceiling_episodes": adjusted_rand(truth, known.argmax(1)),
                "sure": [round(x, 3) for x in found.sure.tolist()],
                "nats": found.nats,
                "cpu_s": spent,
            }
        )
        print(rows[-1], flush=True)
    return rows


def ids(seed: int) -> list[dict[str, Any]]:
    import psiphi
    from psiphi.api import LEARNED

    demos = recorded(INTENTS[:3], 60, seed, layouts=4)
    lot = np.random.default_rng(seed).permutation(demos.episodes.agent)
    numbers = np.arange(demos.num_episodes)
    widths: dict[str, Any] = {"torso_hidden": (64, 64), "phi_hidden": (64,), "psi_hidden": (64,), "batch": 32, "cross_batch": 32}
    small = dataclasses.replace(LEARNED, torso="egocentric", **widths)
    rows = []
    for shuffled in (False, True):
        whose = lot if shuffled else demos.episodes.agent
        given = dataclasses.replace(demos, episodes=demos.episodes._replace(agent=whose, id=numbers))
        itd = psiphi.ITD(small, seed=seed, updates=200, refits=1).fit(given, progress=False)
        hits = [finding.figure for finding in itd.verdict.findings if finding.name == "shuffled-ids"]
        rows.append({"seed": seed, "shuffled": shuffled, "warned": bool(hits), "figure": hits[0] if hits else None})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sort", "ids"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12, 13, 14])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if given.out is not None and given.out.exists():  # what was interrupted continues
        rows = json.loads(given.out.read_text())
    for seed in sorted(set(given.seeds) - {row["seed"] for row in rows}):
        rows += (sort if given.what == "sort" else ids)(seed)
        if given.out is not None:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
