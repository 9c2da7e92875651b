"""Tables and pictures from files: reads `cells.jsonl`, writes `README.md` and the figures beside it. Knows no agent and trains nothing."""

import base64
import io
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.patches import Circle

from psiphi import disk, printable, stats
from psiphi.errors import UserError
from psiphi.experiments import cells, paper
from psiphi.experiments.cells import Cell
from psiphi.experiments.paper import Experiment, Figure, Method, Table, Variant

Picture = dict[str, Any]
"""Cumulants over a board, as JSON values: `board`, `phi`, `correlation`, `demonstrators`, `preferences`."""

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Colours that the colour-blind can tell apart (Okabe and Ito)."""

INK, FAINT = "#222222", "#9a9a9a"
COINS = {"red": "#D55E00", "green": "#009E73", "yellow": "#E6B800"}

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": "#555555",
    "ytick.color": INK,
    "ytick.major.size": 0,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "savefig.dpi": 160,
}


def render(directory: Path, experiment: Experiment | None = None) -> Path:
    """Draw everything about the cells in a directory, and give the path of its README; `experiment` is of what, if not the paper's."""
    results = load(directory, experiment)
    try:
        with plt.rc_context(STYLE):
            drawn = figures(results, directory)
        page = readme(results, drawn)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:  # cells are believed in their fields only
        raise UserError(f"{directory} cannot be drawn: what its cells hold does not fit together ({type(error).__name__}).") from error
    disk.write(directory / "README.md", page.encode())
    return directory / "README.md"


# --- What there is to report ---------------------------------------------------------------------------------------------


class Results(NamedTuple):
    """The cells of one experiment, and its methods and variants that have any."""

    experiment: Experiment
    cells: list[Cell]
    variants: list[Variant]
    methods: list[Method]


class Estimate(NamedTuple):
    """The interquartile mean of some seeds and its 95 % bootstrap interval; `undefined` seeds had no finite value and are left out."""

    value: float
    low: float
    high: float
    seeds: int
    undefined: int


def load(directory: Path, experiment: Experiment | None = None) -> Results:
    found = cells.read(directory)
    if not found:
        raise UserError(f"There is nothing to report: {directory} has no cells ({cells.FILE}).")
    names = {cell["experiment"] for cell in found}
    known = paper.EXPERIMENTS | paper.WITH_EXTRAS if experiment is None else {experiment.name: experiment}
    if len(names) > 1 or not names <= set(known):
        raise UserError(f"{directory} holds cells of {', '.join(sorted(names))}, expected those of one of {', '.join(known)}.")
    experiment = known[names.pop()]
    return Results(
        experiment,
        [
            *found,
            *(derived := steps_to_best(found)),
            *over_control(derived, experiment.control),
            *of_the_rule(found, experiment.methods),
            *counted_last(found, experiment.counted),
        ],
        _named(experiment.variants, (cell["env"] for cell in found), lambda name, label: Variant(name, label, name)),
        _named(experiment.methods, (cell["method"] for cell in found), Method),
    )


def _named(known: Sequence[Any], found: Iterable[str], kind: Callable[[str, str], Any]) -> list[Any]:
    """Those that were found, in the experiment's order; names of an older version come last, as their own labels."""
    names = list(dict.fromkeys(found))
    order = [item for item in known if item.name in names]
    return order + [kind(name, name) for name in names if name not in {item.name for item in known}]


NEVER = "never_"
"""What the name of a metric begins with that is 1 where the steps to something are those of the whole run, as it never came; else 0."""


def steps_to_best(found: Sequence[Cell]) -> list[Cell]:
    """For every curve cells with the steps to that share of the largest final return which counts as solved, the methods' being
    interquartile means over seeds, and whether it came to that and to what counts as solved by itself."""
    final: dict[tuple[str, str], list[float]] = {}
    for cell in found:
        if cell["metric"] == "final_return" and cell["value"] is not None:
            final.setdefault((cell["env"], cell["method"]), []).append(cell["value"])
    best: dict[str, float] = {}
    for (env, _), returns in final.items():
        best[env] = max(best.get(env, -np.inf), stats.iqm(returns))

    derived = []
    for cell in found:
        curve = cell.get("extra", {}).get("curve", {})
        if cell["env"] not in best or "normalised_return" not in curve:
            continue
        steps, returns = curve["env_steps"], curve["normalised_return"]
        figures = {NEVER + "steps_to_90": float(max(returns) < paper.SOLVED)}
        if best[cell["env"]] > 0:  # of nothing, or less, there is no share
            level = paper.SOLVED * best[cell["env"]]
            figures[paper.STEPS_TO_BEST] = float(stats.steps_to(steps, returns, level))
            figures[NEVER + paper.STEPS_TO_BEST] = float(max(returns) < level)
        derived += [{**cell, "metric": metric, "value": value, "extra": {}} for metric, value in figures.items()]
    return derived


def over_control(steps: Sequence[Cell], control: str | None) -> list[Cell]:
    """For every number of steps, its ratio to the control's with the same seed: below 1 is sooner, and the control's own is 1."""
    steps = [cell for cell in steps if cell["metric"] == paper.STEPS_TO_BEST]
    base = {(cell["env"], cell["seed"]): cell["value"] for cell in steps if cell["method"] == control}
    known = [cell for cell in steps if (cell["env"], cell["seed"]) in base]
    return [{**cell, "metric": paper.OVER_CONTROL, "value": cell["value"] / base[cell["env"], cell["seed"]]} for cell in known]


def of_the_rule(found: Sequence[Cell], methods: Sequence[Method]) -> list[Cell]:
    """Every return over that of the rule by which the demonstrators act, with the same seed, and the mean over the demonstrators.

    A rule that earns nothing, or less, has no shares.
    """
    rules = {method.name for method in methods if method.how == "rule"}
    returns = [cell for cell in found if cell["metric"] == "return" and cell["task"] != paper.ALL and cell["value"] is not None]
    base = {(cell["env"], cell["seed"], cell["task"]): cell["value"] for cell in returns if cell["method"] in rules and cell["value"] > 0}
    shares = [
        {**cell, "metric": paper.OF_THE_RULE, "value": cell["value"] / base[cell["env"], cell["seed"], cell["task"]]}
        for cell in returns
        if (cell["env"], cell["seed"], cell["task"]) in base
    ]
    rows: dict[tuple[str, str, int], list[Cell]] = {}
    for cell in shares:
        rows.setdefault((cell["env"], cell["method"], cell["seed"]), []).append(cell)
    means = [{**some[0], "task": paper.ALL, "value": float(np.mean([cell["value"] for cell in some]))} for some in rows.values()]
    return shares + means


def counted_last(found: Sequence[Cell], names: Sequence[str]) -> list[Cell]:
    """For every curve a cell with the last count of each of these, in an episode."""
    curves = [(cell, cell["extra"]["also"]) for cell in found if "also" in cell.get("extra", {})]
    return [
        {**cell, "metric": paper.AT_THE_END + name, "value": also[name][-1], "extra": {}}
        for cell, also in curves
        for name in names
        if name in also
    ]


def values(results: Results, variant: Variant, method: Method, wanted: Sequence[Figure]) -> np.ndarray:
    """A value per seed: the mean of the wanted figures, for the seeds that have them all (NaN where one is not finite)."""
    wanted = [figure._replace(task=variant.task) if figure.task == paper.EGO and variant.task else figure for figure in wanted]
    by_figure = [
        {
            cell["seed"]: np.nan if cell["value"] is None else cell["value"]
            for cell in results.cells
            if (cell["env"], cell["method"]) == (variant.name, method.name)
            and Figure(cell["metric"], cell["task"], cell.get("shots")) == figure
        }
        for figure in wanted
    ]
    seeds = sorted(set.intersection(*map(set, by_figure))) if by_figure else []
    return np.array([np.mean([some[seed] for some in by_figure]) for seed in seeds])


def estimate(x: np.ndarray) -> Estimate | None:
    finite = x[np.isfinite(x)]
    if not len(finite):
        return None if not len(x) else Estimate(np.nan, np.nan, np.nan, 0, len(x))
    return Estimate(stats.iqm(finite), *stats.bootstrap_interval(finite), len(finite), len(x) - len(finite))


# --- Words ---------------------------------------------------------------------------------------------------------------


def readme(results: Results, drawn: Sequence[tuple[str, str]]) -> str:
    """The page: what it is, the tables, the figures, and how to get them again."""
    experiment = results.experiment
    parts = [f"# {experiment.title}", experiment.story, *(f"![{title}]({file})" for file, title in drawn)]
    parts.append("Numbers are interquartile means over seeds with 95 % bootstrap intervals in brackets; the last column counts the seeds.")
    for variant in results.variants:
        parts += [f"## {variant.label}", *([variant.story] if variant.story else [])]
        for table in experiment.tables:
            lines = table_lines(results, variant, table) if paper.has(variant, table) else []
            parts += [f"### {table.title}", "\n".join(lines)] if lines else []
    parts += ["## What each method saw", "\n".join(seen_lines(results)), "## How to get them again", "\n".join(origin_lines(results))]
    return "\n\n".join(parts) + "\n"


def table_lines(results: Results, variant: Variant, table: Table) -> list[str]:
    """A table in Markdown."""
    rows = table_rows(results, variant, table)
    return _markdown(["", *(heading for heading, _ in table.columns), "seeds"], rows) if rows else []


def table_rows(results: Results, variant: Variant, table: Table) -> list[list[str]]:
    """The rows of a table: methods with cells in it, then what the paper printed."""
    rows = []
    for method in results.methods:
        estimates = [_estimated(results, variant, method, figure) for _, figure in table.columns]
        if any(estimates):
            words = [
                _words(e, figure, int(values(results, variant, method, (figure._replace(metric=NEVER + figure.metric),)).sum()))
                for e, (_, figure) in zip(estimates, table.columns, strict=True)
            ]
            rows.append([method.label, *words, _seeds([e for e in estimates if e])])
    if not rows:
        return []
    return rows + [[f"*{name}*", *map(_printed, numbers), ""] for name, numbers in table.paper.items()]


def _estimated(results: Results, variant: Variant, method: Method, figure: Figure) -> Estimate | None:
    """What a method has for a figure; what learns nothing and was not judged by it may have a ceiling instead."""
    found = estimate(values(results, variant, method, (figure,)))
    ceiling = None if method.trains else ceiling_of(figure)
    return estimate(values(results, variant, method, (ceiling,))) if found is None and ceiling else found


def ceiling_of(figure: Figure) -> Figure | None:
    """What exact planning says of a figure. Of the first episode nothing: the task is not known yet."""
    return Figure("gpi_ceiling", figure.task) if figure.metric == "normalised_return" and figure.shots else None


def _words(e: Estimate | None, figure: Figure, never: int) -> str:
    """An estimate; `never` counts the seeds on which what was waited for did not come."""
    if e is None:
        return "–"
    if not e.seeds:
        return "not finite"
    if never == e.seeds:
        return "never"
    digits = 3 if figure.metric.endswith("accuracy") else 0 if figure.metric.startswith("steps_to") else 2
    interval = f" [{e.low:,.{digits}f}, {e.high:,.{digits}f}]" if e.seeds > 1 else ""
    notes = ((e.undefined, f"{e.undefined} not finite"), (never, f"{never} of {e.seeds} never"))
    return f"{e.value:,.{digits}f}{interval}{''.join(f' ({words})' for count, words in notes if count)}"


def _seeds(estimates: Sequence[Estimate]) -> str:
    counts = sorted({e.seeds + e.undefined for e in estimates})
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"


def _printed(number: paper.Printed | None) -> str:
    if number is None:
        return ""
    digits = 1 if round(number.value, 1) == number.value else 2
    return f"*{number.value:.{digits}f}{'' if number.error is None else f' ± {number.error:.{digits}f}'}*"


def _markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    rule = ["---", *("---:" for _ in heading[1:])]
    return [f"| {' | '.join(row)} |" for row in (heading, rule, *rows)]


def seen_lines(results: Results) -> list[str]:
    """Before it met a task: which demonstrations, which steps of its own, which rewards; and how long that took."""
    rows = []
    for method in results.methods:
        by_seen: dict[tuple[str, ...], list[Cell]] = {}
        for cell in results.cells:
            if cell["method"] == method.name:
                seen = _seen(cell["config"]) if method.trains else _KNOWS
                by_seen.setdefault(tuple(seen), []).append(cell)
        for seen, some in by_seen.items():
            where = f" · {', '.join(dict.fromkeys(cell['env'] for cell in some))}" if len(by_seen) > 1 else ""
            seconds = [_median([cell[name] for cell in some if name in cell]) for name in ("train_s", "wall_s")]
            rows.append([method.label + where, *seen, *seconds])
    return _markdown(["", "demonstrations", "steps of its own", "rewards", "seconds to train (median)", "and to measure, in all"], rows)


_KNOWS = ["knows the world and the demonstrators", "–", "–"]


def _median(x: Sequence[float]) -> str:
    return f"{np.median(x):.0f}" if len(x) else "–"


def _seen(config: dict[str, Any]) -> list[str]:
    saw = [str(words) for words in config.get("saw", ["?", "?", "?"])]
    return [printable.markdown(re.sub(r"^1 episodes", "1 episode", words), 400) for words in saw]


def origin_lines(results: Results) -> list[str]:
    """Commands, commits and versions, each as often as they differ."""
    commits = dict.fromkeys(cell["commit"] or "no commit (not run from a checkout)" for cell in results.cells)
    setups = dict.fromkeys(", ".join(f"{name} {version}" for name, version in cell["versions"].items()) for cell in results.cells)
    commands = dict.fromkeys(printable.visible(cell["command"]).replace("```", "``") for cell in results.cells)
    lines = ["```", *commands, "```", ""]
    lines += [f"- Commit: {printable.markdown(commit)}" for commit in commits]
    lines += [f"- Setup: {printable.markdown(setup, 400)}" for setup in setups]
    seeds = sorted({cell["seed"] for cell in results.cells})
    return [*lines, f"- Seeds: {ranges(seeds)}", f"- Every number with its seed and config: [`{cells.FILE}`]({cells.FILE})"]


def ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 as 0-2, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


# --- Figures -------------------------------------------------------------------------------------------------------------


def figures(results: Results, directory: Path) -> list[tuple[str, str]]:
    """Draw what the experiment has; gives file names and titles."""
    drawn = []
    if any(table.paper and table.columns[0][1].shots is not None for table in results.experiment.tables):
        _save(transfer_figure(results), directory / "transfer.png")
        drawn.append(("transfer.png", "Few-shot transfer: interquartile means with 95 % intervals, and the paper's"))
    if results.experiment.panels:
        _save(methods_figure(results), directory / "methods.png")
        drawn.append(("methods.png", "The methods compared: interquartile means with 95 % intervals"))
    if any("curve" in cell.get("extra", {}) for cell in results.cells):
        _save(curves_figure(results), directory / "curves.png")
        _save(curves_figure(results), directory / "curves.svg")
        drawn.append(("curves.png", "Learning curves: interquartile means over seeds, 95 % intervals, and each seed"))
    if results.experiment.counted:
        _save(counts_figure(results), directory / "counts.png")
        drawn.append(("counts.png", f"In an episode: {', '.join(results.experiment.counted)}"))
    pictured = [cell for cell in results.cells if "extra" in cell and "phi" in cell["extra"]]
    for cell in pictured[:1]:
        title = f"The learned cumulants over a board (seed {cell['seed']})"
        draw_cumulants(directory / "cumulants.png", directory / "cumulants.html", cell["extra"], title)
        drawn.append(("cumulants.png", title))
    films = {f"{variant.name}.gif": f"{variant.label}: an episode after training" for variant in results.variants}
    return drawn + [(name, title) for name, title in films.items() if (directory / name).exists()]


def transfer_figure(results: Results) -> Drawing:
    """A row per variant, a panel per number of shots, a band per task: methods as dots, the paper as diamonds, the ceiling as ticks."""
    tables = [table for table in results.experiment.tables if table.columns[0][1].metric == "normalised_return"]
    methods = [method for method in results.methods if method.trains]
    shape = len(results.variants), len(tables)
    drawing, axes = plt.subplots(*shape, figsize=(10.5, 0.9 + 2.6 * shape[0]), sharex=True, sharey=True, squeeze=False)
    for row, variant in zip(axes, results.variants, strict=True):
        for ax, table in zip(row, tables, strict=True):
            _transfer_panel(ax, results, variant, table, methods)
        row[0].set_title(f"{variant.label}\n\n{tables[0].title}")
        for ax, table in zip(row[1:], tables[1:], strict=True):
            ax.set_title(table.title)
    for ax in axes[-1]:
        ax.set_xlabel("normalised return")
    marks = [Line2D([], [], marker="o", linestyle="", color=colour, label=m.label) for m, colour in zip(methods, PALETTE, strict=False)]
    marks.append(
        Line2D([], [], marker="D", linestyle="", color=INK, markerfacecolor="white", markersize=5.5, label="ΨΦ-learning in the paper")
    )
    marks.append(Line2D([], [], marker="|", linestyle="", color=FAINT, markersize=11, mew=1.6, label="ceiling: GPI with exact ψ, φ, w"))
    drawing.tight_layout(rect=(0, 0.13 / shape[0] + 0.02, 1, 1), h_pad=2.2, w_pad=2.5)
    drawing.legend(handles=marks, loc="lower center", ncols=2 if len(marks) > 3 else len(marks), frameon=False, columnspacing=2.5)
    return drawing


def _transfer_panel(ax: Axes, results: Results, variant: Variant, table: Table, methods: Sequence[Method]) -> None:
    step = 0.62 / max(len(methods), 1)
    for band, (_, figure) in enumerate(table.columns):
        if band % 2 == 0:
            ax.axhspan(band - 0.5, band + 0.5, color="#f6f6f6", zorder=0, linewidth=0)
        _ceiling_tick(ax, results, variant, figure, band)
        printed = table.paper[paper.PSIPHI][band] if paper.PSIPHI in table.paper else None
        if printed:
            ax.plot(printed.value, band - 0.36, marker="D", color=INK, markerfacecolor="white", markersize=5, clip_on=False, zorder=3)
        for i, (method, colour) in enumerate(zip(methods, PALETTE, strict=False)):
            _dot(ax, estimate(values(results, variant, method, (figure,))), band - 0.12 + i * step, colour)
    ax.set_yticks(range(len(table.columns)), [heading for heading, _ in table.columns])
    ax.set_ylim(len(table.columns) - 0.5, -0.5)
    ax.set_xlim(-1.08, 1.08)
    ax.set_xticks([-1, -0.5, 0, 0.5, 1])


def _ceiling_tick(ax: Axes, results: Results, variant: Variant, figure: Figure, band: int) -> None:
    ceiling = ceiling_of(figure)
    for method in results.methods:
        best = estimate(values(results, variant, method, (ceiling,))) if ceiling else None
        if best:
            ax.plot([best.value] * 2, [band - 0.44, band + 0.44], color=FAINT, linewidth=1.6, zorder=1)


def _dot(ax: Axes, e: Estimate | None, y: float, colour: str) -> None:
    if e is None or not e.seeds:
        return
    ax.plot([e.low, e.high], [y, y], color=colour, linewidth=2, solid_capstyle="round", alpha=0.55, zorder=2)
    ax.plot(e.value, y, marker="o", color=colour, markersize=5, markeredgecolor="white", markeredgewidth=0.6, clip_on=False, zorder=4)


def methods_figure(results: Results) -> Drawing:
    """A panel per quantity, a line per method in each variant; a thin line carries the first method's value through."""
    lines = [(v, m) for v in results.variants for m in results.methods if m.trains and _has(results, v, m)]
    panels = results.experiment.panels
    drawing, axes = plt.subplots(1, len(panels), figsize=(2.6 + 2.35 * len(panels), 1.1 + 0.31 * len(lines)), sharey=True, squeeze=False)
    for ax, panel in zip(axes[0], panels, strict=True):
        for y, (variant, method) in enumerate(lines):
            e = estimate(values(results, variant, method, panel.figures)) if paper.has(variant, panel) else None
            best = estimate(values(results, variant, method, panel.ceiling)) if panel.ceiling else None
            _line(ax, y, e, best, main=method == lines[0][1])
        ax.set_title(panel.title, fontsize=9, pad=9)
        low, high = ax.get_xlim()
        ax.set_xlim(low - 0.06 * (high - low), high + 0.06 * (high - low))
    several = len(results.variants) > 1
    labels = [f"{method.label}{f' · {variant.name}' if several else ''}" for variant, method in lines]
    axes[0][0].set_yticks(range(len(lines)), labels)
    axes[0][0].set_ylim(len(lines) - 0.5, -0.5)
    drawing.tight_layout(w_pad=3.2)
    return drawing


def _line(ax: Axes, y: int, e: Estimate | None, best: Estimate | None, *, main: bool) -> None:
    """One method in one panel: the dot with its interval, the most there could be as a tick, and the number at the right."""
    if y % 2 == 0:
        ax.axhspan(y - 0.5, y + 0.5, color="#f6f6f6", zorder=0, linewidth=0)
    if e is None:
        return
    if e.seeds and y == 0:
        ax.axvline(e.value, color=PALETTE[0], linewidth=0.9, alpha=0.5, zorder=1)
    _dot(ax, e, y, PALETTE[0] if main else INK)
    if best and best.seeds:
        ax.plot([best.value] * 2, [y - 0.3, y + 0.3], color=PALETTE[1], linewidth=1.6, zorder=3)
    place: dict[str, Any] = dict(transform=ax.get_yaxis_transform(), va="center", fontsize=7.5, color=PALETTE[0] if main else "#555555")
    ax.text(1.02, y, f"{e.value:.2f}" if e.seeds else "n/a", **place)


def _has(results: Results, variant: Variant, method: Method) -> bool:
    return any((cell["env"], cell["method"]) == (variant.name, method.name) for cell in results.cells)


# --- Learning curves -----------------------------------------------------------------------------------------------------


MOST_ACROSS = 4
"""Panels of one quantity beside each other; more of them take two rows."""
WIDEST = 46
"""Letters of a panel's title in a line."""


def curves_figure(results: Results) -> Drawing:
    """A panel per variant: every seed as a thin line, the interquartile mean as a thick one in the band of its interval."""
    return _curves(results, [("curve", results.experiment.axes[1])])


def counts_figure(results: Results) -> Drawing:
    """The same of what the world counts in an episode, a row each."""
    return _curves(results, [("also", name) for name in results.experiment.counted])


def _curves(results: Results, rows: Sequence[tuple[str, str]]) -> Drawing:
    """A row per quantity, by where cells keep it and its name, and a panel per variant; many panels of one quantity take several rows."""
    over = results.experiment.axes[0]
    labels = list(dict.fromkeys(method.label for method in results.methods))  # one colour each, in whatever variants it is
    wrapped = len(rows) == 1 and len(results.variants) > MOST_ACROSS
    across = -(-len(results.variants) // 2) if wrapped else len(results.variants)
    down = 2 if wrapped else len(rows)
    size = 1.0 + 3.6 * across, 0.65 + (3.2 if wrapped else 2.7) * down
    shared: dict[str, Any] = {"sharex": "none", "sharey": "none"} if wrapped else {"sharex": "col", "sharey": "row"}
    drawing, axes = plt.subplots(down, across, figsize=size, squeeze=False, **shared)
    panels = [(row, variant) for row in rows for variant in results.variants]
    for i, (ax, ((kind, of), variant)) in enumerate(zip(axes.flat, panels, strict=False)):
        for method in results.methods:
            _curve(ax, _series(results, variant, method, kind, of), method.label, labels.index(method.label))
        if variant.task and kind == "curve":
            ax.axhline(paper.SOLVED, color=FAINT, linewidth=0.8, linestyle=":", zorder=0)
        ax.grid(True, axis="y")
        ax.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k")
        if i % across == 0:
            ax.set_ylabel(of.replace("_", " "))
        if wrapped or i < across:
            label = textwrap.fill(variant.label, WIDEST)
            ax.set_title(f"{label}\nthe ego wants {variant.task}" if variant.task else label, fontsize=9, pad=9)
        if wrapped or i >= len(panels) - across:
            ax.set_xlabel(over.replace("env_", "environment ").replace("_", " "))
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    lines = {label: handle for ax in axes.flat for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    foot = _legend(drawing, lines)
    drawing.set_figheight(size[1] + foot)
    drawing.tight_layout(rect=(0, foot / (size[1] + foot), 1, 1))
    return drawing


def _legend(drawing: Drawing, lines: dict[str, Any]) -> float:
    """Below all panels, in as many columns as fit beside each other; gives up to where it reaches, in inches."""
    for columns in range(min(len(lines), 8), 0, -1):
        legend = drawing.legend(lines.values(), lines.keys(), loc="lower center", ncols=columns, frameon=False, fontsize=8)
        extent = legend.get_window_extent()
        if extent.width <= drawing.bbox.width or columns == 1:
            return extent.y1 / drawing.dpi
        legend.remove()
    return 0.0


Line = tuple[Sequence[float], Sequence[float]]
"""What is drawn over what: x and y."""


def _series(results: Results, variant: Variant, method: Method, kind: str, of: str) -> list[Line]:
    """A line per seed. Who takes no steps is from the start what it became: its line goes as far as the longest of the panel."""
    over = results.experiment.axes[0]
    there = [cell for cell in results.cells if cell["env"] == variant.name and of in cell.get("extra", {}).get(kind, {})]
    end = max((cell["extra"][kind][over][-1] for cell in there), default=0)
    found: list[Line] = []
    for cell in there:
        if cell["method"] != method.name:
            continue
        last = dict(zip(cell["extra"][kind][over], cell["extra"][kind][of], strict=True))  # of several after the same steps, the last
        still = over == "env_steps" and not cell["env_steps"]
        found.append(([0, end], [list(last.values())[-1]] * 2) if still else (list(last), list(last.values())))
    return found


def _curve(ax: Axes, found: Sequence[Line], label: str, number: int) -> None:
    if not found:
        return
    colour, style = PALETTE[number % len(PALETTE)], "-" if number < len(PALETTE) else "--"
    steps = max((x for x, _ in found), key=len)
    each = np.stack([np.interp(steps, x, y) for x, y in found])
    for line in each:
        ax.plot(steps, line, color=colour, linewidth=0.5, alpha=0.25, linestyle=style)
    ax.plot(steps, stats.iqm(each, axis=0), color=colour, linewidth=1.8, label=label, linestyle=style)
    if len(each) > 1:
        low, high = np.array([stats.bootstrap_interval(column, resamples=500) for column in each.T]).T
        ax.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)


# --- Cumulants over a board ----------------------------------------------------------------------------------------------


def draw_cumulants(png: Path, page: Path, picture: Picture, title: str) -> None:
    """The picture as a PNG, and as an HTML page of its own with the tables of correlations and preferences."""
    with plt.rc_context({**STYLE, "axes.grid": False}):
        drawing = cumulants_figure(picture)
        data = io.BytesIO()
        drawing.savefig(data, format="png", bbox_inches="tight", facecolor="white")
        plt.close(drawing)
    disk.write(png, data.getvalue())
    disk.write(page, cumulants_page(picture, data.getvalue(), title).encode())


def cumulants_figure(picture: Picture) -> Drawing:
    """The board, then a panel per cumulant on one scale, with the cumulant's correlation to each colour above it."""
    phi, board = np.asarray(picture["phi"]), np.asarray(picture["board"])
    scale = max(np.abs(phi).max(), 1e-9)
    drawing, axes = plt.subplots(1, 1 + len(phi), figsize=(2.15 * (1 + len(phi)) + 0.6, 2.9), squeeze=False)
    _board(axes[0][0], board)
    axes[0][0].set_title("the board\n\n", fontsize=10)
    image = None
    for i, ax in enumerate(axes[0][1:]):
        image = ax.imshow(phi[i], cmap="RdBu_r", vmin=-scale, vmax=scale, extent=(0, phi.shape[2], phi.shape[1], 0))
        _coins(ax, board[1:-1, 1:-1], filled=False)
        ax.set_title(f"cumulant $\\phi_{{{i + 1}}}$\n\n", fontsize=10)
        _correlations(ax, picture["correlation"][i])
    for ax in axes[0]:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.spines[:].set_visible(True)
        ax.spines[:].set_color("#777777")
    if image is not None:
        bar = drawing.colorbar(image, cax=axes[0][-1].inset_axes((1.07, 0, 0.05, 1)))
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        bar.set_label("of stepping onto the cell", fontsize=8)
        bar.ax.tick_params(labelsize=7)
    return drawing


def _board(ax: Axes, board: np.ndarray) -> None:
    room = board[1:-1, 1:-1]
    ax.set_xlim(0, room.shape[1])
    ax.set_ylim(room.shape[0], 0)
    ax.set_aspect("equal")
    for line in range(1, room.shape[0]):
        ax.axhline(line, color="#e4e4e4", linewidth=0.8)
        ax.axvline(line, color="#e4e4e4", linewidth=0.8)
    _coins(ax, room, filled=True)


def _coins(ax: Axes, room: np.ndarray, *, filled: bool) -> None:
    """Discs with the colour's letter on the board, rings over the cumulants."""
    for channel, (name, colour) in enumerate(COINS.items()):
        for row, column in np.argwhere(room[..., channel] > 0):
            where = column + 0.5, row + 0.5
            if filled:
                ax.add_patch(Circle(where, 0.34, color=colour, linewidth=0))
                ax.text(*where, name[0].upper(), ha="center", va="center", color="white", fontsize=10, fontweight="bold")
            else:
                ax.add_patch(Circle(where, 0.36, fill=False, edgecolor="white", linewidth=3.2))
                ax.add_patch(Circle(where, 0.36, fill=False, edgecolor=colour, linewidth=1.8))


def _correlations(ax: Axes, row: Sequence[float]) -> None:
    """The three correlations above a panel, each in its colour, the strongest in bold if it is one."""
    strongest = int(np.argmax(np.abs(row))) if np.abs(row).max() > 0.3 else None
    for i, ((name, colour), value) in enumerate(zip(COINS.items(), row, strict=True)):
        weight = "bold" if i == strongest else "normal"
        place: dict[str, Any] = dict(transform=ax.transAxes, ha="center", va="bottom", color=colour, fontweight=weight)
        ax.text((i + 0.5) / 3, 1.11, name, fontsize=7.5, **place)
        ax.text((i + 0.5) / 3, 1.02, f"{value:+.2f}", fontsize=8.5, **place)


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1000px; margin: 2.5rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.4rem }} h2 {{ font-size: 1.05rem; margin-top: 2rem }}
img {{ width: 100% }} table {{ border-collapse: collapse }} th, td {{ padding: .3rem .9rem; text-align: right }}
th {{ font-weight: 600 }} thead th {{ border-bottom: 2px solid #222 }} tbody th {{ text-align: left }}
tbody tr + tr > * {{ border-top: 1px solid #ddd }}
p {{ max-width: 46rem }}
</style></head><body>
<h1>{title}</h1>
<img alt="A board of CoinGrid and every learned cumulant over it" src="data:image/png;base64,{png}">
<h2>Correlation of each cumulant with stepping on each colour</h2>
<p>Over the steps of a random policy. The learner was told nothing of colours or rewards: it saw what demonstrators did.</p>
{correlation}
<h2>Inferred preferences: what each demonstrator wants of each cumulant</h2>
{preferences}
</body></html>
"""


def cumulants_page(picture: Picture, png: bytes, title: str) -> str:
    names = [f"φ<sub>{i + 1}</sub>" for i in range(len(picture["correlation"]))]
    return PAGE.format(
        title=printable.html(title),
        png=base64.b64encode(png).decode(),
        correlation=_html_table(list(COINS), names, picture["correlation"]),
        preferences=_html_table(
            names, [f"demonstrator {printable.html(name)}" for name in picture["demonstrators"]], picture["preferences"]
        ),
    )


def _html_table(columns: Sequence[str], rows: Sequence[str], numbers: Sequence[Sequence[float]]) -> str:
    """Numbers on a tint that grows with their size."""
    head = "".join(f"<th>{name}</th>" for name in columns)
    largest = max(np.abs(numbers).max(), 1e-9)

    def cell(number: float) -> str:
        return f'<td style="background: rgba(0, 114, 178, {0.45 * abs(number) / largest:.2f})">{number:+.2f}</td>'

    body = "".join(f"<tr><th>{name}</th>{''.join(map(cell, row))}</tr>" for name, row in zip(rows, numbers, strict=True))
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"


# --- Files ---------------------------------------------------------------------------------------------------------------


def _save(drawing: Drawing, path: Path) -> None:
    data = io.BytesIO()
    # Without a date, the same cells make the same file.
    drawing.savefig(data, format=path.suffix[1:], facecolor="white", metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(drawing)
    disk.write(path, data.getvalue())
