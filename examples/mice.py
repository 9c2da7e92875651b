"""Mice in a labyrinth: from a table of visits to what each mouse wants, judged by what is known of their thirst. Some minutes on two cores.

    python examples/mice.py moves.csv.gz            # mouse, bout, t, node
    python examples/mice.py moves.csv.gz --quick    # only see that everything runs

The maze is a binary tree: junction n leads to 2n and 2n + 1, and 64 to 127 are dead ends. A bout begins and ends at junction 1, from where
a mouse goes home. The learner sees the junction, where the mouse came from and its moves before. It is told nothing of water: some mice
were thirsty and could drink at junction 117, the others had water at home. These labels only judge what comes out.

Rosenberg, Zhang, Perona, Meister, "Mice in a labyrinth show rapid learning, sudden insight, and efficient exploration", eLife 2021. The
file is not part of psiphi.
"""

import argparse
import csv
import dataclasses
import gzip
import time
from pathlib import Path
from typing import Any

import numpy as np

import psiphi
from psiphi.api import OFFLINE

JUNCTIONS, INNER, PORT = 127, 63, 117
BACK, LEFT, RIGHT = range(3)
THIRSTY = {"B1", "B2", "B3", "C1", "C3", "C6", "C7", "C8"}
MICE = ("B1", "B3", "C1", "C3", "B5", "B6", "D3", "D4")
"""Four of either kind, so that a fit takes minutes."""
CAME = ("came down", "came from the left", "came from the right")
EARLIER = tuple(f"{move} {when}" for when in ("one move earlier", "two moves earlier") for move in ("back", "left", "right"))
SPARSITY = 0.002
"""Smaller than usual: each dead end is seen seldom, and the usual prior would take all of them for nothing."""


# --- From visits to demonstrations ---------------------------------------------------------------------------------------


def read(path: Path, mice: tuple[str, ...]) -> dict[tuple[str, str], np.ndarray]:
    """The junctions of each bout, in order."""
    bouts: dict[tuple[str, str], list[tuple[int, int]]] = {}
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else open(path, newline="") as file:
        for row in csv.DictReader(file):
            if row["mouse"] in mice:
                bouts.setdefault((row["mouse"], row["bout"]), []).append((int(row["t"]), int(row["node"])))
    return {key: np.array([node for _, node in sorted(visits)]) for key, visits in bouts.items()}


def moves(nodes: np.ndarray) -> np.ndarray:
    """What the mouse did at each junction: back, left or right; at the last one it went home, which is back."""
    following = np.append(nodes[1:], 0)
    return np.where(following == 2 * nodes, LEFT, np.where(following == 2 * nodes + 1, RIGHT, BACK))


def seen(nodes: np.ndarray) -> np.ndarray:
    """``[n, 127 + 3 + 6]``: where the mouse is, whether it came from above or up from the left or the right, and its two moves before."""
    before = np.append(0, nodes[:-1])
    came = np.where(before == 2 * nodes, LEFT, np.where(before == 2 * nodes + 1, RIGHT, BACK))
    moved = np.concatenate([[-1, -1, -1], moves(nodes)[:-1]])
    parts = [nodes - 1, came, moved[1:-1], moved[:-2]]
    columns = [part[:, None] == np.arange(size) for part, size in zip(parts, (JUNCTIONS, 3, 3, 3), strict=True)]
    return np.concatenate(columns, axis=1).astype(np.uint8)


def demonstrations(bouts: dict[tuple[str, str], np.ndarray]) -> psiphi.Demonstrations:
    """An episode for each bout; it ends, truly, when the mouse goes home."""
    return psiphi.Demonstrations.from_lists(
        [seen(nodes) for nodes in bouts.values()],
        [moves(nodes) for nodes in bouts.values()],
        [mouse for mouse, _ in bouts],
        episodes=[bout for _, bout in bouts],
        terminated=[True] * len(bouts),
        names=[*(f"junction {n}" for n in range(1, JUNCTIONS + 1)), *CAME, *EARLIER],
        action_names=("back", "left", "right"),
    )


def features(obs: Any, action: Any, next_obs: Any, terminated: Any) -> Any:
    """What may matter: which dead end a step leads to, going home, turning round, and going on at all."""
    import jax.numpy as jnp

    home = jnp.asarray(terminated)[:, None].astype(jnp.float32)
    back = jnp.take_along_axis(jnp.asarray(obs)[:, JUNCTIONS : JUNCTIONS + 3], jnp.asarray(action)[:, None], axis=1).astype(jnp.float32)
    return jnp.concatenate([(1 - home) * next_obs[:, INNER:JUNCTIONS], home, (1 - home) * back, jnp.ones_like(home)], axis=1)


# --- Judging -------------------------------------------------------------------------------------------------------------


def place(demos: psiphi.Demonstrations) -> tuple[np.ndarray, np.ndarray]:
    """The junction of each step, from 0, and where the mouse came from."""
    return demos.obs[:, :JUNCTIONS].argmax(1), demos.obs[:, JUNCTIONS : JUNCTIONS + 3].argmax(1)


def bits(chance: np.ndarray, demos: psiphi.Demonstrations) -> float:
    """Bits per free choice: at inner junctions, as dead ends leave none."""
    free = place(demos)[0] < INNER
    return float(np.log2(chance[free, demos.action[free]] + 1e-12).mean())


def count_table(train: psiphi.Demonstrations, test: psiphi.Demonstrations, history: bool) -> np.ndarray:
    """``[n, 3]``: how often all mice did what at each junction, by where they came from if `history`."""
    (where, came), (where_now, came_now) = place(train), place(test)
    count = np.ones((JUNCTIONS, 3, 3))
    np.add.at(count, (where, came * history, train.action), 1)
    shares = count / count.sum(-1, keepdims=True)
    return shares[where_now, came_now * history]


def by_policies(itd: psiphi.ITD, demos: psiphi.Demonstrations) -> np.ndarray:
    """``[n, 3]``: how likely each mouse's own policy makes every action."""
    chance = np.zeros((len(demos), 3))
    for k, mouse in enumerate(demos.agents):
        mine = demos.agent_index == k
        chance[mine] = itd.policy(mouse).probabilities(demos.obs[mine]) if mine.any() else 0
    return chance


def auc(positive: list[float], negative: list[float]) -> float:
    """How often one of the first is larger than one of the second."""
    return float(np.mean([(a > b) + 0.5 * (a == b) for a in positive for b in negative])) if positive and negative else float("nan")


def main(path: Path, mice: tuple[str, ...], updates: int, seed: int) -> psiphi.ITD:
    started = time.monotonic()
    demos = demonstrations(read(path, mice))
    print(demos)
    train, test = demos.split(held_out=0.2, seed=seed)  # whole bouts
    config = dataclasses.replace(OFFLINE, cumulants="given", gamma=0.95, sparsity=SPARSITY)
    itd = psiphi.ITD(config, seed=seed, features=features, refits=1, updates=updates).fit(train, progress=False)
    print(f"Fitted after {time.monotonic() - started:.0f} s")

    print(f"\nHeld-out bouts, {len(test):,} steps")
    print(f"  right: {itd.accuracy(test):.3f}, always the commonest {np.bincount(test.action).max() / len(test):.3f}")
    print(f"  bits per free choice: {bits(by_policies(itd, test), test):.3f}")
    print(f"  of count tables: {bits(count_table(train, test, False), test):.3f} by junction, ", end="")
    print(f"{bits(count_table(train, test, True), test):.3f} by junction and where from; even odds {np.log2(1 / 3):.3f}")

    print("\nInferred reward at the port, beyond the mean of all dead ends, in their standard deviations")
    likes = {}
    for mouse in itd.agents:
        w = itd.preferences[mouse]
        ends, (home, back, _) = w[: JUNCTIONS - INNER], w[JUNCTIONS - INNER :]
        likes[mouse] = float((ends[PORT - INNER - 1] - ends.mean()) / max(ends.std(), 1e-12))
        best = ", ".join(str(INNER + 1 + i) for i in np.argsort(-ends)[:3])
        kind = "thirsty" if mouse in THIRSTY else "sated"
        print(f"  {mouse} ({kind}): {likes[mouse]:+.2f}; most liked: {best}; home {home:+.2f}, turning round {back:+.2f}")
    told = auc([value for mouse, value in likes.items() if mouse in THIRSTY], [v for mouse, v in likes.items() if mouse not in THIRSTY])
    print(f"  It tells thirsty from sated with an area under the curve of {told:.2f}.")

    print(f"\n{itd.verdict}")
    return itd


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--mice", default=",".join(MICE))
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="only see that everything runs")
    given = parser.parse_args()
    chosen = tuple(given.mice.split(","))
    main(given.file, chosen[:1] + chosen[-1:] if given.quick else chosen, 20 if given.quick else given.updates, given.seed)
