"""What is searched and for how long, and what came of it: a `Plan`, and a `Row` for every trial and round."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from psiphi import spaces, training
from psiphi.agents import ALGORITHMS
from psiphi.configs import Count
from psiphi.errors import UserError
from psiphi.spaces import Choice, Range, Space
from psiphi.training import Run
from psiphi.tuning import core
from psiphi.tuning.core import Values
from psiphi.types import Env

SEARCHES = ("pbt", "halving", "asha", "random", "tpe")
"""Population-based training, successive halving that waits for every rung or does not, or a plain search whose trials do not know of each
other or that Optuna proposes."""
HALVES = ("halving", "asha")

SCORES = ("eval/normalised_return", "eval/return")
"""What a trial is judged by: the first of these that its rows have; where demonstrators are told apart, the mean over them."""


@dataclass(frozen=True)
class Plan:
    """All that decides what a search comes to. A round is the stretch between two evaluations."""

    run: Run
    """What is tuned. Trial i begins with seed ``run.seed + i``."""
    space: Mapping[str, Range | Choice]
    """Where each number of the agent's config is looked for."""
    search: str = "pbt"
    """One of `SEARCHES`."""
    trials: Count = 32
    rounds: Count = 10
    """Of population-based training: how often trials are compared."""
    factor: Count = 4
    """Of successive halving: one in so many goes on at each rung, and so many times as far."""

    def __post_init__(self):
        if self.search not in SEARCHES:
            raise UserError(f"The search is {self.search!r}, expected one of {', '.join(SEARCHES)}.")
        if self.trials < 2:
            raise UserError(f"trials is {self.trials}, expected at least 2: there is nothing to compare.")
        if not self.space:
            raise UserError(f"{self.run.algorithm} has nothing to search, expected --space NAME=LOW:HIGH.")
        check_space(self.run, self.space)
        if self.search in HALVES and self.ends != self.stretches:
            raise UserError(f"The run falls into {self.ends} stretches, expected {self.stretches} for halving {self.trials} trials.")

    @property
    def key(self) -> tuple[int, ...]:
        return (self.run.seed,)

    @property
    def ends(self) -> int:
        """Rounds that a trial which is trained to the end truly has: what is studied before the first step has evaluations of its own."""
        loop = training.loop_of(in_rounds(self.run, self.stretches))
        return -(-loop.study // loop.chunk) + -(-(loop.iterations - loop.study) // loop.chunk)

    @property
    def stretches(self) -> int:
        """Equal stretches into which a run is cut."""
        if self.search in HALVES:
            return core.rungs(self.trials, self.factor)[-1].round
        return self.rounds if self.search == "pbt" else 1


def check_space(run: Run, space: Space) -> None:
    """Refuse what is no number of the config, and ranges beyond what its fields may be."""
    for name, where in space.items():
        try:
            found = training.number(run.agent, name)
        except AttributeError:
            known = ", ".join(ALGORITHMS[run.algorithm].space)
            raise UserError(f"{run.algorithm} has no setting {name!r} to search, expected one such as {known}.") from None
        if not isinstance(found, float):
            raise UserError(
                f"{name} of {run.algorithm} is {found!r}, expected a real number: what gives a program its shape cannot be searched here."
            )
        for share in (0.0, 1.0):
            training.changed(run.agent, {name: where.at(share)})


def check_judged(run: Run) -> None:
    """Refuse a completed run of which no evaluation will tell how good it is."""
    world = training.worlds.find(run.env)
    if not ALGORITHMS[run.algorithm].tells_apart or run.pooled or isinstance(world.env(run.world, run.task), Env):
        return
    if training.wanted_tasks(run, world, run.demonstrators or world.watched(run.world)) is None:
        raise UserError(f"Nothing tells how good {run.algorithm} is in {run.env}, expected a world that knows what its demonstrators want.")


def in_rounds(run: Run, rounds: int) -> Run:
    """The run with an evaluation after each of so many equal stretches."""
    loop = training.loop_of(dataclasses.replace(run, evaluate_every=0))
    each = -(-loop.iterations // rounds)
    return dataclasses.replace(run, evaluate_every=each * (loop.num_envs * loop.rollout_length if training.acts(run) else 1))


# --- Scores --------------------------------------------------------------------------------------------------------------


def by_round(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The rows of each round, in the order of the members; the evaluation before the first is none."""
    steps = sorted({row["step"] for row in rows if row["step"]})
    return [[row for row in rows if row["step"] == step] for step in steps]


def score(row: Mapping[str, Any]) -> float:
    """What a row says of how good its member is; who left the finite numbers is worst."""
    if any(value is None for name, value in row.items() if name.startswith("train/")):
        return -math.inf
    for wanted in SCORES:
        found = [value for name, value in row.items() if name == wanted or name.startswith(f"{wanted}/")]
        if found:
            return -math.inf if None in found else sum(found) / len(found)
    raise UserError("No evaluation of this run has a return, expected a world and an algorithm that can be judged by one.")


# --- What came of it -----------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One trial in one round: from whom it went on, with which numbers, and what it came to."""

    round: int
    steps: int
    trial: int
    parent: int
    score: float
    values: Values


def rows_of(
    round_: int, trials: Sequence[int], parents: Sequence[int], values: Sequence[Values], found: Sequence[Mapping[str, Any]]
) -> list[Row]:
    steps = [row["env_steps"] or row["step"] for row in found]
    return [Row(round_, *each) for each in zip(steps, trials, parents, map(score, found), values, strict=True)]


def best(lineage: Sequence[Row]) -> Row:
    """The best trial of those that were trained longest."""
    last = max(row.round for row in lineage)
    return max((row for row in lineage if row.round == last), key=lambda row: (row.score, -row.trial))


def line(lineage: Sequence[Row], row: Row) -> list[Row]:
    """How a trial came to be, the first round first: through whoever it was copied from."""
    places = {(each.round, each.trial): each for each in lineage}
    found = [row]
    while found[-1].round > 1 and (found[-1].round - 1, found[-1].parent) in places:
        found.append(places[found[-1].round - 1, found[-1].parent])
    return found[::-1]


def found_run(plan: Plan, run: Run, lineage: Sequence[Row]) -> Run:
    """The run to train from now on: with the best trial's numbers. Those that changed on the way are averaged over its line."""
    whole = line(lineage, best(lineage))
    values = {name: where.middle([row.values[name] for row in whole]) for name, where in plan.space.items()}
    return dataclasses.replace(run, agent=training.changed(run.agent, {name: float(f"{value:.4g}") for name, value in values.items()}))


def described(plan: Plan) -> dict[str, Any]:
    """A plan as JSON values."""
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    said = fields | {"run": dataclasses.asdict(plan.run), "space": {name: str(where) for name, where in plan.space.items()}}
    return json.loads(json.dumps(said))


def from_json(value: dict[str, Any]) -> Plan:
    """The other way round."""
    run = training.run_from_json(value["run"], "run")
    words = [f"{name}={where}" for name, where in value["space"].items()]
    return Plan(run, spaces.of_words(words, {}), **{name: value[name] for name in ("search", "trials", "rounds", "factor")})
