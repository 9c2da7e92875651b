"""Strangers' agents in a stranger's world: what do MiniGrid's visitors want?

    python examples/minigrid_fetch.py --seeds 3 --out results/outside

The world is MiniGrid-Fetch-6x6-N2-v0 as Farama ships it: a room with two things, keys or balls of six colours; who picks one up is done.
Three scripted bots, which nobody trained, walk in it: one is after keys, one after balls, one after anything purple. They see what
MiniGrid shows them, the 7x7 cells ahead, and stray at random in one step of ten. What they want is written nowhere in their logs: those
go through `psiphi demos validate` and `psiphi infer`, as anybody's would. Only then are the inferred rewards compared with what the
simulator says was picked up, on fresh episodes.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import minigrid  # noqa: F401 - registers its worlds
import numpy as np
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX
from minigrid.wrappers import OneHotPartialObsWrapper

import psiphi
from psiphi.demos.record import random_policy, record
from psiphi.experiments import cells

WORLD = "MiniGrid-Fetch-6x6-N2-v0"
LEFT, RIGHT, FORWARD, PICKUP = range(4)
UP, MIDDLE, BOTTOM = 0, 3, 6
"""In what a bot sees, it stands in the middle of the last row and looks up."""
Pose = tuple[int, int, int]
"""Column, row and where to."""

# --- The bots -------------------------------------------------------------------------------------------------------------

WANTS: dict[str, Callable[[Any], bool]] = {
    "keys": lambda thing: thing.type == "key",
    "balls": lambda thing: thing.type == "ball",
    "purple": lambda thing: thing.color == "purple",
}
"""What each bot is after. Nothing below `measure` and the bots themselves may ask."""

SHOWN = {"keys": OBJECT_TO_IDX["key"], "balls": OBJECT_TO_IDX["ball"], "purple": len(OBJECT_TO_IDX) + COLOR_TO_IDX["purple"]}
"""The channel of the view in which each bot looks for it."""


def moves(pose: Pose, free: np.ndarray) -> Iterator[tuple[int, Pose]]:
    """What a bot can do without picking anything up, and the pose it leads to."""
    x, y, facing = pose
    ahead = front(pose)
    if ahead is not None and free[ahead]:
        yield FORWARD, (*ahead, facing)
    yield LEFT, (x, y, (facing - 1) % 4)
    yield RIGHT, (x, y, (facing + 1) % 4)


def front(pose: Pose) -> tuple[int, int] | None:
    """The cell ahead, if it is in sight."""
    x, y, facing = pose
    dx, dy = ((0, -1), (1, 0), (0, 1), (-1, 0))[facing]
    return (x + dx, y + dy) if 0 <= x + dx <= BOTTOM and 0 <= y + dy <= BOTTOM else None


def plan(view: np.ndarray, channel: int) -> int:
    """The first step of the shortest way to pick up something wanted; turn right if there is none in sight."""
    things = (view[..., OBJECT_TO_IDX["key"]] | view[..., OBJECT_TO_IDX["ball"]]).astype(bool)
    wanted, free = things & view[..., channel].astype(bool), view[..., OBJECT_TO_IDX["empty"]].astype(bool)
    start: Pose = (MIDDLE, BOTTOM, UP)
    first: dict[Pose, int] = {start: PICKUP}
    queue: deque[Pose] = deque([start])
    while queue:
        pose = queue.popleft()
        ahead = front(pose)
        if ahead is not None and wanted[ahead]:
            return first[pose]
        for action, reached in moves(pose, free):
            if reached not in first:
                first[reached] = action if pose == start else first[pose]
                queue.append(reached)
    return RIGHT


def bot(name: str, seed: int, stray: float = 0.1) -> Callable[[np.ndarray], int]:
    rng = np.random.default_rng(seed)
    return lambda view: int(rng.integers(3)) if rng.random() < stray else plan(view, SHOWN[name])


# --- The world ------------------------------------------------------------------------------------------------------------


class Visited(gymnasium.Wrapper):
    """The world, entered only when something wanted is in it; keeps the thing that each step picked up, for those who measure."""

    def __init__(self, env: gymnasium.Env, wanted: Callable[[Any], bool] = lambda thing: True):
        super().__init__(env)
        self.wanted = wanted
        self.room: Any = env.unwrapped
        self.picked: list[Any] = []

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        while True:
            obs, info = self.env.reset(**arguments)
            arguments.pop("seed", None)
            things = (thing for thing in self.room.grid.grid if thing is not None and thing.type in ("key", "ball"))
            if any(self.wanted(thing) for thing in things):
                return obs, info

    def step(self, action: int) -> Any:
        answer = self.env.step(action)
        self.picked.append(self.room.carrying)
        return answer


def enter(wanted: Callable[[Any], bool] = lambda thing: True) -> Visited:
    return Visited(OneHotPartialObsWrapper(gymnasium.make(WORLD)), wanted)


def recorded(name: str, policy: Callable[[np.ndarray], int], episodes: int, seed: int) -> tuple[psiphi.Demonstrations, list[Any]]:
    """Episodes of one visitor, and what each step picked up."""
    env = enter(WANTS.get(name, lambda thing: True))
    demos = record(env, policy, episodes, agent=name, seed=seed, key="image")
    return demos, env.picked


def visits(episodes: int, seed: int) -> tuple[psiphi.Demonstrations, list[Any]]:
    """Episodes of all three bots."""
    parts = [recorded(name, bot(name, seed + i), episodes, seed + i) for i, name in enumerate(WANTS)]
    demos = parts[0][0].merge(*(part for part, _ in parts[1:]))
    return demos, [thing for _, picked in parts for thing in picked]


# --- From the logs to rewards: the command line, and nothing else ---------------------------------------------------------


def command(*arguments: str) -> None:
    """What anybody would type."""
    subprocess.run([sys.executable, "-m", "psiphi", *arguments], check=True, stdout=subprocess.DEVNULL)


def inferred(demos: psiphi.Demonstrations, directory: Path, seed: int, settings: list[str]) -> Any:
    """The model that `psiphi infer` makes of the logs."""
    log = directory / "visits.npz"
    demos.write(log)
    command("demos", "validate", str(log))
    command("infer", str(log), "--out", str(directory), "--rewards", "0", "--seed", str(seed), *settings)
    return psiphi.load(directory / "model")


# --- The measure: what the simulator knows --------------------------------------------------------------------------------


def truth(picked: list[Any], name: str) -> np.ndarray:
    """1 where a step picked up what the bot of this name wants."""
    return np.array([thing is not None and WANTS[name](thing) for thing in picked], float)


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.corrcoef(x, y)[0, 1]) if x.std() > 0 and y.std() > 0 else 0.0


def measure(itd: Any, seed: int, episodes: int) -> dict[str, dict[str, float]]:
    """Of each bot: correlation of its inferred reward with the truth on its own fresh steps, on everybody's, and on those of a random
    walker; and how often its imitation picks up what it wants, beside the random walker."""
    demos, picked = visits(episodes, seed)
    walker, met = recorded("random", random_policy(4, seed), episodes, seed)
    found: dict[str, dict[str, float]] = {}
    for k, name in enumerate(WANTS):
        reward, own = itd.reward(name, "wants"), demos.agent_index == k
        paid, true = reward(demos.obs, demos.action), truth(picked, name)
        aimless, chance = reward(walker.obs, walker.action), truth(met, name)
        found[name] = {
            "own steps": correlation(paid[own], true[own]),
            "everybody's steps": correlation(paid, true),
            "random steps": correlation(aimless, chance),
            "accuracy": float((itd.policy(name)(demos.obs[own]) == demos.action[own]).mean()),
            "most possible": float(
                np.mean([plan(view, SHOWN[name]) == a for view, a in zip(demos.obs[own], demos.action[own], strict=True)])
            ),
            "imitation gets it": got(name, itd.policy(name), min(episodes, 100), seed),
            "random gets it": got(name, random_policy(4, seed), min(episodes, 100), seed),
        }
    return found


def got(name: str, policy: Callable[[np.ndarray], int], episodes: int, seed: int) -> float:
    """The share of episodes in which a visitor picks up what the bot of this name wants."""
    return float(truth(recorded(name, policy, episodes, seed + 17)[1], name).sum() / episodes)


# --- The report -----------------------------------------------------------------------------------------------------------

TEXT = """# Outside: MiniGrid's Fetch, scripted bots

{world} as Farama ships it (minigrid {minigrid}). Three bots that nobody trained, each after something else, {episodes} episodes each;
their logs (the 7x7 cells ahead, one-hot, and the actions) through `psiphi demos validate` and `psiphi infer`, offline. What they want is
in no log. **Correlation** is that of a bot's inferred reward with 1 for the step that picks up what it wants and 0 for every other, on
fresh episodes: on its *own* steps, on those of *everybody* (where others pick up what it does not want), and on those of a walker that
acts at *random*, the like of which no log shows. **Accuracy** is the share of its fresh actions that its imitation predicts, of the share
that its own plan does: the bots stray in one step of ten. **Gets it** is how often the imitation, let loose in the world, picks up what
the bot wants within the time limit, beside the random walker.

| bot | own steps | everybody's steps | random steps | accuracy | gets it | random gets it |
|---|---:|---:|---:|---:|---:|---:|
{rows}

Means over {seeds} seeds (of bots, worlds and learner), least and most in brackets. `fetch.json` has every number.

    {command}

Commit {commit}; {versions}.
"""


def spread(values: list[float]) -> str:
    return f"{np.mean(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def rows(found: list[dict[str, Any]]) -> Iterator[str]:
    for name in WANTS:
        of = lambda what, name=name: [run["measured"][name][what] for run in found]  # noqa: E731
        correlations = " | ".join(spread(of(where)) for where in ("own steps", "everybody's steps", "random steps"))
        accuracy = f"{np.mean(of('accuracy')):.2f} of {np.mean(of('most possible')):.2f}"
        yield f"| {name} | {correlations} | {accuracy} | {np.mean(of('imitation gets it')):.2f} | {np.mean(of('random gets it')):.2f} |"


def put(path: Path, text: str) -> None:
    """All of it or nothing."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=100, help="lower ones were used to find out whether things work")
    parser.add_argument("--episodes", type=int, default=1000, help="demonstrated episodes per bot")
    parser.add_argument("--fresh", type=int, default=300, help="episodes per bot for the measure")
    parser.add_argument("--out", type=Path, default=Path("results/outside"))
    parser.add_argument("--runs", type=Path, default=Path("runs/outside"), help="where logs and models go")
    args, settings = parser.parse_known_args(arguments)
    found = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        demos, _ = visits(args.episodes, 1_000_000 + 1_000 * seed)
        itd = inferred(demos, args.runs / f"seed-{seed}", seed, settings)
        found.append({"seed": seed, "steps": len(demos), "measured": measure(itd, 2_000_000 + 1_000 * seed, args.fresh)})
        print(json.dumps(found[-1]), flush=True)
    write(args, settings, found)


def write(args: argparse.Namespace, settings: list[str], found: list[dict[str, Any]]) -> None:
    typed = f"python examples/minigrid_fetch.py --seeds {args.seeds} --first-seed {args.first_seed} --episodes {args.episodes}"
    origin = {
        "command": " ".join([typed, f"--fresh {args.fresh}", *settings]),
        "commit": cells.commit(),
        "versions": cells.versions() | {"minigrid": version("minigrid"), "gymnasium": version("gymnasium")},
    }
    args.out.mkdir(parents=True, exist_ok=True)
    put(args.out / "fetch.json", json.dumps({"world": WORLD, "episodes": args.episodes, **origin, "runs": found}, indent=1) + "\n")
    said = {**origin, "versions": ", ".join(f"{name} {value}" for name, value in origin["versions"].items())}
    said |= {
        "world": WORLD,
        "minigrid": version("minigrid"),
        "episodes": args.episodes,
        "seeds": len(found),
        "rows": "\n".join(rows(found)),
    }
    put(args.out / "README.md", TEXT.format(**said))
    print(args.out / "README.md")


if __name__ == "__main__":
    main()
