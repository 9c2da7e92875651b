"""What a search leaves: the lineage as a table and a picture, and the run that it found as a file for `psiphi train --config`."""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from psiphi import disk
from psiphi.spaces import Range
from psiphi.training import Run
from psiphi.tuning.plan import Plan, Row, best, found_run, line

LINEAGE, PICTURE, FOUND = "lineage.csv", "lineage.png", "best.json"


def write(plan: Plan, run: Run, lineage: Sequence[Row], out: Path) -> Run:
    """All three files; gives the run that was found."""
    found = found_run(plan, run, lineage)
    disk.write(out / LINEAGE, table(plan, lineage).encode())
    disk.write(out / PICTURE, picture(plan, lineage))
    disk.write(out / FOUND, (json.dumps(dataclasses.asdict(found), indent=2) + "\n").encode())
    return found


def table(plan: Plan, lineage: Sequence[Row]) -> str:
    """One line per trial and round as CSV; a trial that left the finite numbers has no score."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["round", "steps", "trial", "parent", "score", *plan.space])
    for row in lineage:
        shown = repr(row.score) if math.isfinite(row.score) else ""
        writer.writerow([row.round, row.steps, row.trial, row.parent, shown, *(repr(row.values[name]) for name in plan.space)])
    return text.getvalue()


def summary(plan: Plan, lineage: Sequence[Row]) -> list[str]:
    """What is worth reading on a terminal: the best trials of the last round, and the best one's way."""
    last = max(row.round for row in lineage)
    ranked = sorted((row for row in lineage if row.round == last), key=lambda row: (-row.score, row.trial))
    heading = f"{'trial':>5}  {'score':>8}  " + "  ".join(f"{name:>14}" for name in plan.space)
    whole = line(lineage, ranked[0])
    copies = [f"round {row.round} from trial {row.parent}" for row in whole if row.parent != row.trial]
    way = f"Trial {ranked[0].trial} came " + (", ".join(copies) if copies else "all the way by itself") + "."
    return [heading, *(_line(plan, row) for row in ranked[:5]), way]


def _line(plan: Plan, row: Row) -> str:
    return f"{row.trial:>5}  {row.score:>8.4g}  " + "  ".join(f"{row.values[name]:>14.4g}" for name in plan.space)


def picture(plan: Plan, lineage: Sequence[Row]) -> bytes:
    """Scores over the rounds, and below each searched number; the best trial's line is drawn bold, copies lead from one line to another."""
    names = list(plan.space)
    figure: Figure = plt.figure(figsize=(7, 2.2 * (1 + len(names))), layout="constrained")
    axes = figure.subplots(1 + len(names), 1, sharex=True)
    whole = {(row.round, row.trial) for row in line(lineage, best(lineage))}
    places = {(row.round, row.trial): row for row in lineage}
    for ax, name in zip(axes, ["score", *names], strict=True):
        for row in lineage:
            before = places.get((row.round - 1, row.parent))
            bold = (row.round, row.trial) in whole
            xs, ys = [row.steps], [_height(row, name)]
            if before is not None:
                xs, ys = [before.steps, row.steps], [_height(before, name), _height(row, name)]
            ax.plot(
                xs, ys, color="C1" if bold else "0.7", linewidth=2 if bold else 0.7, marker="." if bold else "", zorder=2 if bold else 1
            )
        where = plan.space.get(name)
        if isinstance(where, Range) and where.log:
            ax.set_yscale("log")
        ax.set_ylabel(name)
    axes[-1].set_xlabel("steps of each trial")
    axes[0].set_title(f"{plan.run.algorithm} in {plan.run.env}: {plan.trials} trials, {plan.search}")
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=100, metadata={"Software": None})
    plt.close(figure)
    return data.getvalue()


def _height(row: Row, name: str) -> float:
    value = row.score if name == "score" else row.values[name]
    return value if math.isfinite(value) else math.nan
