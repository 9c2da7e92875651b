"""`psiphi infer`: from a file of demonstrations to what each agent wants, in tables and a picture, offline and with one command."""

import csv
import hashlib
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

import psiphi
from psiphi import checkpoint, disk, printable, report
from psiphi.agents.itd import ITDConfig
from psiphi.api.answers import MOST_SHOWN, Preferences, Reward, weightiest
from psiphi.api.explore import followed as led_to
from psiphi.api.explore import led_on
from psiphi.api.factors import Factors, factors
from psiphi.api.itd import OFFLINE
from psiphi.api.judging import shown_and_held
from psiphi.api.kinds import Kinds
from psiphi.configs import Count, Number, Seed, Within
from psiphi.demos import Demonstrations, Problem, files, validate
from psiphi.demos.columns import Columns
from psiphi.demos.commands import Mapped
from psiphi.demos.demonstrations import flattened, unnamed_actions
from psiphi.errors import UserError
from psiphi.experiments import cells

MOST_COLUMNS = 64
"""Observations with more entries than this are pictures: no table of their entries."""
LOOKED_AT = 50_000
"""Steps from which tables and pictures are made, spread over all."""
BINS = 8
"""Parts into which an entry of the observation is cut, of about as many steps each."""


@dataclass(frozen=True)
class Infer:
    """What does each agent want? From a file of demonstrations to tables of inferred preferences and rewards and a picture of them."""

    file: tyro.conf.Positional[Path]
    """A .parquet, .csv or .npz file, or the directory of a Minari dataset."""
    out: Path = Path("runs/inferred")
    """Where the model, the tables, the picture and the report go; what an earlier call left there is replaced. If it was interrupted, the
    same command continues."""
    columns: Mapped = field(default_factory=Columns)
    background: Path | None = None
    """Another such file, with the same columns: steps of no agent in particular, a random walk say. They tell how the world answers and are
    never imitated."""
    kinds: str = "none"
    """Sort into so many kinds first, or into as many as are found ("auto"): episodes, with --agent none, or else agents. What is inferred
    is then what each kind wants, and kinds.csv says how likely each is of which kind."""
    switching: bool = False
    """With --kinds: kinds may change inside an episode, which is then cut there."""
    held_out: Annotated[float, Within(0, 0.9, above=True)] = 0.1
    """Share of each agent's episodes that is kept for judging."""
    rewards: Number = 100_000
    """At most so many steps are listed in rewards.csv; 0: no such file."""
    seed: Seed = 0
    """Decides everything random."""
    updates: Count | None = None
    """At most so many updates; None: 1,500, or 4,000 of learned cumulants."""
    itd: ITDConfig = field(default_factory=lambda: OFFLINE)
    """Every setting of the learner."""


class Telling(NamedTuple):
    """How the inferred rewards go with where a step leads and with what was done, over the steps of everybody."""

    names: tuple[str, ...]
    """Entries of the observation that follows a step, then actions."""
    correlation: np.ndarray
    """``[K, names]``: of agent k's reward with each; 0 where either never changes."""
    pair: tuple[int, int] | None
    """The two entries that tell most of the rewards together; None if there are fewer or too many."""
    shared: Factors
    """The rewards in a few directions that all agents share."""
    shared_with: np.ndarray
    """``[F, names]``: correlation of each direction with each name."""


class Inferred(NamedTuple):
    """All that is written down."""

    demos: Demonstrations
    train: Demonstrations
    test: Demonstrations
    problems: list[Problem]
    itd: psiphi.ITD
    led: np.ndarray
    """``[L, entries]``: where each of the steps looked at led."""
    rewards: np.ndarray
    """``[L, K]``: what every agent would be paid for each of them."""
    telling: Telling
    kinds: Kinds | None
    """How episodes or agents were sorted, if they were."""


def infer(config: Infer) -> Path:
    """Read, fit, judge and write; the report is written last."""
    demos = files.read(config.file, config.columns, progress=True)
    with disk.left_alone(config.out):
        disk.check_directory(config.out)
        checkpoint.check_ours(config.out / "model")
        kinds = kinds_of(config, demos)
    problems = validate.validate(demos, str(config.file))
    if kinds is not None:
        print(kinds)
        demos = kinds.demos
    background = None if config.background is None else files.read(config.background, config.columns, progress=True)
    train, held = shown_and_held(demos, config.held_out, config.seed)  # as `fit` does
    test = demos.filter(where=lambda _: False) if held is None else held
    learner = psiphi.ITD(None if config.itd == OFFLINE else config.itd, seed=config.seed, updates=config.updates)
    unfinished = config.out / unfinished_name(config, demos, background)
    itd = learner.fit(demos, background=background, held_out=config.held_out, out=unfinished, progress=True)
    steps, led = looked_at(demos, LOOKED_AT)
    rewards = rewards_of(itd, demos, steps)
    found = Inferred(demos, train, test, problems, itd, led, rewards, telling(demos, steps, led, rewards), kinds)
    itd.save(config.out / "model")
    itd.explore(demos if kinds is None else kinds, config.out / "explore.html", title=f"What the agents of {config.file.name} want")
    write(config, found)
    for path in config.out.iterdir():
        if re.fullmatch(UNFINISHED, path.name):
            disk.remove(path)
    return config.out


UNFINISHED = r"unfinished-[0-9a-f]{16}"
"""What a fit that is under way leaves in the directory, until the report is written."""


def unfinished_name(config: Infer, *logs: Demonstrations | None) -> str:
    """One name for each file with each settings: what was interrupted continues, and anything else begins anew."""
    seen = hashlib.sha256(repr((config.held_out, config.seed, config.updates, config.itd)).encode())
    for demos in logs:
        for column in () if demos is None else (demos.obs, demos.action, demos.agent_index, demos.episodes.start):
            seen.update(np.ascontiguousarray(column).tobytes())
    return f"unfinished-{seen.hexdigest()[:16]}"


def kinds_of(config: Infer, demos: Demonstrations) -> Kinds | None:
    """Episodes or agents sorted into kinds, if that was asked for."""
    if config.kinds == "none":
        if config.switching:
            raise UserError("switching is True and kinds is none, expected --kinds auto or a number: there is nothing to switch between.")
        return None
    if config.kinds != "auto" and not (config.kinds.isascii() and config.kinds.isdigit()):
        raise UserError(f"kinds is {config.kinds!r}, expected a number above 0, auto or none.")
    number = "auto" if config.kinds == "auto" else int(config.kinds)
    of = "episodes" if config.columns.agent == "none" else "agents"
    return psiphi.find_kinds(demos, number, of=of, seed=config.seed, torso=config.itd.torso, switching=config.switching)


def run(arguments: Sequence[str]) -> None:
    """The command that the arguments after `psiphi infer` name."""
    from psiphi.arguments import parsed

    directory = infer(parsed(Infer, arguments, "psiphi infer"))
    print((directory / "verdict.txt").read_text(encoding="utf-8"))
    print((directory / "preferences.md").read_text(encoding="utf-8"))
    said = f"{directory / 'report.md'} says more, {directory / 'explore.html'} shows it, {directory / 'model'} is the model."
    print(printable.sentence(said))


# --- What the rewards go with --------------------------------------------------------------------------------------------


def followed(demos: Demonstrations) -> tuple[np.ndarray, np.ndarray]:
    """``[M, ...]``: the observation after each step, and whether it was seen; where it was not, it is the one before."""
    return led_to(demos), led_on(demos)


def looked_at(demos: Demonstrations, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps of which it is known where they led, at most so many, evenly spread; and the observations that followed, as rows."""
    led, seen = followed(demos)
    steps = np.flatnonzero(seen)
    steps = steps[np.unique(np.linspace(0, len(steps) - 1, min(len(steps), most)).astype(np.int64))] if len(steps) else steps
    return steps, flattened(led[steps]).astype(np.float32)


def rewards_of(itd: psiphi.ITD, demos: Demonstrations, steps: np.ndarray) -> np.ndarray:
    """``[L, K]``: what every agent would be paid for these steps, whoever made them; nan where it was not seen where a step led.

    As `itd.reward` hands it out, so that the tables are what a planner gets.
    """
    led, seen = followed(demos)
    told = seen[steps] | demos.terminated[steps]
    columns = demos.obs[steps], demos.action[steps], led[steps], demos.terminated[steps]
    paid = np.stack([np.asarray(itd.reward(agent)(*columns)) for agent in demos.agents], axis=1)
    return np.where(told[:, None], paid, np.nan)


def telling(demos: Demonstrations, steps: np.ndarray, led: np.ndarray, rewards: np.ndarray) -> Telling:
    known = led if led.shape[1] <= MOST_COLUMNS else led[:, :0]
    acted = demos.action[steps, None] == np.arange(demos.num_actions)
    names = (*demos.names[: known.shape[1]], *demos.action_names)
    columns, shared = np.hstack([known, acted]), factors(rewards.astype(np.float64))
    return Telling(names, correlations(rewards, columns), telling_pair(known, rewards), shared, correlations(shared.score, columns))


def correlations(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Pearson's, of each column on the left with each on the right; 0 where one never changes."""

    def standard(x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(0)
        size = np.linalg.norm(centred, axis=0)
        return np.divide(centred, size, out=np.zeros_like(centred), where=size > 1e-12 * np.abs(x).max(initial=1.0))

    return standard(left.astype(np.float64)).T @ standard(right.astype(np.float64))


def telling_pair(entries: np.ndarray, rewards: np.ndarray) -> tuple[int, int] | None:
    """The entry that alone tells most of the rewards, and the one that adds most to it."""
    bins = [np.searchsorted(edges(column)[1:-1], column, side="right") for column in entries.T]
    varies = [i for i, column in enumerate(bins) if column.max(initial=0) > 0]
    if len(varies) < 2:
        return None
    first = max(varies, key=lambda i: explained(bins[i], rewards))
    second = max((i for i in varies if i != first), key=lambda i: explained(bins[first] * BINS + bins[i], rewards))
    return first, second


def edges(column: np.ndarray) -> np.ndarray:
    """Where to cut an entry: between its values if they are few, else into parts of about as many steps each."""
    values = np.unique(column)
    if len(values) <= BINS:
        middles = (values[1:] + values[:-1]) / 2
        margin = (values[-1] - values[0]) / max(2 * (len(values) - 1), 1) or 0.5
        return np.concatenate([[values[0] - margin], middles, [values[-1] + margin]])
    return np.unique(np.quantile(column, np.linspace(0, 1, BINS + 1)))


def explained(cell: np.ndarray, rewards: np.ndarray) -> float:
    """Share of the rewards' variance that lies between cells, averaged over agents."""
    count = np.bincount(cell)
    inside = np.maximum(count, 1)
    shares = []
    for column in rewards.T:
        mean = np.bincount(cell, column) / inside
        shares.append((count * (mean - column.mean()) ** 2).sum() / max(len(column) * column.var(), 1e-12))
    return float(np.mean(shares))


# --- The picture ---------------------------------------------------------------------------------------------------------

MOST_AGENTS = 8
"""Agents that get a panel of their own."""


def picture(found: Inferred) -> Drawing:
    """Above, what each agent's reward goes with; below, each agent's reward over the two entries that tell most, or along an episode."""
    agents, pair = found.demos.agents[:MOST_AGENTS], found.telling.pair
    height = 1.2 + 0.32 * len(found.demos.agents)
    drawing = plt.figure(figsize=(max(7.0, 2.5 * len(agents) + 1), height + 3.0), layout="constrained")
    above, below = drawing.subfigures(2, 1, squeeze=False, height_ratios=[height, 3.0])[:, 0]
    _heat(above, found)
    panels = below.subplots(1, len(agents), sharex=pair is not None, sharey=True, squeeze=False)[0]
    draw: Callable[[Axes, Inferred, int], Any] = _map if pair is not None else _along
    drawn = [draw(ax, found, k) for k, ax in enumerate(panels)]
    if pair is not None:
        panels[0].set_ylabel(printable.picture(found.telling.names[pair[1]]))
        below.colorbar(drawn[-1], ax=list(panels), label="of steps that lead there,\nin each agent's own scale", shrink=0.8)
    else:
        panels[0].set_ylabel("inferred reward")
        panels[-1].legend(fontsize=7, frameon=False)
    return drawing


def _heat(where: Any, found: Inferred) -> None:
    ax, table, agents = where.subplots(), found.telling.correlation, found.demos.agents
    image = ax.imshow(table, cmap="PuOr_r", vmin=-1, vmax=1, aspect="auto")
    ax.set_title("Inferred reward: correlation with where a step leads, and with the action")
    ax.set_xticks(
        range(table.shape[1]),
        [printable.picture(name) for name in found.telling.names],
        rotation=90 if table.shape[1] > 8 else 0,
        fontsize=7,
    )
    ax.set_yticks(range(len(agents)), [printable.picture(agent) for agent in agents])
    for label, agent in zip(ax.get_yticklabels(), agents, strict=True):
        label.set(**_doubt(found, agent))
    ax.grid(visible=False)
    if table.shape[1] <= 20:
        for (k, i), value in np.ndenumerate(table):
            ax.text(i, k, f"{value:+.2f}", ha="center", va="center", fontsize=7, color="white" if abs(value) > 0.6 else report.INK)
    where.colorbar(image, ax=ax, shrink=0.8)


def _map(ax: Axes, found: Inferred, k: int) -> Any:
    """The mean reward of agent k for the steps that lead into each cell of the two entries; white where none does."""
    assert found.telling.pair is not None
    columns = [found.led[:, i] for i in found.telling.pair]
    cuts = [edges(column) for column in columns]
    total, *_ = np.histogram2d(*columns, bins=cuts, weights=found.rewards[:, k])
    count, *_ = np.histogram2d(*columns, bins=cuts)
    mean = np.ma.masked_where(count == 0, total / np.maximum(count, 1))
    scale = max(float(np.abs(mean).max()), 1e-9)
    agent = found.demos.agents[k]
    name = printable.picture(agent)
    ax.set_title(f"{name}: doubtful" if agent in found.itd.verdict.doubtful else name, **_doubt(found, agent))
    ax.set_xlabel(printable.picture(found.telling.names[found.telling.pair[0]]))
    ax.grid(visible=False)
    return ax.pcolormesh(*cuts, mean.T / scale, cmap="PuOr_r", vmin=-1, vmax=1, alpha=0.35 if agent in found.itd.verdict.doubtful else 1.0)


def _doubt(found: Inferred, agent: Any) -> dict[str, Any]:
    """Grey where the verdict warns."""
    return {"color": "0.6"} if agent in found.itd.verdict.doubtful else {}


def _along(ax: Axes, found: Inferred, k: int) -> None:
    """What everybody would be paid along the held-out (or else any) episode of agent k of middling length."""
    source = found.test if (found.test.episodes.agent == k).any() else found.demos
    mine = np.flatnonzero(source.episodes.agent == k)
    chosen = mine[np.argsort(source.lengths[mine], kind="stable")[len(mine) // 2]]
    steps = np.arange(*source.episodes.start[chosen : chosen + 2].tolist())
    rewards = rewards_of(found.itd, source, steps)
    for j, agent in enumerate(found.demos.agents[:MOST_AGENTS]):
        own = j == k
        colour = report.PALETTE[j % len(report.PALETTE)]
        ax.plot(rewards[:, j], marker=".", color=colour, linewidth=2 if own else 1, alpha=1 if own else 0.6, label=printable.picture(agent))
    ax.set_title(f"along an episode of {printable.picture(found.demos.agents[k])}", **_doubt(found, found.demos.agents[k]))
    ax.set_xlabel("step")


# --- Tables and the report -----------------------------------------------------------------------------------------------


def write(config: Infer, found: Inferred) -> None:
    """Everything but the model."""
    put(config.out / "verdict.txt", f"{found.itd.verdict}\n")
    (config.out / "kinds.csv").unlink(missing_ok=True)
    if found.kinds is not None:
        put(config.out / "kinds.csv", table_csv(*kinds_table(found.kinds)))
    put(config.out / "preferences.csv", table_csv(*preference_table(found)))
    put(config.out / "preferences.md", "\n".join(["# Inferred preferences", "", *preference_lines(found), ""]))
    if config.rewards:
        put(config.out / "rewards.csv", table_csv(*reward_table(found, config.rewards)))
    with plt.rc_context({**report.STYLE, "svg.hashsalt": "psiphi"}):
        drawing = picture(found)
        for name in ("wants.svg", "wants.png"):
            data = io.BytesIO()
            drawing.savefig(data, format=name[-3:], facecolor="white", metadata={"Date": None} if name.endswith("svg") else None)
            disk.write(config.out / name, data.getvalue())
        plt.close(drawing)
    put(config.out / "report.md", "\n".join(report_lines(config, found)))


def put(path: Path, text: str) -> None:
    """All of it or nothing."""
    disk.write(path, text.encode("utf-8", "backslashreplace"))


def table_csv(heading: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([printable.csv(printable.visible(x) if isinstance(x, str) else x) for x in row] for row in (heading, *rows))
    return text.getvalue()


def table_md(heading: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    def cell(value: Any) -> str:
        return f"{value:+.2f}" if isinstance(value, float) else str(value)

    rule = ["---", *("---:" for _ in heading[1:])]
    return [f"| {' | '.join(map(cell, row))} |" for row in (heading, rule, *rows)]


def preference_table(found: Inferred) -> tuple[list[str], list[list[Any]]]:
    """Of each agent, whether it is doubtful, its preferences w, how far refits differ in them, and what its reward goes with."""
    preferences = found.itd.preferences
    w, named = preferences.w, cumulant_names(found)
    spread = np.full(w.shape, np.nan) if preferences.spread is None else preferences.spread
    heading = ["agent", "doubtful", *named, *(f"± {name}" for name in named), *(f"with {name}" for name in found.telling.names)]
    rows = []
    for k, agent in enumerate(found.demos.agents):
        numbers = ("" if np.isnan(x) else round(float(x), 4) for x in (*w[k], *spread[k], *found.telling.correlation[k]))
        rows.append([agent, int(agent in found.itd.verdict.doubtful), *numbers])
    return heading, rows


def cumulant_names(found: Inferred) -> tuple[str, ...]:
    """What the cumulants are called; learned ones are numbered."""
    preferences = found.itd.preferences
    return preferences.names or tuple(f"φ{i + 1}" for i in range(preferences.w.shape[1]))


def preference_lines(found: Inferred) -> list[str]:
    """For people: what each agent's reward goes with most, how much the agents agree, and w."""
    agents, t = [_mark(found, agent) for agent in found.demos.agents], found.telling
    names = [printable.markdown(name) for name in t.names]
    most = []
    for row in t.correlation:
        order = np.argsort(-np.abs(row))[:3]
        most.append(", ".join(f"{names[i]} ({row[i]:+.2f})" for i in order if abs(row[i]) >= 0.05) or "nothing in particular")
    preferences = found.itd.preferences
    shown = weightiest(preferences.w, MOST_SHOWN)
    named = [printable.markdown(name) for name in cumulant_names(found)]
    weights = [[agent, *map(float, preferences.w[k, shown])] for k, agent in enumerate(agents)]
    left = preferences.w.shape[1] - len(shown)
    return [
        "Correlations of the inferred reward with where a step leads and with what is done, over everybody's steps; a reward that",
        "depends on several things together may go with none of them alone. *In italics*: the verdict warns of this agent.",
        "",
        *table_md(["agent", "its inferred reward goes with"], list(zip(agents, most, strict=True))),
        "",
        "How much the agents' rewards agree (correlation; in brackets, from where to where it goes over the refits):",
        "",
        *table_md(["", *agents], likeness_rows(agents, preferences)),
        "",
        *shared_lines(agents, t, names),
        "",
        f"Preferences w over the cumulants that all agents share{f' ({left} that matter less are in preferences.csv)' if left else ''}:",
        "",
        *table_md(["agent", *(named[i] for i in shown)], weights),
    ]


def shared_lines(agents: Sequence[str], t: Telling, names: Sequence[str]) -> list[str]:
    """The rewards in a few directions that all agents share, each called after what it goes with most."""
    called = []
    for f, row in enumerate(t.shared_with):
        most = [f"{names[i]} ({row[i]:+.2f})" for i in np.argsort(-np.abs(row))[:2] if abs(row[i]) >= 0.05]
        called.append(f"{f + 1}: {', '.join(most) or 'nothing alone'}")
    return [
        f"The same rewards in {len(called)} directions that all agents share, turned so that each agent wants few of them",
        f"({t.shared.kept:.0%} of the variance; each direction is called after what it goes with):",
        "",
        *table_md(["agent", *called], [[agent, *map(float, row)] for agent, row in zip(agents, t.shared.loading, strict=True)]),
    ]


def likeness_rows(agents: Sequence[str], preferences: Preferences) -> list[list[Any]]:
    """The table of how alike the agents are, with its intervals where there are refits."""
    if preferences.likeness_range is None:
        return [[agent, *map(float, row)] for agent, row in zip(agents, preferences.likeness, strict=True)]
    least, most = preferences.likeness_range
    cells = [
        [f"{value:+.2f}" if j == k else f"{value:+.2f} [{least[k, j]:+.2f}, {most[k, j]:+.2f}]" for j, value in enumerate(row)]
        for k, row in enumerate(preferences.likeness)
    ]
    return [[agent, *row] for agent, row in zip(agents, cells, strict=True)]


def _mark(found: Inferred, agent: Any) -> str:
    return f"*{printable.markdown(agent)}*" if agent in found.itd.verdict.doubtful else printable.markdown(agent)


def reward_table(found: Inferred, most: int) -> tuple[list[str], list[list[Any]]]:
    """What every agent would be paid for each of the first steps."""
    demos = found.demos
    steps = np.arange(min(most, len(demos)))
    paid = rewards_of(found.itd, demos, steps)
    who, episode, t = demos.agent[steps].tolist(), demos.episode[steps].tolist(), demos.t[steps].tolist()
    named = demos.action_names != unnamed_actions(demos.num_actions)
    actions = [demos.action_names[a] if named else a for a in demos.action[steps].tolist()]
    heading = ["agent", "episode", "t", "action", *(f"reward of {agent}" for agent in demos.agents)]
    shown = [["" if np.isnan(x) else x for x in column] for column in np.round(paid.T, 5).tolist()]
    columns = (who, episode, t, actions, *shown)
    return heading, [list(row) for row in zip(*columns, strict=True)]


def kinds_table(kinds: Kinds) -> tuple[list[str], list[list[Any]]]:
    """How likely each episode, or agent, is of each kind."""
    names = [unit if isinstance(unit, tuple) else (unit, "all") for unit in kinds.units]
    heading = ["agent", "episode", "kind", *(f"share of kind {k + 1}" for k in range(kinds.number))]
    rows = zip(names, kinds.label.tolist(), np.round(kinds.share, 4).tolist(), strict=True)
    return heading, [[*name, f"kind {label + 1}", *share] for name, label, share in rows]


def kinds_lines(kinds: Kinds) -> list[str]:
    """What was sorted into what, how surely, and what the verdict then cannot say."""
    units = "episodes" if isinstance(kinds.units[0], tuple) else "agents"
    each = zip(np.bincount(kinds.label, minlength=kinds.number).tolist(), kinds.sure.tolist(), strict=True)
    rows = [[f"kind {k + 1}", f"{count:,}", f"{sure:.2f}" if count else ""] for k, (count, sure) in enumerate(each)]
    tried = ", ".join(f"{k}: {nats:.4f}" for k, nats in kinds.nats.items())
    switch = f" Kinds stay from step to step by {kinds.stay:.3f}; episodes are cut where the likeliest kind changes." if kinds.stay else ""
    return [
        "## Kinds",
        "",
        f"The agents of this report are kinds: {len(kinds.units):,} {units} were sorted by what they do. *Sure* is how likely those of a",
        "kind are of it, on average; kinds.csv has all of them. Kinds are made to act differently: that they are told apart is no",
        "evidence of its own.",
        f"Nats per step of {units} that were not fitted to, by number of kinds: {tried}.{switch}",
        "",
        *table_md(["kind", units, "sure"], rows),
        "",
        *(soft_lines(kinds, units) if kinds.number > 1 else []),
        *(f"- {doubt}" for doubt in kinds.doubts),
        *([""] if kinds.doubts else []),
    ]


def soft_lines(kinds: Kinds, units: str) -> list[str]:
    """Of those whose likeliest kind is each, how likely they are of every kind."""
    names = [f"kind {k + 1}" for k in range(kinds.number)]
    mine = [kinds.share[kinds.label == k] for k in range(kinds.number)]
    rows = [[name, *(f"{x:.2f}" for x in some.mean(axis=0))] for name, some in zip(names, mine, strict=True) if len(some)]
    return [f"How likely the {units} of each kind are of every kind, on average:", "", *table_md([units, *names], rows), ""]


def judged(found: Inferred) -> tuple[list[str], list[list[Any]]]:
    """How well each agent's held-out actions are predicted, beside guessing its commonest and a plain clone; how consistent it is."""
    heading = ["agent", "episodes", "steps", "held-out steps", "accuracy there", "its commonest action's share", "nats"]
    heading += ["nats of a plain clone", "lapses", "caution", "coverage"]
    accuracies, rows, figures = found.itd.accuracies(found.test), [], found.itd.verdict.figures
    consistency = found.itd.consistency()
    for k, agent in enumerate(found.demos.agents):
        held, mine = found.test.agent_index == k, found.demos.agent_index == k
        accuracy = f"{accuracies[agent]:.3f}" if agent in accuracies else "none held out"
        common = f"{np.bincount(found.demos.action[mine]).max() / mine.sum():.3f}"
        episodes, covered = int((found.demos.episodes.agent == k).sum()), f"{found.itd.coverage.share[agent]:.2f}"
        nats = [f"{figures[name][k]:.3f}" for name in ("nll", "clone")]
        lapses, caution = f"{consistency[agent]['lapses']:.2f}", handed_out(found.itd.reward(agent))
        row = [episodes, int(mine.sum()), int(held.sum()), accuracy, common, *nats, lapses, caution, covered]
        rows.append([_mark(found, agent), *row])
    return heading, rows


def handed_out(reward: Reward) -> str:
    """How much caution is in what is handed out, or that it is behaviour."""
    return "behaviour" if reward.form == "behaviour" else f"{reward.caution:.1f}"


def report_lines(config: Infer, found: Inferred) -> list[str]:
    warnings = problem_lines(config, found.problems)
    commit = f"commit {found_commit}, " if (found_commit := cells.commit()) else ""
    return [
        f"# What the agents of {printable.markdown(config.file.name)} want",
        "",
        "## Before you believe it",
        "",
        *found.itd.verdict.lines(),
        "",
        *(f"- The log: {printable.markdown(warning, 1_000)}" for warning in warnings),
        "- Rewards that differ by shaping or scale lead to the same behaviour; no log tells them apart.",
        "",
        *([] if found.kinds is None else kinds_lines(found.kinds)),
        "## What was learned",
        "",
        f"{len(found.demos):,} steps, {found.demos.num_episodes:,} episodes, no rewards; learned from {len(found.train):,} steps and",
        "judged on whole episodes that were held out. *Nats* are the surprise per held-out step, less is better; *lapses* the share of",
        "steps in which the agent does anything at all; *caution* the share of the advantage that `itd.reward` adds to what is wanted, to",
        "plan on (*behaviour*: what the agent does is handed out in its place); *coverage* the share of the others' states in which",
        "some agent was seen to do what the agent would do there.",
        "",
        *table_md(*judged(found)),
        "",
        "![What each agent's inferred reward goes with](wants.png)",
        "",
        "[explore.html](explore.html) is a page to look at all of it: open it in a browser.",
        "",
        *preference_lines(found),
        "",
        "## How it was made",
        "",
        f"    {printable.visible(cells.command())}",
        "",
        f"Seed {config.seed}, {commit}{', '.join(f'{name} {value}' for name, value in cells.versions().items())}.",
        "",
    ]


def problem_lines(config: Infer, problems: Sequence[Problem]) -> list[str]:
    """A line for each kind of problem of the log: the first of them, and how many there are."""
    kinds: dict[str, list[Problem]] = {}
    for problem in problems:
        kinds.setdefault(problem.kind, []).append(problem)
    more = " There are {:,} such problems; psiphi demos validate {} lists them."
    return [f"{some[0]}{more.format(len(some), config.file) if len(some) > 1 else ''}" for some in kinds.values()]
