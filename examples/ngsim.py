"""Recorded human driving, from bare positions to what drivers want: a few minutes on two cores.

    python examples/ngsim.py tracks.npz            # arrays sc, id, t (tenths of a second), x, y (m), h (rad)
    python examples/ngsim.py tracks.npz --quick    # only see that everything runs

The file is recorded traffic of NGSIM (US Department of Transportation, open data) as CommonRoad scenarios re-publish it; it is not part of
psiphi. Most drivers are seen for some seconds only, so the agents here are the drivers of each road together. Whole scenes are held out.
"""

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np

import psiphi
from psiphi.api import OFFLINE
from psiphi.demos import Motion, Recipe, from_tracks

ROADS = {"USA_US101": "motorway", "USA_Lanker": "Lankershim", "USA_Peach": "Peachtree"}
"""What the names of the scenes begin with, and the road that it is."""

WANTS = ("speed, per 10 m/s", "leader nearer than about 15 m", "braking and accelerating, per 3 m/s2", "swerving, per 3 m/s2", "going on")
"""What the reward may consist of, in the order of `features`."""


def read(path: Path) -> dict[str, np.ndarray]:
    """The columns of the file, and which road each row is on."""
    with np.load(path) as file:
        columns = {name: file[name] for name in ("sc", "id", "t", "x", "y", "h")}
    scenes, which = np.unique(columns["sc"], return_inverse=True)
    roads = [next((road for start, road in ROADS.items() if scene.startswith(start)), scene.split("-")[0]) for scene in scenes]
    return {**columns, "road": np.array(roads)[which]}


def demonstrations(columns: dict[str, np.ndarray], k: int = 9, kept: dict[str, float] | None = None) -> psiphi.Demonstrations:
    """Two steps a second; what a driver sees of the leader and of the two nearest cars; nine accelerations, left like right."""
    kept = {} if kept is None else kept
    demos = from_tracks(
        columns, id="id", scene="sc", heading="h", agent="road", group="sc",
        motion=Motion(unit=0.1, hz=2, nearest=2, before=True), actions=Recipe(k=(k,), mirror="lat"), kept=kept,
    )  # fmt: skip
    for note in demos.notes:
        print(note)
    print(demos)
    print(f"{k} actions keep {kept['acc']:.0%} of the variance along the road and {kept['lat']:.0%} across.")
    return demos


def features(demos: psiphi.Demonstrations) -> Any:
    """What may matter to a driver, of a step: where it leads and how rough it is, in about equal units."""
    import jax.numpy as jnp

    assert demos.discretiser is not None
    rough = jnp.abs(jnp.asarray(demos.discretiser.centroids, jnp.float32)) / 3
    speed, gap = (demos.names.index(name) for name in ("speed", "leader_gap"))

    def of(obs: Any, action: Any, next_obs: Any, terminated: Any) -> Any:
        led = next_obs[:, speed] / 10, jnp.exp(-next_obs[:, gap] / 15), *rough[action].T
        return jnp.stack([*led, jnp.ones_like(led[0])], axis=1)

    return of


def majority(train: psiphi.Demonstrations, test: psiphi.Demonstrations) -> float:
    """How often the commonest action of each road is right."""
    commonest = [np.bincount(train.action[train.agent_index == k], minlength=train.num_actions).argmax() for k in range(len(train.agents))]
    return float(np.mean(np.array(commonest)[test.agent_index] == test.action))


def bits(itd: psiphi.ITD, demos: psiphi.Demonstrations) -> float:
    """Bits per step that the policies need for what was done."""
    chance = np.concatenate(
        [
            np.take_along_axis(itd.policy(agent).probabilities(demos.obs[mine]), demos.action[mine, None], 1)[:, 0]
            for k, agent in enumerate(demos.agents)
            if (mine := demos.agent_index == k).any()
        ]
    )
    return float(-np.log2(chance + 1e-12).mean())


def frequency_bits(train: psiphi.Demonstrations, test: psiphi.Demonstrations) -> float:
    """The same of how often each road's drivers do what."""
    count = np.ones((len(train.agents), train.num_actions))
    np.add.at(count, (train.agent_index, train.action), 1)
    return float(-np.log2((count / count.sum(1, keepdims=True))[test.agent_index, test.action]).mean())


def main(path: Path, updates: int, seed: int) -> psiphi.ITD:
    started = time.monotonic()
    demos = demonstrations(read(path))
    print(f"From the file to demonstrations: {time.monotonic() - started:.1f} s")
    train, test = demos.split(held_out=0.2, seed=seed)  # whole scenes, as the demonstrations know them for groups

    config = dataclasses.replace(OFFLINE, cumulants="given", torso_hidden=(64, 64))
    itd = psiphi.ITD(config, seed=seed, features=features(demos), refits=2, updates=updates).fit(train, progress=False)
    print(f"Fitted after {time.monotonic() - started:.0f} s")

    print(f"\nHeld-out scenes, {len(test):,} steps")
    print(f"  right: {itd.accuracy(test):.3f}, the commonest action of each road {majority(train, test):.3f}")
    print(f"  bits per step: {bits(itd, test):.3f}, how often each road's drivers do what {frequency_bits(train, test):.3f}")

    print("\nWhat they want, in each road's own unit of reward")
    for agent in itd.agents:
        print(f"  {agent}: " + "; ".join(f"{name} {value:+.2f}" for name, value in zip(WANTS, itd.preferences[agent], strict=True)))

    assert demos.discretiser is not None
    close = test.obs[np.argmin(np.where(test.obs[:, 0] > 5, test.obs[:, test.names.index("leader_gap")], np.inf))]
    print(f"\nAt {close[0]:.0f} m/s, {close[test.names.index('leader_gap')]:.0f} m behind a leader, they would")
    for agent in itd.agents:
        action = itd.policy(agent)(close)
        acc, lat = demos.discretiser.inverse(action)
        print(f"  {agent}: action {action}, {demos.action_names[action]}: {acc:+.1f} m/s2 along the road, {lat:+.1f} across")

    print(f"\n{itd.verdict}")
    return itd


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="only see that everything runs")
    given = parser.parse_args()
    main(given.file, 20 if given.quick else given.updates, given.seed)
