"""Writes every table of numbers in the README and in docs/ from the files under results/: ``python docs/published.py``.

A table stands between two comments of its page, ``<!-- numbers: NAME -->`` and ``<!-- /numbers -->``. NAME is one of `TABLES`, or names a
table of an experiment's report: ``table-2 / coingrid / 1-shot``. `tests/test_numbers.py` computes all of them again.
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from psiphi import report
from psiphi.experiments.paper import ALL, CHANGED, EGO, FEW, STEPS_TO_BEST, TASKS, Figure, Variant
from psiphi.experiments.paper.table_1_curve import EPISODES
from psiphi.report import Estimate, Results

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- numbers: (.+?) -->\n)(.*?)(<!-- /numbers -->)", re.DOTALL)


@cache
def results(name: str) -> Results:
    return report.load(RESULTS / name)


def variant_of(found: Results, name: str) -> Variant:
    (variant,) = [variant for variant in found.variants if variant.name == name]
    return variant


def estimate(experiment: str, env: str, method: str, figures: Sequence[Figure]) -> Estimate:
    """Of one method: the interquartile mean over seeds of the mean of some figures."""
    found = results(experiment)
    (learner,) = [one for one in found.methods if one.name == method]
    got = report.estimate(report.values(found, variant_of(found, env), learner, figures))
    assert got is not None, f"{experiment} has no {figures} of {method} on {env}."
    return got


def rounded(e: Estimate, digits: int) -> Estimate:
    """As it is printed; there is no -0."""
    return e._replace(**{name: round(getattr(e, name), digits) + 0.0 for name in ("value", "low", "high")})


def words(e: Estimate, digits: int) -> str:
    e = rounded(e, digits)
    return f"{e.value:,.{digits}f} [{e.low:,.{digits}f}, {e.high:,.{digits}f}]"


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in headings[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, rule, *rows)) + "\n"


def outcome(mine: Estimate, other: Estimate, digits: int = 2, fewer: bool = False) -> str:
    """Which of two is better, if their intervals as printed do not meet."""
    mine, other = rounded(mine, digits), rounded(other, digits)
    if fewer:
        mine, other = (Estimate(-e.value, -e.high, -e.low, e.seeds, 0) for e in (mine, other))
    return "ahead" if mine.low > other.high else "behind" if mine.high < other.low else "tie"


# --- The one table of the README -----------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A question with one answer of psiphi's and one to compare it with."""

    question: str
    experiment: str
    env: str
    figures: tuple[Figure, ...]
    mine: str
    other: str
    called: str
    """What it is compared with, in words."""
    digits: int = 2
    fewer: bool = False
    """Whether less is better."""
    paper: tuple[str, str] | None = None
    """What the paper has for psiphi's answer: a table's title, and its row."""


def shots(k: int) -> tuple[Figure, ...]:
    return tuple(Figure("normalised_return", task, k) for task in TASKS)


IMITATION, AREA = (Figure("normalised_return", ALL),), (Figure("auc", EGO),)
MOVED = (Figure("normalised_return", ALL + CHANGED),)
REWARDS, PREDICTED = (Figure("r2", "R"), Figure("r2", "G")), (Figure("accuracy", ALL),)
SOLVED, NEARLY_BEST = (Figure("steps_to_90", EGO),), (Figure(STEPS_TO_BEST, EGO),)
GOALS, FINAL = (Figure("normalised_return", ALL, FEW),), (Figure("final_return", EGO),)
ALONE = "itself without demonstrations"
DRIVING, RING, PIXELS = "figure-3-again", "figure-roundabout", "figure-3-fruitbot"

OURS, ITD, MEAN = "ΨΦ-learning (the paper's table)", "ITD (the paper's table)", "Normalised return, mean of the demonstrators"
PREDICTING = ("Accuracy", "PsiPhi-learning (the paper's figure, about)")

HEADLINE = (
    Row("New task, first episode: return", "table-2", "coingrid", shots(0), "psiphi", "sqilv2", "SQILv2", paper=("0-shot", OURS)),
    Row("New task, after one episode: return", "table-2", "coingrid", shots(1), "psiphi", "sqilv2", "SQILv2", paper=("1-shot", OURS)),
    Row("New task, after 100 episodes: return", "table-2", "coingrid", shots(100), "psiphi", "sqilv2", "SQILv2", paper=("100-shot", OURS)),
    Row("Inferred rewards: variance explained", "table-2", "coingrid", REWARDS, "psiphi", "paper", "the paper's losses as printed"),
    Row("Imitation on CoinGrid: return", "table-1", "coingrid", IMITATION, "itd", "bc", "BC", paper=(MEAN, ITD)),
    Row("The same, one episode of each demonstrator: return", "table-1-curve", "coingrid", IMITATION, "itd-counts-1", "bc-1", "BC"),
    Row("The same, and the world changes: return", "table-1-curve", "coingrid", MOVED, "itd-counts-1", "bc-1", "BC"),
    Row("Imitation on Roundabout: return", "table-1", "roundabout", IMITATION, "itd", "gail", "GAIL", paper=(MEAN, ITD)),
    Row("Next actions on Roundabout: accuracy", "figure-imitation", "roundabout", PREDICTED, "psiphi", "bc", "BC", 3, paper=PREDICTING),
    Row("Next actions on CoinGrid, one episode of each: accuracy", "figure-few-coins", "coingrid", PREDICTED, "itd-1", "bc-1", "BC", 3),
    Row("The same", "figure-few-coins", "coingrid", PREDICTED, "itd-1", "itd-logs-1", "itself without steps of its own", 3),
    Row("Own task, as demonstrated: steps to 90 %", "figure-coingrid", "coingrid-aligned", SOLVED, "psiphi", "dqn", "DQN", 0, True),
    Row("Own task, half as demonstrated: steps", "figure-coingrid", "coingrid-partly", SOLVED, "psiphi", "dqn", "DQN", 0, True),
    Row("Own task, not demonstrated: steps", "figure-coingrid", "coingrid-misaligned", SOLVED, "psiphi", "dqn", "DQN", 0, True),
    Row(
        "Driving on Highway, others want the same: area",
        "figure-3-again",
        "highway-single-task-crowd",
        AREA,
        "psiphi-crowd",
        "dqn-crowd",
        "DQN",
    ),
    Row("The same", DRIVING, "highway-single-task-crowd", AREA, "psiphi-crowd", "psiphi-alone-crowd", ALONE),
    Row(
        "Driving on Highway, others are parked: area",
        "figure-3-again",
        "highway-adversarial-crowd",
        AREA,
        "psiphi-crowd",
        "dqn-crowd",
        "DQN",
    ),
    Row("The same", DRIVING, "highway-adversarial-crowd", AREA, "psiphi-crowd", "psiphi-alone-crowd", ALONE),
    Row(
        "Driving on Highway, others' goals differ: area",
        "figure-3-again",
        "highway-multi-task-crowd",
        AREA,
        "psiphi-crowd",
        "dqn-crowd",
        "DQN",
    ),
    Row("The same", DRIVING, "highway-multi-task-crowd", AREA, "psiphi-crowd", "psiphi-alone-crowd", ALONE),
    Row("The same, the paper's MLP torsos", DRIVING, "highway-multi-task-mlp", AREA, "psiphi-mlp", "psiphi-alone-mlp", ALONE),
    Row(
        "New driving goal, after one episode: share of a DQN's",
        "table-2-highway",
        "highway-multi-task",
        GOALS,
        "psiphi",
        "psiphi-alone",
        ALONE,
    ),
    Row("The same", "table-2-highway", "highway-multi-task", GOALS, "psiphi", "dqn-moved", "a DQN from another goal"),
    Row(
        "The same, imagined goals practised first",
        "table-2-highway",
        "highway-multi-task",
        GOALS,
        "psiphi-imagined",
        "imagined-alone",
        ALONE,
    ),
    Row("Third exit of the roundabout: final return", RING, "roundabout-long", FINAL, "psiphi-recorded", "psiphi-alone", ALONE),
    Row("The same: steps to 0.9 of the best", RING, "roundabout-long", NEARLY_BEST, "psiphi-recorded", "psiphi-alone", ALONE, 0, True),
    Row("The same", RING, "roundabout-long", NEARLY_BEST, "psiphi-recorded", "dqn", "DQN", 0, True),
    Row("The same", RING, "roundabout-long", NEARLY_BEST, "psiphi-recorded", "dqn-guided", "a DQN that follows the same clones", 0, True),
    Row("FruitBot from pixels, a million steps: final return", PIXELS, "fruitbot-mild-million", FINAL, "psiphi-falling", "ppo", "PPO"),
    Row("The same", PIXELS, "fruitbot-mild-million", FINAL, "psiphi-falling", "psiphi-alone", ALONE),
)


def printed(row: Row) -> str:
    """The mean of what the paper prints."""
    if row.paper is None:
        return "–"
    title, name = row.paper
    tables = [
        one for one in results(row.experiment).experiment.tables if one.title == title and (not one.only_in or row.env in one.only_in)
    ]
    numbers = [number.value for number in tables[0].paper[name] if number is not None]
    return f"{np.mean(numbers):.2f}"


def headline() -> str:
    rows = []
    for row in HEADLINE:
        mine, other = (estimate(row.experiment, row.env, name, row.figures) for name in (row.mine, row.other))
        link = f"[{row.question}](results/{row.experiment}/README.md)"
        seeds = f"{mine.seeds}" if mine.seeds == other.seeds else f"{mine.seeds} and {other.seeds}"
        compared = f"{row.called}: {words(other, row.digits)}"
        rows.append([link, words(mine, row.digits), compared, outcome(mine, other, row.digits, row.fewer), printed(row), seeds])
    rows += logs_rows()
    return markdown(["question", "psiphi", "compared with", "intervals", "paper", "seeds"], rows)


def logs_rows() -> list[list[str]]:
    """An exact planner on what is inferred from logs alone, beside its imitation: of each seed, the mean over agents."""
    plain = [cell for cell in cells("logs-alone") if cell["sweep"] == "main" and cell["condition"] == "no background"]
    rows = []
    for key, question in (("scores", "Plans on rewards from logs alone: score"), ("test_scores", "The same on layouts in no log: score")):
        mine, plainly, other = (_over_seeds([cell for cell in plain if cell[key]], key, name) for name in ("default", "plain", "imitation"))
        compared = f"its own imitation: {words(other, 2)}; the plain reward: {words(plainly, 2)}"
        link = f"[{question}](results/logs-alone/README.md)"
        rows.append([link, words(mine, 2), compared, outcome(mine, other), "–", f"{mine.seeds}"])
    return rows


def _over_seeds(some: Sequence[dict[str, Any]], key: str, name: str) -> Estimate:
    by_seed: dict[int, list[float]] = {}
    for cell in some:
        by_seed.setdefault(cell["seed"], []).append(cell[key][name])
    got = report.estimate(np.array([np.mean(scores) for scores in by_seed.values()]))
    assert got is not None
    return got


# --- What is not an experiment of the paper ------------------------------------------------------------------------------


def cells(name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (RESULTS / name / "cells.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{**line, **figure} for line in lines for figure in line.pop("figures", [{}])]


def stored(path: str) -> Any:
    return json.loads((RESULTS / path).read_text(encoding="utf-8"))


def peers() -> str:
    """Our baselines beside those of other libraries."""
    by: dict[tuple[str, str, str], dict[str, list[dict[str, Any]]]] = {}
    for cell in cells("peers"):
        method, library = re.fullmatch(r"(\w+) \((.+)\)", cell["method"]).groups()  # pyright: ignore[reportOptionalMemberAccess]
        by.setdefault((method, cell["env"], cell["task"]), {}).setdefault(library, []).append(cell)
    rows = []
    for (method, env, task), libraries in sorted(by.items()):
        (peer,) = set(libraries) - {"psiphi"}
        got = {name: report.estimate(np.array([cell["value"] for cell in libraries[name]])) for name in ("psiphi", peer)}
        mine, other = got["psiphi"], got[peer]
        assert mine is not None and other is not None
        cpu = [float(np.median([cell["extra"]["cpu_s"] for cell in libraries[name]])) for name in (peer, "psiphi")]
        world = env if task == env else f"{env} {task}"
        speed = f"{cpu[0] / cpu[1]:.0f} times"
        rows.append([f"{method.upper()}, {world}", words(mine, 2), f"{peer}: {words(other, 2)}", outcome(mine, other), speed])
    return markdown(["method and world", "psiphi's return", "the peer's", "intervals", "less CPU time"], rows)


def outside() -> str:
    """Means over seeds of what three scripted bots in MiniGrid were inferred to want."""
    runs = [run["measured"] for run in stored("outside/fetch.json")["runs"]]
    columns = ("own steps", "everybody's steps", "random steps", "imitation gets it", "random gets it")
    rows = [[bot, *(f"{np.mean([run[bot][column] for run in runs]):.2f}" for column in columns)] for bot in runs[0]]
    return markdown(["bot", "r, own steps", "r, all bots' steps", "r, random steps", "imitation gets it", "random walk gets it"], rows)


LOGS = {
    "items_fixed": "items at fixed places",
    "items_random": "items at random places",
    "costs": "costs only",
    "resources": "carrying things home",
}


def _mean(values: list[float]) -> str:
    return f"{np.mean(values):.2f}" if values else "–"


def logs_alone() -> str:
    """What an exact planner earns on a reward inferred from logs alone: mean and least over agents and seeds."""
    if not (RESULTS / "logs-alone" / "cells.jsonl").exists():
        return "*No measurements of this version are published yet.*\n"
    plain = [cell for cell in cells("logs-alone") if cell["sweep"] == "main" and cell["condition"] == "no background"]
    rows = []
    for world in dict.fromkeys(cell["world"] for cell in plain):
        mine = [cell for cell in plain if cell["world"] == world]
        for key, suffix in (("scores", ""), ("test_scores", ", new layouts")):
            scores = [cell[key] for cell in mine if cell[key]]
            if scores:
                paid = [score["default"] for score in scores]
                rest = [_mean([score[name] for score in scores if score.get(name) is not None]) for name in ("imitation", "maxent")]
                seeds = len({cell["seed"] for cell in mine})
                rows.append([f"{LOGS.get(world, world)}{suffix}", f"{np.mean(paid):.2f}", f"{min(paid):.2f}", *rest, f"{seeds}"])
    return markdown(["world", "planner, mean", "planner, worst agent", "imitation", "MaxEnt, told the features", "seeds"], rows)


def speed() -> str:
    """Environment steps per CPU-second beside the simulators whose rules they follow."""
    traffic = stored("benchmarks/traffic_speed.json")["steps_per_cpu_s"]
    board = stored("benchmarks/coingrid_speed.json")["speeds"]
    worlds = {"Highway, 20 cars": "20 cars, 5 Hz", "Highway, highway-v0's defaults": "default", "Roundabout": "roundabout"}
    pairs = [(world, "highway-env", traffic[key]["highway-env"], traffic[key]["psiphi"]) for world, key in worlds.items()]
    pairs.append(("CoinGrid", "MiniGrid", board["MiniGrid"]["steps_per_cpu_s"], board["CoinGrid x 512"]["steps_per_cpu_s"]))
    rows = [[world, f"{peer}: {theirs:,.0f}", f"{mine:,.0f}", f"{mine / theirs:,.0f}"] for world, peer, theirs, mine in pairs]
    return markdown(["world", "steps per CPU-second", "psiphi", "ratio"], rows)


def _range(values: Sequence[float]) -> str:
    """Mean, least and most."""
    return f"{np.mean(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def kinds() -> str:
    """How well kinds are found where ids are withheld, beside who knows the intents' policies."""
    rows, heading = [], ["intents", "number found", "tracks: index", "best possible", "single episodes: index", "best possible", "seeds"]
    found = stored("kinds/sort.json")
    for intents in sorted({row["intents"] for row in found}):
        mine = [row for row in found if row["intents"] == intents]
        right = sum(row["number"] == intents for row in mine)
        columns = ("ari", "ceiling", "ari_episodes", "ceiling_episodes")
        rows.append([f"{intents}", f"{right} of {len(mine)}", *(_range([row[name] for row in mine]) for name in columns), f"{len(mine)}"])
    return markdown(heading, rows)


def shuffled_ids() -> str:
    """How often the verdict suspects the ids."""
    found = stored("kinds/ids.json")
    rows = []
    for name in ("shuffled", "right"):
        mine = [row["warned"] for row in found if row["shuffled"] == (name == "shuffled")]
        rows.append([name, f"{sum(mine)}", f"{len(mine)}"])
    return markdown(["ids", "suspected", "logs"], rows)


def many_agents() -> str:
    """What an update costs and a network weighs, with codes and with heads."""
    by = {(row["agents"], row["with"]): row for row in stored("many-agents/cost.json")["rows"]}
    rows = []
    for agents in sorted({agents for agents, _ in by}):
        pair = [by.get((agents, name)) for name in ("codes", "heads")]
        rows.append([f"{agents:,}", *("–" if row is None else f"{row[key]:,.1f}" for key in ("ms", "mib") for row in pair)])
    return markdown(["agents", "codes: ms", "heads: ms", "codes: MiB", "heads: MiB"], rows)


USUAL, MORE = 0.3, 3.0
"""Weights of imitation with which 64 agents were imitated."""


def of_many(way: str, weight: float) -> dict[int, dict[str, Any]]:
    """How 64 agents are imitated, by seed."""
    files = {USUAL: ("accuracy", "accuracy-more"), MORE: ("imitation",)}[weight]
    return {row["seed"]: row for name in files for row in stored(f"many-agents/{name}.json")["rows"] if row["way"] == way}


def right_of_many(way: str, weight: float) -> float:
    """The share of held-out steps that were right, as a mean over seeds."""
    return float(np.mean([row["accuracy"] for row in of_many(way, weight).values()]))


def codes_and_heads() -> str:
    """How 64 agents are imitated with codes and heads, seed by seed, and the CPU-seconds that it took."""
    columns = [of_many(way, weight) for weight in (USUAL, MORE) for way in ("equal steps", "heads")]
    rows = []
    for seed in sorted(set().union(*columns)):
        each = [column.get(seed) for column in columns]
        rows.append([str(seed), *("–" if row is None else f"{row['accuracy']:.3f} ({row['cpu_s']:.0f} s)" for row in each)])
    return markdown(["seed", *(f"{who}, weight {weight:g}" for weight in (USUAL, MORE) for who in ("codes", "heads"))], rows)


def real_log(name: str) -> str:
    """How well held-out steps of a real log are predicted."""
    found = stored(f"real-logs/{name}.json")
    best_first = sorted(found["held_out"].items(), key=lambda item: item[1]["bits"])
    rows = [[who, f"{got['right']:.3f}", f"{got['bits']:.3f}"] for who, got in best_first]
    return markdown([f"{found['held_out_steps']:,} held-out steps", "right", "bits"], rows)


def any_log() -> str:
    """What was asked of logs of any kind, and what came out."""
    cost = {(row["agents"], row["with"]): row["ms"] for row in stored("many-agents/cost.json")["rows"]}
    many = [right_of_many(way, USUAL) for way in ("equal steps", "heads")]
    sorts, ids = stored("kinds/sort.json"), stored("kinds/ids.json")
    worst = min(np.mean([row["ari"] for row in sorts if row["intents"] == n]) for n in {row["intents"] for row in sorts})
    warned = [sum(row["warned"] for row in ids if row["shuffled"] == shuffled) for shuffled in (True, False)]
    mice, cars = stored("real-logs/mice.json"), stored("real-logs/ngsim.json")
    held, drive, two = mice["held_out"], cars["held_out"], mice["kinds"]["2"]
    table = held["counts by junction and where from"]["bits"]
    alike, found = round(two["agrees_with_thirst"] * len(two["label"])), mice["kinds"]["auto"]["number"]
    rivals = ", ".join(f"{drive[name]['right']:.3f}" for name in ("psiphi", "logistic regression", "gradient boosting"))
    rows = [
        ["codes: time of an update, 2 to 1,024 agents", "at most 1.5 times", f"{cost[1024, 'codes'] / cost[2, 'codes']:.2f} times"],
        ["64 agents, equal steps: right, codes beside heads", "at most 0.01 less", " beside ".join(f"{right:.3f}" for right in many)],
        ["kinds of 3 to 6 intents: adjusted Rand index, worst mean", "0.95", f"{worst:.2f}"],
        ["kinds: number found", "always", f"{sum(row['number'] == row['intents'] for row in sorts)} of {len(sorts)}"],
        ["shuffled ids warned of; right ids warned of", "20; 0", f"{warned[0]}; {warned[1]}"],
        ["mice: bits per choice, psiphi beside the count table", "less", f"{held['psiphi']['bits']:.3f} beside {table:.3f}"],
        ["mice: reward at the port, thirsty against sated, area under the curve", "told apart", f"{mice['auc']:.2f}"],
        ["mice, ids withheld: two kinds agree with thirst", "are two found?", f"{alike} of {len(two['label'])}; found {found}"],
        ["driving: right, psiphi, logistic regression, boosting", "beside each other", rivals],
        ["driving: right, commonest action of each road", "more", f"{drive['counts by road']['right']:.3f}"],
        ["driving: kinds told apart", "are any found?", "none" if cars["kinds"]["number"] == 1 else f"{cars['kinds']['number']}"],
        ["driving: from the raw file to the page, CPU time", "said", f"{cars['from_file_to_page']['cpu_s']:.0f} s"],
    ]
    return markdown(["what", "goal", "measured"], rows)


def updates() -> str:
    """One update of PsiPhi-learning before and after its losses look once at what they share."""
    before, now = (stored(f"benchmarks/update_profile{when}.json") for when in ("_before", ""))
    names = {"highway-multi-task": "Highway, multi-task", "coingrid": "CoinGrid"}
    rows = [
        [names[world], when, f"{got['ms_per_update']:.1f}", f"{got['megaflop_per_update']:.0f}", f"{got['share_of_peak']:.2f}"]
        for world in names
        for when, got in (("before", before[world]), ("now", now[world]))
    ]
    return markdown(["world", "", "ms per update", "million operations", "share of the matrix peak"], rows)


def update_curves() -> str:
    """The same seeds with both programs."""
    files = {"before": "_before", "now": ""}
    found = {when: stored(f"benchmarks/update_curves{suffix}.json")["highway-multi-task"] for when, suffix in files.items()}
    steps = found["now"]["env_steps"]
    rows = [[seed, when, *(f"{x:.2f}" for x in got[seed])] for seed in ("seed 0", "seed 1", "seed 2") for when, got in found.items()]
    return markdown(["", "", *(f"{n:,} steps" for n in steps)], rows)


def update_attempts() -> str:
    """What else was tried to make an update faster."""
    found = stored("benchmarks/update_attempts.json")["highway-multi-task"]
    rows = [[name, ", ".join(f"{ms:.1f}" for ms in got["ms_per_update"]), f"{got['times as fast']:.2f}"] for name, got in found.items()]
    return markdown(["Highway, multi-task", "ms per update, each turn", "times as fast"], rows)


def many_runs() -> str:
    """What was asked of tuning, clusters, survival and speed, and what was found."""
    kills, faults, cost, killed = (lines(f"survival/{name}.jsonl") for name in ("torture-kills", "torture-faults", "torture-cost", "kills"))
    tuned, trials = (stored(f"tune/dqn-highway-multi-task/{name}.json") for name in ("comparison", "cost"))
    seeds = stored("benchmarks/seeds.json")
    before, now = (stored(f"benchmarks/update_profile{when}.json") for when in ("_before", ""))
    found, preset = (words(_fresh(got), 2) for got in (tuned[name]["at the end"] for name in ("found", "preset")))

    def survived(on: str) -> str:
        got = [row for row in killed if row["on"] == on]
        assert all(row["equal"] for row in got)
        return f"{sum(row['kills'] for row in got)} kills, nodes lost: {sum(row['nodes_lost'] for row in got)}; cells equal"

    assert all(row["equal"] for row in kills)
    states = sum(row["boundaries"] for row in faults)
    wrong, unloadable = (sum(row[name] for row in faults) for name in ("wrong", "unloadable"))
    algorithms = len({row["algorithm"] for row in kills})
    total, saving = (sum(row[name] for row in kills) for name in ("kills", "in_a_checkpoint"))
    faster = " and ".join(
        f"{before[world]['ms_per_update'] / now[world]['ms_per_update']:.2f}" for world in ("highway-multi-task", "coingrid")
    )
    share = " and ".join(f"{now[world]['share_of_peak']:.2f}" for world in ("highway-multi-task", "coingrid"))
    checkpoints = " and ".join(f"{100 * row['share']:.1f} %" for row in cost)
    trial = trials["a trial in one program over a run by itself"]
    per_cpu_s = seeds["vmapped over one after the other, per CPU second"]
    rows = [
        ["a DQN on Highway, found settings beside the preset's: return at the end, 10 fresh seeds", "", f"{found} beside {preset}"],
        [f"cost of a trial among {trials['trials']} in one program, over a run by itself", "", f"{trial:.2f}"],
        ["a reproduction on Ray, a head and two nodes", "10 kills", survived("ray")],
        ["a reproduction through submitit, local executor", "10 kills", survived("slurm")],
        [
            f"runs of {algorithms} algorithms in both loops",
            "200 kills, 20 in a checkpoint",
            f"{total}, {saving} in a checkpoint; all equal",
        ],
        ["writes, fsyncs and renames that failed", "0 unloadable, 0 wrong", f"{states} tries: {unloadable} unloadable, {wrong} wrong"],
        ["time that checkpoints take: replay in the state, beside it", "below 3 %", checkpoints],
        ["ten seeds in one program, steps per CPU-second over one run at a time", "", f"{per_cpu_s:.2f}"],
        ["updates per second of PsiPhi-learning over those before: Highway, CoinGrid", "2 times", f"{faster} times"],
        ["share of the matrix peak: Highway, CoinGrid", "", share],
    ]
    return markdown(["what", "asked for", "found"], rows)


def _fresh(got: dict[str, Any]) -> Estimate:
    """What `benchmarks/tuned.py` stores of ten seeds."""
    low, high = got["interval"]
    return Estimate(got["iqm"], low, high, 10, 0)


def lines(path: str) -> list[dict[str, Any]]:
    """A file of JSON lines."""
    return [json.loads(line) for line in (RESULTS / path).read_text(encoding="utf-8").splitlines()]


FEW_ROWS = {
    "itd-counts": "ITD, counts, and RL on φ·w",
    "itd-counts-policy": "ITD, counts, its own policy",
    "itd": "ITD, learned cumulants, and RL on φ·w",
    "itd-policy": "ITD, learned cumulants, its own policy",
    "bc": "BC",
    "sqil": "SQIL",
    "gail": "GAIL",
}


def few(*figures: Figure) -> str:
    """Table 1's curve: the mean of some figures, a column per number of demonstrated episodes; the seeds of a cell behind it."""
    found = results("table-1-curve")
    there = {method.name: method for method in found.experiment.methods}

    def cell(name: str) -> str:
        got = report.estimate(report.values(found, variant_of(found, "coingrid"), there[name], figures)) if name in there else None
        return "–" if got is None else f"{words(got, 2)} ({got.seeds})"

    rows = [[label, *(cell(f"{name}-{n}") for n in EPISODES)] for name, label in FEW_ROWS.items()]
    shown = [row for row in rows if any(text != "–" for text in row[1:])]
    return markdown(["", *(f"{n} {'episode' if n == 1 else 'episodes'}" for n in EPISODES)], shown)


def few_of(metric: str, end: str = "") -> str:
    return few(*(Figure(metric, who + end) for who in ("R", "G")))


# --- FruitBot ------------------------------------------------------------------------------------------------------------

WATCHED = {"psiphi-falling": "with demonstrations", "psiphi-alone": "without"}
WAYS = ("GPI, trust 0.0", "GPI, trust 0.1", "its own head", "imitating fruits-and-objects", "imitating objects-only")
CURVES = {"psiphi-falling": "PsiPhi-learning", "psiphi-alone": "the same without demonstrations", "ppo": "PPO", "ppo-bc": "PPO+BC-aux"}


def fruitbot_curves(env: str) -> str:
    """The normalised return of each seed at about every 100,000 steps of a million."""
    found = [
        (cell["method"], cell["seed"], cell["extra"]["curve"])
        for cell in cells("figure-3-fruitbot")
        if cell["env"] == env and cell["metric"] == "auc" and cell["method"] in CURVES
    ]
    marks = range(100_000, 1_000_001, 100_000)
    rows = []
    for method, seed, curve in sorted(found, key=lambda one: (list(CURVES).index(one[0]), one[1])):
        nearest = [np.abs(np.array(curve["env_steps"]) - mark).argmin() for mark in marks]
        rows.append([CURVES[method], f"{seed}", *(f"{curve['normalised_return'][i] + 0.0:.2f}" for i in nearest)])
    return markdown(["", "seed", *(f"{mark:,}" for mark in marks)], rows)


def fruitbot_imitation() -> str:
    """Clones from pixels, with the 4 actions: the newest line of each method and number of episodes."""
    found = {(line["method"], line["episodes"]): line["found"] for line in lines("fruitbot/imitation.jsonl")}
    rows = [
        [
            method.upper(), demonstrator, f"{got['demonstrated']:,}", f"{got['accuracy']:.2f}", f"{got['accuracy on moves']:.2f}",
            f"{got['completion']:.0%}".replace("%", " %"), f"{got['fruits']:.1f}", f"{got['objects']:.1f}", f"{got['return']:.1f}",
        ]
        for (method, _), line in sorted(found.items()) for demonstrator, got in line.items()
    ]  # fmt: skip
    headings = ("", "demonstrator", "steps shown", "actions right", "moves right", "completed", "fruits", "objects", "return by own taste")
    return markdown(headings, rows)


def fruitbot_models(what: str) -> list[tuple[str, dict[str, Any]]]:
    """What was measured of the models that figure 3d's runs of a million steps left behind."""
    found = []
    for line in lines(f"fruitbot/{what}.jsonl"):
        kept = re.search(r"/models/fruitbot-mild-million-(psiphi-\w+)-(\d+)", line["command"])
        if kept is not None:
            found.append((f"{WATCHED[kept[1]]}, seed {kept[2]}", line["found"]))
    return sorted(found)


def fruitbot_tastes() -> str:
    rows = [
        [
            model, taste, when, f"{got['return']:.1f} ± {got['sem']:.1f}", f"{got['fruits']:.1f}", f"{got['objects']:.1f}",
            f"{got['completion']:.0%}".replace("%", " %"),
        ]
        for model, found in fruitbot_models("tastes") for taste, met in found.items() for when, got in met.items()
        if when != "imitating random"
    ]  # fmt: skip
    return markdown(("trained", "taste", "met", "return", "fruits", "objects", "completed"), rows)


def fruitbot_reward() -> str:
    """How ITD's inferred rewards go with the true ones, in attempts on a tuning seed."""
    rows = []
    for line in lines("fruitbot/reward.jsonl"):
        settings = ", ".join(f"`{name}` {value}" for name, value in line["settings"].items()) or "the default"
        for demonstrator, got in line["found"].items():
            pays = [f"{round(got[f'pays, {kind}'], 4) + 0.0:.4f}" for kind in ("fruit", "object", "end", "wall", "other")]
            by = [f"{got[f'correlation of {what}']:.2f}" for what in ("steps", "windows", "episodes")]
            rows.append([settings, demonstrator, *by, *pays])
    what = ("r, steps", "r, 20 steps", "r, episodes", "pays for a fruit", "an object", "the end", "a wall", "any other step")
    return markdown(("settings", "demonstrator", *what), rows)


def fruitbot_why() -> str:
    rows = [
        [
            model, way, f"{got['return']:.1f} ± {got['sem']:.1f}", f"{got['completion']:.0%}".replace("%", " %"), f"{got['fruits']:.1f}",
            f"{got['objects']:.1f}", f"{got['value expected']:.1f}", f"{got['value that came']:.1f}", f"{got['correlation']:.2f}",
            f"{got['follows ego']:.2f}",
        ]
        for model, found in fruitbot_models("why") for way, got in found.items() if way in WAYS
    ]  # fmt: skip
    headings = ("trained", "way to act", "return", "completed", "fruits", "objects", "expected", "came", "correlation", "own head")
    return markdown(headings, rows)


def verdicts() -> str:
    """The claims and what became of them, as `claims.md` says."""
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (H\d: [^|]+) \| \[[^\]]+\]\(([^)]+)\) \| ([^|]+) \|$", page, re.MULTILINE)
    return markdown(["claim of the paper", "verdict here"], [[f"[{claim}](docs/{page})", verdict] for claim, page, verdict in rows])


TABLES: dict[str, Callable[[], str]] = {
    "kinds": kinds,
    "shuffled-ids": shuffled_ids,
    "many-agents": many_agents,
    "codes-and-heads": codes_and_heads,
    "mice": lambda: real_log("mice"),
    "driving": lambda: real_log("ngsim"),
    "any-log": any_log,
    "few": lambda: few(Figure("normalised_return", ALL)),
    "few, changed": lambda: few(Figure("normalised_return", ALL + CHANGED)),
    "few, planner": lambda: few_of("planner_return"),
    "few, planner, changed": lambda: few_of("planner_return", CHANGED),
    "few, STARC": lambda: few_of("starc"),
    "few, STARC, changed": lambda: few_of("starc", CHANGED),
    "few, correlation": lambda: few_of("reward_correlation"),
    "headline": headline,
    "verdicts": verdicts,
    "fruitbot, curves": lambda: fruitbot_curves("fruitbot-mild-million"),
    "fruitbot, curves, game": lambda: fruitbot_curves("fruitbot"),
    "fruitbot, imitation": fruitbot_imitation,
    "fruitbot, reward": fruitbot_reward,
    "fruitbot, tastes": fruitbot_tastes,
    "fruitbot, why": fruitbot_why,
    "updates": updates,
    "update-curves": update_curves,
    "update-attempts": update_attempts,
    "many-runs": many_runs,
    "peers": peers,
    "outside": outside,
    "logs-alone": logs_alone,
    "speed": speed,
}


# --- Pages ---------------------------------------------------------------------------------------------------------------


def table(name: str) -> str:
    """The table of a name: one of `TABLES`, or "experiment / world / title"."""
    if name in TABLES:
        return TABLES[name]()
    experiment, env, title = name.split(" / ")
    found = results(experiment)
    (wanted,) = [one for one in found.experiment.tables if one.title == title and (not one.only_in or env in one.only_in)]
    return "\n".join(report.table_lines(found, variant_of(found, env), wanted)) + "\n"


def written(page: str) -> str:
    """A page with its tables computed again."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{table(block[2])}\n{block[4]}", page)


def main() -> None:
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        new = written(page)
        if new != page:
            path.write_text(new, encoding="utf-8")
            print(path.relative_to(ROOT), file=sys.stderr)


if __name__ == "__main__":
    main()
