"""Trials under the decisions of `core`: a whole population in one compiled program, or groups of trials, each in a directory of its own.

Everything goes through `training.train`. The searched numbers are part of the state (`agents.tunable`), and `between` puts them there and
copies members between two rounds, so a round is no new program. What is copied is the agent with its optimiser and its replay; the
environments and the random keys stay each member's own.
"""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from psiphi import checkpoint, disk, training
from psiphi.errors import UserError
from psiphi.loops import runs
from psiphi.loops.scan import Between, Carry
from psiphi.tuning import core
from psiphi.tuning.core import Decision, Values
from psiphi.tuning.plan import Plan, Row, by_round, in_rounds, rows_of, score

Found = list[list[Mapping[str, Any]]]
"""The rows of metrics by round and member."""


# --- Population-based training in one program ----------------------------------------------------------------------------


def lineage(plan: Plan, found: Found) -> tuple[list[Row], Decision]:
    """What a population came to so far, and what it goes on with: a function of the plan and the scores alone."""
    decision, everything = core.first(plan.space, plan.trials, plan.key), list[Row]()
    for i, rows in enumerate(found, start=1):
        new = rows_of(i, range(plan.trials), decision.parents, decision.values, rows)
        decision = core.evolve([row.score for row in new], decision.values, plan.space, plan.key, i)
        everything += new
    return everything, decision


def population(plan: Plan, out: Path, *, progress: bool = True, checkpoint_every_s: float = 30.0) -> list[Row]:
    """Population-based training of all trials in one vmapped program; interrupted, the same call continues, to the bit."""

    def between(carry: Carry, rows: list[runs.Row]) -> Carry:
        decision = lineage(plan, by_round(rows))[1]
        return with_values(_copied(carry, decision.parents), decision.values)

    found = trained(plan, range(plan.trials), out / "population", plan.ends, between, progress, checkpoint_every_s)
    return lineage(plan, found)[0]


def trained(
    plan: Plan, members: Sequence[int], out: Path, upto: int, between: Between, progress: bool, checkpoint_every_s: float = math.inf
) -> Found:
    """So many rounds of some members, side by side; seeds follow the first member's."""
    run = training.completed(in_rounds(plan.run, plan.stretches))
    seeded = training.changed(run, {"seed": run.seed + members[0]})
    try:
        result = training.train(
            seeded, out=out, demos=_recorded(run), seeds=len(members), rates=tuple(plan.space), between=between,
            until=lambda rows: len(by_round(rows)) >= upto, progress=progress, checkpoint_every_s=checkpoint_every_s,
        )  # fmt: skip
    except jax.errors.ConcretizationTypeError as error:
        names = ", ".join(plan.space)
        raise UserError(
            f"One of {names} decides what program {run.algorithm} is, expected numbers that can change while it runs."
        ) from error
    return by_round(result.rows)


def _recorded(run: training.Run) -> Any:
    """The demonstrations of all trials, which are those of the plan's seed."""
    world = training.worlds.find(run.env)
    if run.demos != training.RECORDED or world.record is None:
        return None
    return world.record(run.world, run.demonstrators, run.episodes, run.seed, "train").demos


def with_values(carry: Carry, values: Sequence[Values]) -> Carry:
    """The members with these numbers in their states."""
    rates = {name: jnp.asarray([mine[name] for mine in values], jnp.float32) for name in carry.agent.rates}
    return carry._replace(agent=carry.agent._replace(rates=rates))


def _copied(carry: Carry, parents: Sequence[int]) -> Carry:
    """Each member with its parent's agent."""
    if list(parents) == list(range(len(parents))):
        return carry
    return carry._replace(agent=_taken(carry.agent, jnp.asarray(parents, jnp.int32)))


@jax.jit
def _taken(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda x: x[index], tree)


# --- Groups: wherever they are trained -----------------------------------------------------------------------------------


class Group(NamedTuple):
    """Members that are trained side by side in one process, in a directory of their own."""

    members: tuple[int, ...]
    out: Path


class Task(NamedTuple):
    """One round of one group: all that whoever trains it must be told. Done twice it is done once."""

    group: Group
    upto: int
    """The round that it ends with."""
    values: tuple[Values, ...]
    """The members' numbers from now on."""
    sources: tuple[tuple[str, int, int] | None, ...]
    """Whose agent each member goes on with, where that is not its own: a checkpoint, how many members that holds, and which of them."""


def alone(plan: Plan, out: Path) -> list[Group]:
    """Every trial by itself."""
    return [Group((i,), out / f"trial-{i}") for i in range(plan.trials)]


def dealt(plan: Plan, out: Path, workers: int) -> list[Group]:
    """As many groups as there are workers, at least two trials in each: those share a program, as a whole population does."""
    if not training.is_compiled(plan.run):
        return alone(plan, out)
    count = max(min(workers, plan.trials // 2), 1)
    parts = np.array_split(np.arange(plan.trials), count)
    return [Group(tuple(map(int, part)), out / f"trials-{part[0]}-{part[-1]}") for part in parts]


Place = Callable[[Plan, Sequence[Task]], list[Found]]
"""``place(plan, tasks)``: does all of them, wherever, and gives what each group's rows now are, by round."""


def perform(plan: Plan, task: Task) -> Found:
    """Train a group for its round."""

    def between(carry: Carry, rows: list[runs.Row]) -> Carry:
        del rows
        agents = [_member(carry, i) if source is None else _from(carry, *source) for i, source in enumerate(task.sources)]
        mixed = carry if not any(task.sources) else carry._replace(agent=jax.tree.map(lambda *x: jnp.stack(x), *agents))
        return with_values(mixed, task.values)

    return trained(plan, task.group.members, task.group.out, task.upto, between, progress=False)


def _member(carry: Carry, index: int) -> Any:
    return jax.tree.map(lambda x: x[index], carry.agent)


def _from(carry: Carry, path: str, members: int, index: int) -> Any:
    """One member's agent out of another group's checkpoint, whose arrays differ from ours only in how many members they have."""
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct((members, *x.shape[1:]), x.dtype), carry)
    return jax.tree.map(lambda x: x[index], checkpoint.load(Path(path), like).agent)


def here(plan: Plan, tasks: Sequence[Task]) -> list[Found]:
    """One after the other in this process."""
    return [perform(plan, task) for task in tasks]


def grouped(plan: Plan, groups: Sequence[Group], place: Place, said: Callable[[int], None]) -> list[Row]:
    """Population-based training of groups. Between two rounds the checkpoints of donors are set aside, as their groups go on."""
    found: Found = []
    there = [standing(group) for group in groups]
    for round_ in range(1, plan.ends + 1):
        _, decision = lineage(plan, found)
        if not all(len(rows) >= round_ for rows in there):
            aside = groups[0].out.parent / f"donors-{round_}"
            tasks = [_task(group, groups, decision, round_, aside) for group in groups]
            _set_aside(groups, tasks, aside)
            there = place(plan, tasks)
            disk.remove(aside)
        found.append([row for rows in there for row in rows[round_ - 1]])
        said(round_)
    return lineage(plan, found)[0]


def standing(group: Group) -> Found:
    """The rows of a group that its checkpoint covers."""
    if not (group.out / runs.CHECKPOINT / checkpoint.MANIFEST).exists():
        return []
    covered = checkpoint.read_meta(group.out / runs.CHECKPOINT).get("step", 0)
    return by_round([row for row in runs.read_rows(group.out) if row["step"] <= covered])


def _task(group: Group, groups: Sequence[Group], decision: Decision, round_: int, aside: Path) -> Task:
    whose = {member: (home, i) for home in groups for i, member in enumerate(home.members)}

    def source(member: int) -> tuple[str, int, int] | None:
        parent = decision.parents[member]
        home, index = whose[parent]
        return None if parent == member else (str(_aside(aside, home)), len(home.members), index)

    values = tuple(decision.values[member] for member in group.members)
    return Task(group, round_, values, tuple(map(source, group.members)))


def _aside(aside: Path, group: Group) -> Path:
    return aside / group.out.name


def _set_aside(groups: Sequence[Group], tasks: Sequence[Task], aside: Path) -> None:
    """Copy the checkpoints of donors, each whole or not at all; a copy that is there was made before any group went on."""
    wanted = {source[0] for task in tasks for source in task.sources if source}
    for group in groups:
        copy = _aside(aside, group)
        if str(copy) in wanted and not copy.exists():
            with disk.drafted(copy) as draft:
                shutil.copytree(group.out / runs.CHECKPOINT, draft)


# --- Successive halving and plain search ---------------------------------------------------------------------------------


def halving(plan: Plan, out: Path, *, progress: bool = True) -> list[Row]:
    """Successive halving, every rung one vmapped program: narrower from rung to rung, so each is compiled once."""
    values, members = core.first(plan.space, plan.trials, plan.key).values, tuple(range(plan.trials))
    everything: list[Row] = []
    before: tuple[Path, int, tuple[int, ...]] | None = None
    for k, rung in enumerate(core.rungs(plan.trials, plan.factor)):
        mine = [values[member] for member in members]
        directory = out / f"rung-{k + 1}"
        found = trained(plan, members, directory, rung.round - (0 if before is None else _last(everything)), _begun(mine, before), progress)
        for i, rows in enumerate(found, start=1 + _last(everything)):
            everything += rows_of(i, members, members, mine, rows)
        kept = core.survivors([score(row) for row in found[-1]], max(rung.trials // plan.factor, 1))
        before, members = (directory / runs.CHECKPOINT, len(members), kept), tuple(members[i] for i in kept)
    return everything


def _last(rows: Sequence[Row]) -> int:
    return max((row.round for row in rows), default=0)


def _begun(values: Sequence[Values], before: tuple[Path, int, tuple[int, ...]] | None) -> Between:
    """Members with these numbers, which go on where those that survived a rung were."""

    def between(carry: Carry, rows: list[runs.Row]) -> Carry:
        del rows
        if before is not None and int(carry.iteration[0]) == 0:
            path, members, kept = before
            like = jax.tree.map(lambda x: jax.ShapeDtypeStruct((members, *x.shape[1:]), x.dtype), carry)
            carry = _taken(checkpoint.load(path, like), jnp.asarray(kept, jnp.int32))
        return with_values(carry, values)

    return between


def halving_apart(plan: Plan, groups: Sequence[Group], place: Place, said: Callable[[int], None]) -> list[Row]:
    """Successive halving of trials in directories of their own: who goes on is continued there."""
    values, members = core.first(plan.space, plan.trials, plan.key).values, tuple(range(plan.trials))
    everything: list[Row] = []
    for rung in core.rungs(plan.trials, plan.factor):
        members = members if not everything else tuple(members[i] for i in core.survivors(_latest(everything, members), rung.trials))
        of_groups = place(plan, [Task(groups[member], rung.round, (values[member],), (None,)) for member in members])
        for round_ in range(_last(everything) + 1, rung.round + 1):
            rows = [found[round_ - 1][0] for found in of_groups]
            everything += rows_of(round_, members, members, [values[member] for member in members], rows)
        said(rung.round)
    return everything


def _latest(rows: Sequence[Row], members: Sequence[int]) -> list[float]:
    last = {row.trial: row.score for row in rows if row.round == _last(rows)}
    return [last[member] for member in members]


@runtime_checkable
class Pool(Protocol):
    """Where tasks are done that end at different times."""

    def start(self, plan: Plan, task: Task) -> None: ...

    def ended(self) -> Task:
        """Waits until one more task is done, and gives it."""
        ...


class Here:
    """One task after the other in this process."""

    def start(self, plan: Plan, task: Task) -> None:
        perform(plan, task)
        self.last = task

    def ended(self) -> Task:
        return self.last


def asynchronous(plan: Plan, groups: Sequence[Group], pool: Pool, workers: int, said: Callable[[int], None]) -> list[Row]:
    """Asynchronous halving of trials in directories of their own, `workers` of them at a time. What is decided rests on what has ended, so
    with one worker a search that continues decides as an unbroken one does; with several, on who is first."""
    values, rungs = core.first(plan.space, plan.trials, plan.key).values, core.rungs(plan.trials, plan.factor)
    found = [standing(group) for group in groups]
    running: dict[int, int] = {}
    while True:
        scores = [{i: score(rows[rung.round - 1][0]) for i, rows in enumerate(found) if len(rows) >= rung.round} for rung in rungs]
        sent = [{*scores[k], *(trial for trial, upto in running.items() if upto >= k)} for k in range(len(rungs))]
        job = core.promoted(scores, sent, plan.trials, plan.factor) if len(running) < workers else None
        if job is not None:
            trial, k = job
            pool.start(plan, Task(groups[trial], rungs[k].round, (values[trial],), (None,)))
            running[trial] = k
            continue
        if not running:
            break
        task = pool.ended()
        (trial,) = task.group.members
        found[trial] = standing(task.group)
        if len(found[trial]) < task.upto:
            raise UserError(f"Trial {trial} left nothing in {task.group.out}, expected a directory that all workers see.")
        del running[trial]
        said(max(map(len, found)))
    whole = [rows_of(r, [i], [i], [values[i]], rows[r - 1])[0] for i, rows in enumerate(found) for r in range(1, len(rows) + 1)]
    return sorted(whole, key=lambda row: (row.round, row.trial))


def plain(plan: Plan, values: Sequence[Values], first: int, out: Path, *, together: bool, progress: bool = True) -> list[Row]:
    """Trials with these numbers to the end, the first of them number `first`; `together` in one program, or one after the other."""
    members = tuple(range(first, first + len(values)))
    if together:
        found = trained(plan, members, out / f"trials-{first}", 1, _begun(values, None), progress)[0]
    else:
        alone = [Group((member,), out / f"trial-{member}") for member in members]
        found = [perform(plan, Task(group, 1, (mine,), (None,)))[0][0] for group, mine in zip(alone, values, strict=True)]
    return rows_of(1, members, members, values, found)
