"""Tables and a picture from OUT/cells.jsonl, as OUT/README.md.

python benchmarks/logs_alone/report.py results/logs-alone
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import store
import sweeps
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from store import Cell

from psiphi import stats
from psiphi.errors import UserError
from psiphi.report import PALETTE, STYLE

SCORES = {
    "default": "planner, reward as handed out",
    "plain": "planner, plain reward",
    "cautious": "planner, caution 0.3",
    "imitation": "imitation",
    "count_clone": "counting clone",
    "maxent": "MaxEnt, told the features",
}
NEARNESS = {
    "starc": "STARC",
    "starc_plain": "STARC, plain",
    "r_own": "r on own steps",
    "r_all": "r on all steps",
    "r_random": "r on random steps",
}
DRAWN = ("default", "plain", "imitation", "maxent")
PICTURE = "scores.png"
LOW = 0.5
"""A planner that scores less was misled."""
GOOD = 0.8
"""A planner that scores at least this was not."""
LOWEST_DRAWN = -1.0

TEXT = """\
Rewards inferred from logs of agents whose true rewards are known. A score is what a policy truly earns: 0 is what the uniform policy earns,
1 the optimum (in minecart: a trip drawn by lot, and the best of a family of trips). The planner is exact, knows the world and is paid the
inferred reward: *as handed out*, *plain* (without caution) or with caution 0.3. The *counting clone* does what its agent did in
that state, and anything where it never was: the plainest behaviour clone. *MaxEnt* is maximum causal entropy, told the world and the true
features (main sweep only). STARC: 0 is the true reward up to shaping and scale, 1 its opposite. r: correlation of the plain with the true
reward on the agent's own, on everybody's and on random steps; left out where the true reward is constant there, 0 where only the inferred
one is.
*warned*: share of the agents of whom the verdict warns. *unseen layouts*: starts that nobody demonstrated.

Numbers are interquartile means over seeds and agents; in brackets, 95 % bootstrap intervals, for which whole fits are drawn. seconds:
median of a fit, of processor time (other work ran beside), compiling included where a fit was the first of its shape."""

Read = Callable[[Cell], float | None]
"""A figure of a cell, None where there is none."""


def render(out: Path) -> Path:
    """Write the report of the cells in a directory; gives the path of its README."""
    cells = store.read(out)
    if not cells:
        raise UserError(f"There is nothing to report: {out} has no cells, expected some in {store.FILE}.")
    draw(cells, out / PICTURE)
    target = out / "README.md"
    target.with_suffix(".new").write_text(page(cells), encoding="utf-8")
    os.replace(target.with_suffix(".new"), target)
    return target


def page(cells: Sequence[Cell]) -> str:
    parts = ["# Rewards from logs alone", origin(cells), TEXT]
    if any(cell["sweep"] == "main" for cell in cells):
        parts.append(f"![Scores by world: interquartile means with 95 % intervals, cut at {LOWEST_DRAWN:g}]({PICTURE})")
    for sweep in ordered((cell["sweep"] for cell in cells), sweeps.SWEEPS):
        parts += sweep_parts(sweep, [cell for cell in cells if cell["sweep"] == sweep])
    return "\n\n".join([*parts, *verdict_parts(distinct(cells))]) + "\n"


def origin(cells: Sequence[Cell]) -> str:
    """Commands, commits, seeds and versions, each as often as they differ."""
    commits = dict.fromkeys(cell["commit"] or "none (not run from a checkout)" for cell in cells)
    setups = dict.fromkeys(", ".join(f"{name} {version}" for name, version in cell["versions"].items()) for cell in cells)
    lines = ["```", *dict.fromkeys(cell["command"] for cell in cells), "```", ""]
    lines += [f"- Commit: {commit}" for commit in commits]
    lines += [f"- Seeds: {ranges(sorted({cell['seed'] for cell in cells}))}", *(f"- Versions: {setup}" for setup in setups)]
    return "\n".join([*lines, f"- Every number: [`{store.FILE}`]({store.FILE})"])


def ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 as 0-2, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def ordered(found: Iterable[str], known: Iterable[str]) -> list[str]:
    """Names without repetition in the order of the known ones; others last."""
    names = dict.fromkeys(found)
    return [*(name for name in known if name in names), *(name for name in names if name not in set(known))]


# --- Numbers -------------------------------------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """An interquartile mean and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float
    seeds: int


def estimate(cells: Sequence[Cell], read: Read) -> Estimate | None:
    """Over seeds and agents. What is drawn for the interval are seeds: the agents of one fit are no independent witnesses.

    Seeds that lack an agent are left out, and so are figures that do not exist.
    """
    values: dict[int, dict[str, float | None]] = {}
    for cell in cells:
        values.setdefault(cell["seed"], {})[cell["agent"]] = read(cell)
    agents = list(dict.fromkeys(cell["agent"] for cell in cells))
    if not agents:
        return None
    whole = [by_agent for _, by_agent in sorted(values.items()) if len(by_agent) == len(agents)]
    x = np.array([[by_agent[agent] for agent in agents] for by_agent in whole], np.float64).reshape(-1, len(agents))
    exists = np.isfinite(x)
    if not exists.any():
        return None
    some = x[exists.any(axis=1)]

    def of_drawn(seeds: np.ndarray, axis: int) -> np.ndarray:
        return finite_iqm(some[seeds.astype(int)].reshape(len(seeds), -1))

    return Estimate(stats.iqm(x[exists]), *stats.bootstrap_interval(np.arange(len(some)), of_drawn), len(some))


def finite_iqm(x: np.ndarray) -> np.ndarray:
    """[n]: `stats.iqm` of the finite entries in each row of ``[n, m]``."""
    if np.isfinite(x).all():
        return stats.iqm(x, axis=1)
    ordered = np.sort(np.where(np.isfinite(x), x, np.inf), axis=1)
    count = np.isfinite(x).sum(axis=1, keepdims=True)
    place = np.arange(x.shape[1])
    kept = (place >= count // 4) & (place < count - count // 4)
    return np.where(kept, ordered, 0).sum(axis=1) / kept.sum(axis=1)


def score_of(name: str, where: str = "scores") -> Read:
    return lambda cell: cell[where][name] if cell[where] else None


def figure_of(name: str) -> Read:
    return lambda cell: cell[name]


def distinct(cells: Sequence[Cell]) -> list[Cell]:
    """Every agent of every fit once, in however many sweeps it is."""
    return list({(store.fit_of(cell), cell["agent"]): cell for cell in reversed(cells)}.values())[::-1]


# --- Tables --------------------------------------------------------------------------------------------------------------


def sweep_parts(sweep: str, cells: Sequence[Cell]) -> list[str]:
    """A table per world with a row per condition; in `main`, also one with a row per agent."""
    parts = [f"## Sweep: {sweep}"]
    conditions = ordered((cell["condition"] for cell in cells), sweeps.SWEEPS[sweep].conditions if sweep in sweeps.SWEEPS else ())
    for world in ordered((cell["world"] for cell in cells), sweeps.EVERY):
        here = [cell for cell in cells if cell["world"] == world]
        by_condition = [(condition, [cell for cell in here if cell["condition"] == condition]) for condition in conditions]
        rows = [row for condition, some in by_condition if some for row in rows_of([condition], some)]
        parts += [f"### {world}", markdown(["log", *HEADING], rows)]
        if sweep == "main":
            agents = dict.fromkeys(cell["agent"] for cell in here)
            by_agent = [(a, c, [cell for cell in some if cell["agent"] == a]) for a in agents for c, some in by_condition]
            rows = [row for agent, condition, some in by_agent if some for row in rows_of([agent, condition], some)]
            parts.append(markdown(["agent", "log", *HEADING], rows))
    return parts


HEADING = [*SCORES.values(), *NEARNESS.values(), "warned", "seeds", "seconds"]


def rows_of(names: Sequence[str], cells: Sequence[Cell]) -> list[list[str]]:
    """A row on some cells, and one for unseen layouts where there are any."""
    found = [*(estimate(cells, score_of(name)) for name in SCORES), *(estimate(cells, figure_of(name)) for name in NEARNESS)]
    warned = number(float(np.mean([cell["doubtful"] for cell in cells])))
    seeds = str(max((one.seeds for one in found if one), default=0))
    seconds = f"{np.median([cell['seconds'] for cell in cells]):.0f}"
    rows = [[*names, *map(interval, found), warned, seeds, seconds]]
    if any(cell["test_scores"] for cell in cells):
        unseen = [interval(estimate(cells, score_of(name, "test_scores"))) for name in SCORES]
        rows.append([*names[:-1], f"{names[-1]}, unseen layouts", *unseen, *[""] * len(NEARNESS), "", seeds, ""])
    return rows


def interval(e: Estimate | None) -> str:
    if e is None:
        return "–"
    return f"{number(e.value)} [{number(e.low)}, {number(e.high)}]" if e.seeds > 1 else number(e.value)


def number(x: float | None) -> str:
    return "–" if x is None else f"{round(x, 2) + 0.0:.2f}"


def markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in heading[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, rule, *rows))


# --- The verdict ---------------------------------------------------------------------------------------------------------


def planned(cell: Cell) -> float:
    """The score of a planner with the reward as it is handed out."""
    return cell["scores"]["default"]


def verdict_parts(cells: Sequence[Cell]) -> list[str]:
    """What the warnings are worth. Of shuffled logs nobody can be right: there, only whether it warns counts."""
    straight = [cell for cell in cells if not cell["setting"]["shuffled"]]
    parts = ["## What the verdict is worth"]
    if straight:
        parts += [
            f"The score of a planner with the reward as handed out, of agents of whom the verdict warns and of the others, over all sweeps"
            f" but logs with shuffled ids; every agent of every fit once. *misled*: share with less than {LOW:g}.",
            worth_table(straight),
            f"*good*: a plan of at least {GOOD:g}; a warning of it is a *false alarm*. *poor*: a plan below {LOW:g}; without a warning it"
            " is a *miss*. *poor if plain*: agents whose plan on the plain reward is below that, and how many of them are warned of.",
            alarms_table(straight),
            misses_part(straight),
        ]
    return [*parts, counts_part(straight, [cell for cell in cells if cell["setting"]["shuffled"]])]


def worth_table(cells: Sequence[Cell]) -> str:
    worlds = ordered((cell["world"] for cell in cells), sweeps.EVERY)
    groups = [(world, [cell for cell in cells if cell["world"] == world]) for world in worlds] + [("all", list(cells))]
    rows = [
        [name, *(text for warned in (True, False) for text in _worth([planned(cell) for cell in some if cell["doubtful"] == warned]))]
        for name, some in groups
    ]
    return markdown(["world", "warned of", "score", "misled", "others", "score", "misled"], rows)


def alarms_table(cells: Sequence[Cell]) -> str:
    """False alarms and misses, by sweep and condition."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_log(cell), []).append(cell)
    rows = []
    for name, some in [*groups.items(), ("all", list(cells))]:
        good, poor = [c for c in some if planned(c) >= GOOD], [c for c in some if planned(c) < LOW]
        plain = [c for c in some if c["scores"]["plain"] is not None and c["scores"]["plain"] < LOW]
        alarms, missed = sum(c["doubtful"] for c in good), sum(not c["doubtful"] for c in poor)
        shares = [f"{alarms} ({alarms / max(len(good), 1):.0%})", f"{len(poor)}", f"{missed}", f"{len(plain)}"]
        rows.append([name, f"{len(some)}", f"{len(good)}", *shares, f"{sum(c['doubtful'] for c in plain)}"])
    return markdown(["log", "agents", "good", "false alarms", "poor", "misses", "poor if plain", "warned of"], rows)


def _worth(scores: Sequence[float]) -> list[str]:
    if not scores:
        return ["0", "–", "–"]
    return [f"{len(scores):,}", number(stats.iqm(scores)), number(float(np.mean(np.array(scores) < LOW)))]


def misses(cells: Sequence[Cell]) -> list[Cell]:
    """Agents who misled the planner without a warning, the worst first."""
    return sorted((cell for cell in cells if not cell["doubtful"] and planned(cell) < LOW), key=planned)


def misses_part(cells: Sequence[Cell]) -> str:
    found = misses(cells)
    title = f"### Misses\n\nNot warned of, and a score below {LOW:g}: {len(found):,} of {len(cells):,}."
    rows = [[cell["world"], cell["agent"], _log(cell), str(cell["seed"]), number(planned(cell))] for cell in found]
    return f"{title}\n\n{markdown(['world', 'agent', 'log', 'seed', 'score'], rows)}" if found else title


def _log(cell: Cell) -> str:
    return f"{cell['sweep']}: {cell['condition']}"


def counts_part(straight: Sequence[Cell], shuffled: Sequence[Cell]) -> str:
    flipped = [cell for cell in straight if cell["r_own"] is not None and cell["r_own"] < 0]
    silent = [cell for cell in flipped if not cell["doubtful"]]
    logs: dict[sweeps.Fit, list[bool]] = {}
    for cell in shuffled:
        logs.setdefault(store.fit_of(cell), []).append(cell["doubtful"])
    calm = {store.fit_of(cell) for cell in straight}
    mistaken = {store.fit_of(cell) for cell in straight if "shuffled-ids" in cell.get("log_findings", ())}
    everybody, nobody = sum(map(all, logs.values())), sum(not any(doubtful) for doubtful in logs.values())
    some = len(logs) - everybody - nobody
    return "\n".join(
        [
            "### Counts",
            "",
            f"- Flipped signs (correlation on own steps below 0): {len(flipped):,} of {len(straight):,}; not warned of: {len(silent):,}.",
            f"- Logs with right ids that were said to look shuffled: {len(mistaken):,} of {len(calm):,}.",
            f"- Logs with shuffled ids: {len(logs):,}; warned of every agent: {everybody:,}, of some: {some:,}, of nobody: {nobody:,}.",
        ]
    )


# --- The picture ---------------------------------------------------------------------------------------------------------


def draw(cells: Sequence[Cell], path: Path) -> None:
    """A panel per condition of `main`, a band per world, and in it what plans and imitation score."""
    main = [cell for cell in cells if cell["sweep"] == "main"]
    if not main:
        return
    conditions = ordered((cell["condition"] for cell in main), sweeps.SWEEPS["main"].conditions)
    worlds = ordered((cell["world"] for cell in main), sweeps.EVERY)
    with plt.rc_context(STYLE):
        size = 1.5 + 4.6 * len(conditions), 1.4 + 0.5 * len(worlds)
        drawing, axes = plt.subplots(1, len(conditions), figsize=size, sharex=True, sharey=True, squeeze=False)
        for ax, condition in zip(axes[0], conditions, strict=True):
            for band, world in enumerate(worlds):
                some = [cell for cell in main if (cell["world"], cell["condition"]) == (world, condition)]
                _band(ax, band, [estimate(some, score_of(name)) for name in DRAWN])
            ax.set_title(condition)
            ax.set_xlabel("score")
            ax.axvline(1, color="#9a9a9a", linewidth=0.8, zorder=1)
        axes[0][0].set_yticks(range(len(worlds)), worlds)
        axes[0][0].set_ylim(len(worlds) - 0.5, -0.5)
        marks = [Line2D([], [], marker="o", linestyle="", color=c, label=SCORES[n]) for n, c in zip(DRAWN, PALETTE, strict=False)]
        drawing.tight_layout(rect=(0, 0.5 / size[1], 1, 1))
        drawing.legend(handles=marks, loc="lower center", ncols=len(marks), frameon=False)
        drawing.savefig(path, metadata={"Software": None})
        plt.close(drawing)


def _band(ax: Axes, band: int, found: Sequence[Estimate | None]) -> None:
    if band % 2 == 0:
        ax.axhspan(band - 0.5, band + 0.5, color="#f6f6f6", zorder=0, linewidth=0)
    for i, (e, colour) in enumerate(zip(found, PALETTE, strict=False)):
        if e is not None:
            y = band + 0.17 * (i - (len(found) - 1) / 2)
            value, low, high = np.maximum([e.value, e.low, e.high], LOWEST_DRAWN)
            ax.plot([low, high], [y, y], color=colour, linewidth=1.6, solid_capstyle="butt")
            ax.plot(value, y, marker="o" if e.value >= LOWEST_DRAWN else "<", color=colour, markersize=4.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory of cells.jsonl, such as results/logs-alone")
    try:
        print(f"Written: {render(parser.parse_args().out)}")
    except UserError as error:
        sys.exit(f"report.py: {error}")


if __name__ == "__main__":
    main()
