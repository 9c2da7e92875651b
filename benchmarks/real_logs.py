"""Two real logs, mice in a maze and recorded driving: psiphi beside tables and scikit-learn, and kinds where ids are withheld.

    python benchmarks/real_logs.py mice DIR/moves.csv.gz [--out results/real-logs/mice.json]
    python benchmarks/real_logs.py ngsim DIR/tracks.npz [--out results/real-logs/ngsim.json]
    python benchmarks/real_logs.py draw results/real-logs/mice.json

The files are not part of psiphi (`examples/mice.py`, `examples/ngsim.py` say where they are from); results hold figures only. Every method
is fitted to the same steps, sees the same observations and who acts, and is judged on the same held-out steps: of each mouse every fifth
block of 200 free choices, with bouts cut there, and of drivers a fifth of the scenes. *Bits* are of what was done, per free choice of a
mouse (at inner junctions) or per step of a driver; less is better. Rivals: how often all do what by place (`counts`; mice's published
tables need 1.245 and, by mouse and group, 1.226 bits in such blocks), logistic regression and gradient boosting of scikit-learn
(`LogisticRegression(max_iter=200)`, `HistGradientBoostingClassifier(max_iter=60)`) with the id as columns.

*Kinds*: `psiphi.find_kinds(demos, "auto", of="agents", beginnings=1)` of 15 mice, whose ids say nothing of thirst, and of single cars on
the motorway that are seen for at least 8 steps. Of mice, two kinds are also asked for, and judged by which were thirsty; of cars there is
no truth, and a table says how the kinds drive. *Kept*: the share of the variance of accelerations that 9, 15 and 25 clusters leave.

`python benchmarks/real_logs.py draw results/real-logs/mice.json` draws the maze lit by the inferred rewards.

**Prediction, before the runs**: of mice, psiphi needs a little less than the count table by junction and where from (with whole bouts held
out, on seed 1000, 1.24 beside 1.27 bits), as it sees two moves more, and more than gradient boosting; of drivers it needs more than
gradient boosting and about as much as logistic regression, as its values must also be those of a reward. The reward at the port tells
thirsty from sated mice only partly (area under the curve 0.7 to 0.9; on seed 1000 it was 0.75, and 0.81 of eight mice with a discount of
0.8 as with 0.95). Two kinds of mice are thirsty and sated, with at most two mistakes. On the motorway, kinds are faster and slower, or by
gap. 25 clusters keep at least 0.85 of the variance.
"""

import argparse
import dataclasses
import importlib.util
import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("NPROC", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of scikit-learn, whose threads otherwise wait for each other

import numpy as np

EXAMPLES = Path(__file__).parents[1] / "examples"
BLOCK = 200
"""Free choices that are shown or held out together."""
ALL_MICE = ("B1", "B2", "B3", "B5", "B6", "C1", "C3", "C6", "C7", "C8", "D3", "D4", "D5", "D7", "D8")


def example(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def columns(demos: Any) -> np.ndarray:
    """What rivals see: the observation, and who acts as one column each."""
    return np.hstack([demos.obs.reshape(len(demos), -1), demos.agent_index[:, None] == np.arange(len(demos.agents))]).astype(np.float32)


def rivals(train: Any, test: Any) -> dict[str, tuple[np.ndarray, float]]:
    """Probabilities of every action on the test's steps, and CPU seconds of the fit."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # pyright: ignore[reportMissingImports]
    from sklearn.linear_model import LogisticRegression  # pyright: ignore[reportMissingImports]
    from sklearn.pipeline import make_pipeline  # pyright: ignore[reportMissingImports]
    from sklearn.preprocessing import StandardScaler  # pyright: ignore[reportMissingImports]

    found = {}
    models: dict[str, Any] = {
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)),
        "gradient boosting": HistGradientBoostingClassifier(max_iter=60, random_state=0),
    }
    for name, model in models.items():
        began = time.process_time()
        model.fit(columns(train), train.action)
        chance = np.full((len(test), train.num_actions), 1e-12)
        chance[:, model.classes_] = model.predict_proba(columns(test))
        found[name] = chance, time.process_time() - began
    return found


def policies(itd: Any, demos: Any) -> np.ndarray:
    """``[n, A]``: how likely each agent's own policy makes every action."""
    chance = np.zeros((len(demos), demos.num_actions))
    for k, agent in enumerate(demos.agents):
        mine = demos.agent_index == k
        chance[mine] = itd.policy(agent).probabilities(demos.obs[mine]) if mine.any() else 0
    return chance


def judged(chance: np.ndarray, demos: Any, free: np.ndarray | None = None) -> dict[str, float]:
    chosen = np.ones(len(demos), bool) if free is None else free
    right = chance.argmax(1) == demos.action
    return {
        "right": float(right[chosen].mean()),
        "bits": float(-np.log2(chance[chosen, demos.action[chosen]] + 1e-12).mean()),
    }


def blocks(maze: ModuleType, bouts: dict[tuple[str, str], np.ndarray]) -> tuple[Any, Any]:
    """What is shown and what is held out: every fifth block of each mouse's free choices. Bouts are cut there, and keep their history."""
    import psiphi

    parts: tuple[list[Any], list[Any]] = ([], [])
    before: dict[str, int] = {mouse: 0 for mouse in ALL_MICE}
    for (mouse, bout), nodes in bouts.items():
        obs, action, free = maze.seen(nodes), maze.moves(nodes), nodes <= maze.INNER
        block = (before[mouse] + np.cumsum(free) - free) // BLOCK
        before[mouse] += int(free.sum())
        held = block % 5 == 4
        cuts = [0, *(np.flatnonzero(np.diff(held)) + 1).tolist(), len(nodes)]
        for first, end in itertools.pairwise(cuts):
            parts[int(held[first])].append((obs[first : end + 1], action[first:end], mouse, f"{bout}/{first}", end == len(nodes)))
    names = [*(f"junction {n}" for n in range(1, maze.JUNCTIONS + 1)), *maze.CAME, *maze.EARLIER]
    some = []
    for part in parts:
        obs, action, who, ids, over = map(list, zip(*part, strict=True))
        kept = {"episodes": ids, "terminated": over, "names": names, "action_names": ("back", "left", "right")}
        some.append(psiphi.Demonstrations.from_lists(obs, action, who, **kept))
    return some[0], some[1]


def mice(path: Path, seed: int, updates: int) -> Iterator[dict[str, Any]]:
    import psiphi
    from psiphi.api import OFFLINE

    maze = example("mice")
    bouts = maze.read(path, ALL_MICE)
    demos, train, test = maze.demonstrations(bouts), *blocks(maze, bouts)
    free = maze.place(test)[0] < maze.INNER
    began = time.process_time()
    config = dataclasses.replace(OFFLINE, cumulants="given", gamma=0.95, sparsity=maze.SPARSITY)
    itd = psiphi.ITD(config, seed=seed, features=maze.features, refits=1, updates=updates).fit(train, progress=False)
    out: dict[str, Any] = {"steps": len(demos), "held_out_steps": int(free.sum()), "cpu_s": {"psiphi": time.process_time() - began}}
    out["held_out"] = {"psiphi": judged(policies(itd, test), test, free)}
    for name, history in (("counts by junction", False), ("counts by junction and where from", True)):
        out["held_out"][name] = judged(maze.count_table(train, test, history), test, free)
    for name, (chance, spent) in rivals(train, test).items():
        out["held_out"][name], out["cpu_s"][name] = judged(chance, test, free), spent
    out["ends"] = {mouse: standard(itd.preferences[mouse][: maze.JUNCTIONS - maze.INNER]).tolist() for mouse in itd.agents}
    port = {mouse: ends[maze.PORT - maze.INNER - 1] for mouse, ends in out["ends"].items()}
    thirsty = [value for mouse, value in port.items() if mouse in maze.THIRSTY]
    out["auc"] = maze.auc(thirsty, [value for mouse, value in port.items() if mouse not in maze.THIRSTY])
    out["port_is_best"] = [mouse for mouse, ends in out["ends"].items() if port[mouse] == max(ends)]
    out["warnings"] = sorted({finding.name for finding in itd.verdict.findings if finding.warns})
    yield out
    out["kinds"] = {}
    for asked in (2, "auto"):
        began = time.process_time()
        kinds = psiphi.find_kinds(demos, asked, of="agents", seed=seed, beginnings=1, progress=False)
        sorted_out = {str(mouse): int(kind) for mouse, kind in zip(kinds.units, kinds.label, strict=True)}
        agree = np.mean([(kind == 0) == (mouse in maze.THIRSTY) for mouse, kind in sorted_out.items()])
        out["kinds"][str(asked)] = {
            "number": kinds.number, "label": sorted_out, "sure": kinds.sure.tolist(), "nats": kinds.nats,
            "agrees_with_thirst": float(max(agree, 1 - agree)), "cpu_s": time.process_time() - began,
        }  # fmt: skip
        yield out


def standard(values: np.ndarray) -> np.ndarray:
    """Beyond their mean, in standard deviations."""
    return (values - values.mean()) / max(float(values.std()), 1e-12)


def places(junctions: int) -> np.ndarray:
    """``[junctions, 2]``: where junctions are drawn: to the left and right, then up and down, and each time nearer."""
    at = np.zeros((junctions + 1, 2))
    for node in range(2, junctions + 1):
        level = node.bit_length() - 1
        way = np.array([1.0, 0.0]) if level % 2 else np.array([0.0, 1.0])
        at[node] = at[node // 2] + way * (1 if node % 2 else -1) * 0.5 ** ((level + 1) // 2)
    return at[1:]


def draw(path: Path) -> Path:
    """The maze of thirsty and of sated mice, each dead end lit by its inferred reward, and the reward at the port of every mouse."""
    from matplotlib.figure import Figure

    maze, found = example("mice"), json.loads(path.read_text())
    at, ends = places(maze.JUNCTIONS), found["ends"]
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    left, right, each = figure.subplots(1, 3, width_ratios=[1.15, 1.15, 1])
    port, image = maze.PORT - 1, None
    for ax, thirsty in ((left, True), (right, False)):
        mice = [mouse for mouse in ends if (mouse in maze.THIRSTY) == thirsty]
        mean = np.mean([ends[mouse] for mouse in mice], axis=0)
        for node in range(2, maze.JUNCTIONS + 1):
            ax.plot(*at[[node - 1, node // 2 - 1]].T, color="0.75", linewidth=1.2, zorder=1)
        image = ax.scatter(*at[maze.INNER :].T, c=mean, cmap="PuOr_r", vmin=-2, vmax=2, s=60, edgecolors="0.4", linewidths=0.6, zorder=2)
        ax.scatter(*at[port], s=240, facecolors="none", edgecolors="black", linewidths=1.6, zorder=3)
        ax.annotate("port", at[port], xytext=(10, 7), textcoords="offset points", fontsize=9)
        ax.annotate("entrance", at[0], xytext=(4, 4), textcoords="offset points", fontsize=8)
        ax.set_title(f"{len(mice)} {'thirsty' if thirsty else 'sated'} mice, mean", pad=14)
        ax.set_aspect("equal")
        ax.axis("off")
    assert image is not None
    figure.colorbar(image, ax=[left, right], label="inferred reward of a dead end,\nin standard deviations of the mouse's 64", shrink=0.8)
    order = sorted(ends, key=lambda mouse: ends[mouse][port - maze.INNER])
    values = [ends[mouse][port - maze.INNER] for mouse in order]
    each.barh(order, values, color=["#0072B2" if mouse in maze.THIRSTY else "#E69F00" for mouse in order], height=0.7)
    each.axvline(0, color="0.3", linewidth=1)
    each.set_title("Reward at the port\nblue: thirsty, orange: sated")
    each.spines[["top", "right"]].set_visible(False)
    figure.savefig(path.with_suffix(".png"), dpi=110, facecolor="white")
    return path.with_suffix(".png")


def ngsim(path: Path, seed: int, updates: int) -> Iterator[dict[str, Any]]:
    import psiphi
    from psiphi.api import OFFLINE

    road = example("ngsim")
    wall, began = time.monotonic(), time.process_time()
    kept: dict[str, float] = {}
    demos = road.demonstrations(road.read(path), kept=kept)
    read = time.process_time() - began
    train, test = demos.split(held_out=0.2, seed=seed)
    config = dataclasses.replace(OFFLINE, cumulants="given", torso_hidden=(64, 64))
    itd = psiphi.ITD(config, seed=seed, features=road.features(demos), refits=2, updates=updates).fit(train, progress=False)
    fitted = time.process_time() - began
    page = path_of_page(itd, test)
    out: dict[str, Any] = {"steps": len(demos), "held_out_steps": len(test), "tracks": demos.num_episodes, "page_bytes": page}
    out["from_file_to_page"] = {"wall_s": time.monotonic() - wall, "cpu_s": time.process_time() - began, "read_cpu_s": read}
    out["cpu_s"] = {"psiphi": fitted - read}
    out["held_out"] = {"psiphi": judged(policies(itd, test), test)}
    count = np.ones((len(train.agents), train.num_actions))
    np.add.at(count, (train.agent_index, train.action), 1)
    out["held_out"]["counts by road"] = judged((count / count.sum(1, keepdims=True))[test.agent_index], test)
    for name, (chance, spent) in rivals(train, test).items():
        out["held_out"][name], out["cpu_s"][name] = judged(chance, test), spent
    out["wants"] = {str(agent): dict(zip(road.WANTS, map(float, itd.preferences[agent]), strict=True)) for agent in itd.agents}
    out["warnings"] = sorted({finding.name for finding in itd.verdict.findings if finding.warns})
    out["kept"] = {"9": kept}
    for k in (15, 25):
        road.demonstrations(road.read(path), k, out["kept"].setdefault(str(k), {}))
    yield out
    began = time.process_time()
    motorway = demos.filter(agents=["motorway"], min_steps=8)
    kinds = psiphi.find_kinds(motorway, "auto", seed=seed, beginnings=1, progress=False)
    out["kinds"] = {"cars": motorway.num_episodes, "number": kinds.number, "nats": kinds.nats, "sure": kinds.sure.tolist()}
    out["kinds"] |= {"drive": [driving(motorway, kinds.label == k) for k in range(kinds.number)], "cpu_s": time.process_time() - began}
    yield out


def path_of_page(itd: Any, demos: Any) -> int:
    """Bytes of the page."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        return itd.explore(demos, Path(directory) / "page.html").stat().st_size


def driving(demos: Any, which: np.ndarray) -> dict[str, float]:
    """How these cars drive, on average over their steps."""
    mine = np.repeat(which, demos.lengths)
    seen = {name: demos.obs[mine, i] for i, name in enumerate(demos.names)}
    acc, lat = demos.discretiser.inverse(demos.action[mine]).T
    return {
        "cars": int(which.sum()),
        "speed": float(seen["speed"].mean()),
        "leader_gap": float(np.median(seen["leader_gap"])),
        "seconds_behind": float(np.median(seen["leader_gap"] / np.maximum(seen["speed"], 1))),
        "braking_share": float((acc < -1).mean()),
        "accelerating_share": float((acc > 1).mean()),
        "swerving_share": float((np.abs(lat) > 0.5).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", choices=("mice", "ngsim", "draw"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--updates", type=int, default=1_500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.log == "draw":
        print(draw(given.file))
        return
    for found in (mice if given.log == "mice" else ngsim)(given.file, given.seed, given.updates):
        text = json.dumps({"seed": given.seed, "updates": given.updates, **found}, indent=1) + "\n"
        if given.out is not None:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(text)
        print(text)


if __name__ == "__main__":
    main()
