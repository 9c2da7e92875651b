"""`psiphi tune ALGORITHM --env WORLD`: search an algorithm's settings; every flag of `psiphi train` says what is tuned."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from psiphi import disk, printable, spaces
from psiphi.cli import train
from psiphi.cli.train import Preset
from psiphi.configs import Within
from psiphi.errors import UserError


@dataclass(frozen=True)
class Tuning:
    """What a search says besides the run."""

    out: Path
    """Where the trials go, and in the end best.json, lineage.csv and lineage.png. A search that it holds is continued."""
    trials: Annotated[int, Within(2, 4_096)] = 32
    """How many trials."""
    search: str = "pbt"
    """pbt (population-based training), halving (successive halving), asha (halving that does not wait), random, or tpe (Optuna's, with
    psiphi[optuna])."""
    space: tuple[str, ...] = ()
    """What is searched, such as learning_rate gamma=0.9:0.99 ema=0.01:0.1:log clip=1,10; all of the algorithm's own ranges if empty."""
    rounds: Annotated[int, Within(1, 10_000)] = 10
    """Of pbt: how often trials are compared."""
    factor: Annotated[int, Within(2, 100)] = 4
    """Of halving and asha: one in so many goes on at each rung, and so many times as far."""
    on: Literal["here", "ray"] = "here"
    """here: in this process, all trials in one vmapped program where the world is compiled. ray: on a Ray cluster (psiphi[ray])."""
    address: str = ""
    """Of ray: an existing cluster; empty: one on this machine."""
    workers: Annotated[int, Within(1, 4_096)] = 2
    """Of ray: processes side by side, among which the trials are dealt."""
    preset: Preset = "default"
    """What the other flags start from: what suits the world, or the paper's losses and numbers as printed."""
    config: Path | None = None
    """A JSON file that the other flags start from instead."""
    dry_run: bool = False
    """Print what would be searched, and do nothing."""
    quiet: bool = False
    """No progress bar."""
    checkpoint_every_s: Annotated[float, Within(0)] = 30.0
    """Of a population in one program: seconds between two checkpoints."""


def tune(arguments: Sequence[str]) -> None:
    """The command that the arguments after `psiphi tune` name."""
    from psiphi import training
    from psiphi.tuning import results

    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP)
        return
    name, *flags = arguments
    default, _ = train.default_run(name, flags)
    out = Path("runs") / f"tune-{name}-{printable.file_name(default.env)}"
    config = train.parsed_run(f"psiphi tune {name}", flags, default, Tuning(out))
    how, run = config.keeping, training.completed(train.as_run(name, config.run))
    plan = made(how, run)
    if how.dry_run:
        print_plan(plan)
        return
    check_place(how)
    with disk.left_alone(how.out):
        disk.check_directory(how.out)
        lineage = searched(plan, how)
    found = results.write(plan, run, lineage, how.out)
    print("\n".join(map(printable.sentence, results.summary(plan, lineage))))
    values = ", ".join(f"{field} {training.number(found.agent, field):.4g}" for field in plan.space)
    print(printable.sentence(f"Found: {values}."))
    print(printable.sentence(f"Train with it: psiphi train {name} --config {how.out / results.FOUND}"))


def made(how: Tuning, run: Any) -> Any:
    """The plan of a search; refuses what cannot be searched."""
    from psiphi.agents import ALGORITHMS
    from psiphi.tuning.plan import Plan, check_judged

    if run.init_from is not None:
        raise UserError(f"init_from is {run.init_from}, expected none: trials begin from untrained networks.")
    check_judged(run)
    space = spaces.of_words(list(how.space), ALGORITHMS[run.algorithm].space)
    return Plan(run, space, how.search, how.trials, how.rounds, how.factor)


def check_place(how: Tuning) -> None:
    """Refuse a place where the search cannot run."""
    from psiphi.experiments import clusters

    if how.on == "ray" and how.search not in ("pbt", "halving", "asha"):
        raise UserError(f"--on ray has no search {how.search}, expected pbt, halving or asha.")
    if how.address and how.on != "ray":
        raise UserError(f"--address is {how.address!r}, expected it only with --on ray.")
    clusters.check_reachable(how.address)


def searched(plan: Any, how: Tuning) -> Any:
    """The lineage, wherever the trials run."""
    from psiphi import progress, training
    from psiphi.loops import runs
    from psiphi.tuning import core, tpe, trials
    from psiphi.tuning.plan import described

    together, shown = training.is_compiled(plan.run), not how.quiet
    with runs.opened(how.out, {"tune": described(plan)}):
        if plan.search == "tpe":
            return tpe.search(plan, how.out, together=together, progress=shown)
        if plan.search == "random":
            values = core.first(plan.space, plan.trials, plan.key).values
            return trials.plain(plan, values, 0, how.out, together=together, progress=shown)
        if how.on == "here" and together:
            kept = {"progress": shown, "checkpoint_every_s": how.checkpoint_every_s}
            return trials.population(plan, how.out, **kept) if plan.search == "pbt" else trials.halving(plan, how.out, progress=shown)
        with progress.shown("rounds", done=0, total=plan.ends, enabled=shown) as display:
            return _in_groups(plan, how, lambda round_: display.advance(round_, {}))


def _in_groups(plan: Any, how: Tuning, said: Callable[[int], None]) -> Any:
    """The lineage of trials that do not share a program: one after the other here, or on Ray."""
    from psiphi.tuning import trials

    search = trials.grouped if plan.search == "pbt" else trials.halving_apart
    alone = trials.alone(plan, how.out)
    if how.on == "here":
        return trials.asynchronous(plan, alone, trials.Here(), 1, said) if plan.search == "asha" else search(plan, alone, trials.here, said)
    from psiphi.tuning import on_ray

    with on_ray.cluster(how.address, how.workers):
        if plan.search == "asha":
            return trials.asynchronous(plan, alone, on_ray.Pool(), how.workers, said)
        groups = trials.dealt(plan, how.out, how.workers) if plan.search == "pbt" else alone
        return search(plan, groups, on_ray.place(how.workers), said)


def print_plan(plan: Any) -> None:
    from psiphi import training
    from psiphi.tuning import core
    from psiphi.tuning.plan import HALVES, described

    ways = {True: "all trials in one vmapped program", False: "one trial after the other"}
    loop = training.loop_of(plan.run)
    rungs = [list(rung) for rung in core.rungs(plan.trials, plan.factor)] if plan.search in HALVES else None
    said = described(plan) | {
        "how": ways[training.is_compiled(plan.run)],
        "iterations": loop.iterations,
        "rungs of trials and rounds": rungs,
    }
    print(json.dumps(said, indent=2))


HELP = """usage: psiphi tune ALGORITHM --env WORLD [--trials N] [--steps N] [--search pbt|halving|asha|random|tpe] [--space ...]
       [--on here|ray]

Searches numbers of an algorithm's config, such as its learning rate. psiphi algorithms lists what is searched; --dry-run says what would be
done. psiphi tune ALGORITHM --env WORLD --help lists every flag; those of psiphi train say what is tuned."""
