"""One page of any set of runs and results, with everything in it: learning curves, tables, differences of settings, costs and pictures.

The page is an HTML file that loads nothing. Names and texts of strangers are escaped by the template, data are JSON that no character of
can open a tag, and a policy in the page's head forbids all scripts but its own.
"""

import base64
import hashlib
import importlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import psiphi
from psiphi import disk, printable, report, stats
from psiphi.errors import UserError
from psiphi.experiments import cells, paper
from psiphi.experiments.cells import Cell
from psiphi.loops import runs

MOST_POINTS = 200
"""Of a curve; of a longer one so many, evenly chosen."""
RESAMPLES = 500
"""Of the bootstrap, at each point."""
MOST_DIFFERENCES = 300
"""Rows of the table of settings."""
MOST_PICTURE_BYTES, MOST_PICTURES_BYTES = 4 * 2**20, 24 * 2**20
"""Of one picture or film, and of all."""
KINDS = {b"\x89PNG": "png", b"GIF8": "gif", b"\xff\xd8\xff": "jpeg"}
"""By how a file begins."""
PREFERRED = ("eval/normalised_return", "eval/return")
LOWER_IS_BETTER = ("steps", "starc")
"""How such metrics begin."""


class Line(NamedTuple):
    """What was trained several times with nothing but the seed changed."""

    panel: str
    """The world and the task, or the experiment and its variant."""
    label: str
    over: str
    of: str
    curves: dict[int, tuple[np.ndarray, np.ndarray]]
    """By seed: steps and values; empty where nothing was measured while it learned."""
    settings: dict[str, Any]
    """By dotted name, without the seed."""
    steps: list[float]
    """What each seed was trained for, in steps of the world, or in updates where it took none."""
    seconds: list[float]


class Picture(NamedTuple):
    name: str
    source: str
    """As a data URL; empty where it is too large."""


class Source(NamedTuple):
    """A directory, and what it says of itself."""

    name: str
    lines: list[Line]
    tables: list["Table"]
    facts: list[tuple[str, str]]
    pictures: list[Path]


class Table(NamedTuple):
    title: str
    heading: list[str]
    rows: list[list[str]]


def write(sources: Sequence[Path], path: Path) -> Path:
    """Write the page of these runs and results."""
    disk.check_file(path)
    disk.write(path, page(sources).encode())
    return path


def page(sources: Sequence[Path]) -> str:
    """The page as text."""
    environment = _jinja()
    found = [_source(directory) for directory in _directories(sources)]
    lines = _told_apart([line for source in found for line in source.lines])
    looks = {label: i for i, label in enumerate(dict.fromkeys(line.label for line in lines))}
    by_panel = {name: [line for line in lines if line.panel == name and line.curves] for name in dict.fromkeys(x.panel for x in lines)}
    panels = [_panel(name, some, looks) for name, some in by_panel.items() if some]
    script = _part("report.js")
    return environment.get_template("report.html").render(
        title=f"{len(found)} {'directory' if len(found) == 1 else 'directories'} of runs and results",
        version=psiphi.__version__,
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        css=_part("report.css"),
        js=script,
        data=printable.json([panel["data"] for panel in panels]),
        panels=panels,
        sources=found,
        differences=differences(lines),
        costs=_costs(lines),
        pictures=_pictures(found),
    )


def _jinja() -> Any:
    try:
        jinja2: Any = importlib.import_module("jinja2")
    except ImportError as error:
        raise UserError("A page needs Jinja2, expected it to be installed: pip install 'psiphi[report]'.") from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("psiphi", "page"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters["shown"] = lambda text, most=400: printable.visible(printable.short(str(text), most))
    return environment


def _part(name: str) -> str:
    return (resources.files("psiphi") / "page" / name).read_text(encoding="utf-8")


# --- What there is -------------------------------------------------------------------------------------------------------


def _directories(sources: Sequence[Path]) -> list[Path]:
    """Directories of runs and results among those that are given, or else inside of them."""
    found = []
    for given in sources:
        if not given.is_dir():
            raise UserError(
                f"{given} is not a directory, expected one with {runs.METRICS} or {cells.FILE}, or with such directories in it."
            )
        inside = [given] if _holds(given) else sorted(path for path in given.iterdir() if path.is_dir() and _holds(path))
        if not inside:
            raise UserError(f"{given} has nothing to report, expected {runs.METRICS} or {cells.FILE} there or in its directories.")
        found += inside
    return list(dict.fromkeys(found))


def _holds(directory: Path) -> bool:
    return (directory / runs.METRICS).exists() or (directory / cells.FILE).exists()


def _source(directory: Path) -> Source:
    pictures = sorted(path for path in directory.iterdir() if path.suffix.lower() in (".png", ".gif", ".jpg", ".jpeg"))
    if (directory / cells.FILE).exists():
        return _results(directory, pictures)
    return _run(directory, pictures)


def _run(directory: Path, pictures: list[Path]) -> Source:
    """A run directory: what was asked, and the rows."""
    try:
        config = disk.read_json(directory / runs.CONFIG)
    except FileNotFoundError as error:
        raise UserError(f"{directory} has {runs.METRICS} but no {runs.CONFIG}, expected both.") from error
    run = config.get("run", config) if isinstance(config, dict) else None
    if not isinstance(run, dict):
        raise UserError(f"{directory / runs.CONFIG} is not the config of a run, expected settings by name.")
    rows = [row for row in runs.read_rows(directory) if all(_number(row.get(name)) for name in ("step", "env_steps", "wall_s", "seed"))]
    name = _measured(rows)
    over = "env_steps" if any(row["env_steps"] for row in rows) else "step"
    curves, steps, seconds = {}, [], []
    for seed in dict.fromkeys(row["seed"] for row in rows):
        mine = [row for row in rows if row["seed"] == seed]
        points = {row[over]: value for row in mine if name and (value := _value(row, name)) is not None}
        if points:
            curves[seed] = np.array(list(points), float), np.array(list(points.values()), float)
        steps.append(mine[-1][over])
        seconds.append(mine[-1]["wall_s"])
    settings = {key: value for key, value in flat(run).items() if key != "seed"}
    panel = " · ".join(str(run[key]) for key in ("env", "task") if run.get(key)) or "runs"
    line = Line(panel, str(run.get("algorithm", "run")), over, name or "", curves, settings, steps, seconds)
    facts = [("run", str(directory)), ("seeds", ", ".join(str(seed) for seed in dict.fromkeys(row["seed"] for row in rows)))]
    return Source(str(directory), [line], [], facts, pictures)


def _measured(rows: Sequence[runs.Row]) -> str | None:
    """What is drawn of a run: what it earned, or else its first loss. A name that stands for several ends with a slash."""
    names = list(dict.fromkeys(name for row in rows for name, x in row.items() if _number(x)))
    for wanted in PREFERRED:
        if wanted in names:
            return wanted
        if any(name.startswith(f"{wanted}/") for name in names):
            return f"{wanted}/"
    kinds = ("eval/", "train/loss", "train/")
    return next((name for kind in kinds for name in names if name.startswith(kind)), None)


def _value(row: runs.Row, name: str) -> float | None:
    """A figure of a row, or the mean of those that the name stands for."""
    found = [x for key, x in row.items() if (key.startswith(name) if name.endswith("/") else key == name) and _number(x)]
    return float(np.mean(found)) if found else None


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)


def _results(directory: Path, pictures: list[Path]) -> Source:
    """A directory of cells: curves and tables of its methods, beside the paper's numbers where there are any."""
    found = cells.read(directory)
    if not found:
        raise UserError(f"There is nothing to report: {directory} has no cells ({cells.FILE}).")
    try:
        results = report.load(directory)
    except UserError:  # an experiment of the user's, whose file is not here
        results = None
    try:
        tables = _own_tables(found) if results is None else _paper_tables(results)
        lines = _lines(found, results)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:  # cells are believed in their fields only
        raise UserError(f"{directory} cannot be drawn: what its cells hold does not fit together ({type(error).__name__}).") from error
    facts = [("results", str(directory))]
    facts += [("command", command) for command in dict.fromkeys(cell["command"] for cell in found)]
    facts += [("commit", commit) for commit in dict.fromkeys(cell["commit"] or "none" for cell in found)]
    facts += [("setup", ", ".join(f"{k} {v}" for k, v in x)) for x in dict.fromkeys(tuple(cell["versions"].items()) for cell in found)]
    facts += [("seeds", report.ranges(sorted({cell["seed"] for cell in found})))]
    return Source(str(directory), lines, tables, facts, pictures)


def _lines(found: Sequence[Cell], results: report.Results | None) -> list[Line]:
    labels: dict[str, str] = {} if results is None else {method.name: method.label for method in results.methods}
    lines = []
    for env, method in dict.fromkeys((cell["env"], cell["method"]) for cell in found):
        mine = [cell for cell in found if (cell["env"], cell["method"]) == (env, method)]
        drawn = {cell["seed"]: cell["extra"]["curve"] for cell in mine if "curve" in cell.get("extra", {})}
        over, of = (list(next(iter(drawn.values())))[:2]) if drawn else ("env_steps", "")
        curves = {seed: (np.asarray(curve[over], float), np.asarray(curve[of], float)) for seed, curve in drawn.items()}
        by_seed = {cell["seed"]: cell for cell in mine}
        settings = {key: value for key, value in flat(mine[0]["config"]).items() if not key.startswith("saw")}
        seconds = [cell.get("train_s", cell["wall_s"]) for cell in by_seed.values()]
        steps = [cell["env_steps"] for cell in by_seed.values()]
        lines.append(Line(f"{mine[0]['experiment']} · {env}", str(labels.get(method, method)), over, of, curves, settings, steps, seconds))
    return lines


def _paper_tables(results: report.Results) -> list[Table]:
    """The experiment's own tables, with how probably the first method does better than each of the others."""
    tables = []
    for variant in results.variants:
        for table in results.experiment.tables:
            rows = report.table_rows(results, variant, table) if paper.has(variant, table) else []
            if not rows:
                continue
            figures = [figure for _, figure in table.columns]
            there = [method for method in results.methods if any(len(report.values(results, variant, method, (f,))) for f in figures)]
            scores = {method.label: _scores(results, variant, method, figures) for method in there if method.trains}
            first = next(iter(scores), "")
            extra = [""] + [improvement(scores.get(first), scores.get(row[0])) if row[0] != first else "" for row in rows]
            heading = ["", *(name for name, _ in table.columns), "seeds"]
            if any(extra):
                heading.append(f"P({first} is better)")
                rows = [[*row, words] for row, words in zip(rows, extra[1:], strict=True)]
            tables.append(Table(f"{variant.label}: {table.title}", heading, [[_plain(x) for x in row] for row in rows]))
    return tables


def _plain(text: str) -> str:
    """Without Markdown's emphasis."""
    return text.strip("*")


def _scores(results: report.Results, variant: paper.Variant, method: paper.Method, figures: Sequence[paper.Figure]) -> list[np.ndarray]:
    """For each figure the finite values of the seeds, the larger the better."""
    found = [report.values(results, variant, method, (figure,)) for figure in figures]
    signs = [-1.0 if figure.metric.startswith(LOWER_IS_BETTER) else 1.0 for figure in figures]
    return [sign * x[np.isfinite(x)] for sign, x in zip(signs, found, strict=True)]


def improvement(ours: list[np.ndarray] | None, theirs: list[np.ndarray] | None) -> str:
    """In words, over the figures that both have."""
    if ours is None or theirs is None:
        return ""
    pairs = [(x, y) for x, y in zip(ours, theirs, strict=True) if len(x) and len(y)]
    if not pairs:
        return ""
    value, low, high = stats.probability_of_improvement(pairs)
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _own_tables(found: Sequence[Cell]) -> list[Table]:
    """Of an experiment that psiphi does not know: a table per world, a column per figure."""
    tables = []
    for env in dict.fromkeys(cell["env"] for cell in found):
        mine = [cell for cell in found if cell["env"] == env]
        figures = list(dict.fromkeys(_figure(cell) for cell in mine))
        rows, scores = [], {}
        for method in dict.fromkeys(cell["method"] for cell in mine):
            values = [_finite(cell["value"] for cell in mine if cell["method"] == method and _figure(cell) == f) for f in figures]
            scores[method] = [-x if f.startswith(LOWER_IS_BETTER) else x for f, x in zip(figures, values, strict=True)]
            better = "" if method == next(iter(scores)) else improvement(next(iter(scores.values())), scores[method])
            rows.append([method, *(_interval(x) for x in values), better])
        tables.append(Table(env, ["", *figures, f"P({next(iter(scores))} is better)"], rows))
    return tables


def _figure(cell: Cell) -> str:
    shots = cell.get("shots")
    return f"{cell['metric']} {cell['task']}{'' if shots is None else f' after {shots}'}"


def _finite(values: Iterable[Any]) -> np.ndarray:
    return np.array([x for x in values if x is not None], float)


def _interval(x: np.ndarray) -> str:
    e = report.estimate(x)
    if e is None:
        return "–"
    return f"{e.value:,.4g}" + (f" [{e.low:,.4g}, {e.high:,.4g}]" if e.seeds > 1 else "")


# --- Settings and costs --------------------------------------------------------------------------------------------------


def flat(settings: Any, name: str = "") -> dict[str, Any]:
    """Settings by dotted name."""
    if not isinstance(settings, dict):
        return {name: settings}
    return {key: x for k, value in settings.items() for key, x in flat(value, f"{name}.{k}" if name else str(k)).items()}


def _told_apart(lines: Sequence[Line]) -> list[Line]:
    """Lines of the same settings joined; of those in a panel that have the same name, each says what is different about it."""
    joined: dict[str, Line] = {}
    for line in lines:
        key = json.dumps([line.panel, line.label, line.settings], sort_keys=True, default=str)
        if key in joined:
            old = joined[key]
            # A seed that two directories have is counted once, and the longer of its curves is drawn.
            curves = {**line.curves, **{s: c for s, c in old.curves.items() if s not in line.curves or len(c[0]) >= len(line.curves[s][0])}}
            joined[key] = old._replace(curves=curves, steps=old.steps + line.steps, seconds=old.seconds + line.seconds)
        else:
            joined[key] = line
    found = list(joined.values())
    return [line._replace(label=line.label + _difference(line, found)) for line in found]


def _difference(line: Line, lines: Sequence[Line]) -> str:
    same = [other for other in lines if (other.panel, other.label) == (line.panel, line.label)]
    names = [name for name in dict.fromkeys(n for other in same for n in other.settings) if len({_word(o, name) for o in same}) > 1]
    said = ", ".join(f"{name.rsplit('.', 1)[-1]} = {_word(line, name)}" for name in names[:3])
    return f" · {said}{', …' if len(names) > 3 else ''}" if said else ""


def _word(line: Line, name: str) -> str:
    return json.dumps(line.settings[name]) if name in line.settings else "–"


def differences(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """By panel: the settings in which its lines differ, a row each. What only some of them have is told where these differ."""
    found = []
    for panel in dict.fromkeys(line.panel for line in lines):
        mine = [line for line in lines if line.panel == panel]
        names = dict.fromkeys(name for line in mine for name in line.settings)
        differ = [name for name in names if len({_word(line, name) for line in mine if name in line.settings}) > 1]
        rows = [[name, *(_word(line, name) for line in mine)] for name in differ[:MOST_DIFFERENCES]]
        if rows:
            heading = [line.label for line in mine]
            found.append({"panel": panel, "heading": heading, "rows": rows, "more": max(len(differ) - MOST_DIFFERENCES, 0)})
    return found


def _costs(lines: Sequence[Line]) -> list[list[str]]:
    """Who took how long."""
    rows = []
    for line in lines:
        if not line.seconds:
            continue
        seconds, steps = float(np.median(line.seconds)), float(np.median(line.steps))
        pace = f"{steps / seconds:,.0f}" if seconds > 0 and steps else "–"
        unit = "updates" if line.over == "step" else "steps"
        rows.append(
            [line.panel, line.label, f"{len(line.seconds)}", f"{steps:,.0f} {unit}", f"{seconds:,.1f}", pace, f"{sum(line.seconds):,.0f}"]
        )
    return rows


# --- Curves --------------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 40
"""Margins."""


def _panel(name: str, lines: Sequence[Line], looks: Mapping[str, int]) -> dict[str, Any]:
    """What the template draws of a panel, and the data that its script shows; who has a name looks the same in all panels."""
    measured = [_drawn(line) for line in lines]
    every = [(one["x"], y) for one in measured for y in [*one["each"].values(), one["low"], one["high"]]]
    x_low, x_high = min(x.min() for x, _ in every), max(x.max() for x, _ in every)
    y_low, y_high = min(y.min() for _, y in every), max(y.max() for _, y in every)
    x_ticks, y_ticks = ticks(x_low, x_high), ticks(y_low, y_high)
    x_high, y_low, y_high = max(x_high, x_low + 1e-9), min(y_low, y_ticks[0]), max(y_high, y_ticks[-1])
    y_high = max(y_high, y_low + 1e-9)

    def across(x: Any) -> Any:
        return LEFT + (np.asarray(x) - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def down(y: Any) -> Any:
        return HEIGHT - BOTTOM - (np.asarray(y) - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    def path(x: np.ndarray, y: np.ndarray) -> str:
        return "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in zip(across(x), down(y), strict=True))

    drawn = [
        {
            "label": line.label,
            "colour": report.PALETTE[looks[line.label] % len(report.PALETTE)],
            "dashed": looks[line.label] // len(report.PALETTE) % 2 == 1,
            "seeds": [path(one["x"], y) for y in one["each"].values()],
            "middle": path(one["x"], one["middle"]),
            "band": path(np.concatenate([one["x"], one["x"][::-1]]), np.concatenate([one["high"], one["low"][::-1]])) + "Z",
            "last": _interval(np.array([y[-1] for y in one["each"].values()])),
            "count": len(one["each"]),
        }
        for line, one in zip(lines, measured, strict=True)
    ]
    data = {
        "box": [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM],
        "x": [float(x_low), float(x_high)],
        "over": _axis(lines[0].over),
        "lines": [
            {
                "label": printable.visible(printable.short(line.label, 400)),
                "colour": picture["colour"],
                "x": one["x"].tolist(),
                **{key: one[key].round(6).tolist() for key in ("middle", "low", "high")},
                "each": {str(seed): y.round(6).tolist() for seed, y in one["each"].items()},
            }
            for line, one, picture in zip(lines, measured, drawn, strict=True)
        ],
    }
    return {
        "name": name,
        "over": _axis(lines[0].over),
        "of": _axis(lines[0].of),
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "bottom": HEIGHT - BOTTOM,
        "x_ticks": [(f"{float(across(x)):.1f}", _tick(x)) for x in x_ticks if x_low <= x <= x_high],
        "y_ticks": [(f"{float(down(y)):.1f}", _tick(y)) for y in y_ticks],
        "lines": drawn,
        "data": data,
    }


def _axis(name: str) -> str:
    return name.removeprefix("eval/").rstrip("/").replace("env_", "environment ").replace("_", " ")


def _drawn(line: Line) -> dict[str, Any]:
    """The curves of all seeds on the steps of the longest, their interquartile mean and its stratified bootstrap interval."""
    x = max((steps for steps, _ in line.curves.values()), key=len)
    if len(x) > MOST_POINTS:
        x = x[np.linspace(0, len(x) - 1, MOST_POINTS).round().astype(int)]
    each = {seed: np.interp(x, steps, values) for seed, (steps, values) in sorted(line.curves.items())}
    table = np.stack(list(each.values()))
    if len(table) > 1:
        low, high = np.array([stats.stratified_interval(column[:, None], resamples=RESAMPLES) for column in table.T]).T
    else:
        low, high = table[0], table[0]
    return {"x": x, "each": each, "middle": stats.iqm(table, axis=0), "low": low, "high": high}


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from below the one to above the other."""
    span = max(high - low, 1e-9 * max(abs(low), abs(high), 1.0))
    size = 10.0 ** math.floor(math.log10(span / about))
    step = next(size * k for k in (1, 2, 2.5, 5, 10) if size * k * about >= span)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def _tick(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:g}"


# --- Pictures ------------------------------------------------------------------------------------------------------------


def _pictures(sources: Sequence[Source]) -> list[Picture]:
    """What the runs drew and filmed, as long as there is room."""
    found, room = [], MOST_PICTURES_BYTES
    for source in sources:
        for path in source.pictures:
            size = path.stat(follow_symlinks=False).st_size
            if path.is_symlink() or size > min(MOST_PICTURE_BYTES, room):
                found.append(Picture(str(path), ""))
                continue
            data = disk.read(path, MOST_PICTURE_BYTES)
            kind = next((kind for start, kind in KINDS.items() if data.startswith(start)), None)
            found.append(Picture(str(path), f"data:image/{kind};base64,{base64.b64encode(data).decode()}" if kind else ""))
            room -= size
    return found
