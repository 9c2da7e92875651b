"""Who goes on, from whom, and with which numbers: population-based training and successive halving as pure functions.

Population-based training is Jaderberg et al. 2017: after every round the worst members copy one of the best (exploit) and change what they
copied (explore). Successive halving (Jamieson and Talwalkar 2016) stops the worst after every rung; it waits for all trials of a rung,
which its asynchronous form (ASHA, Li et al. 2020) does not. Everything random comes from the key: drivers that are given the same scores
decide alike.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from psiphi.errors import UserError
from psiphi.spaces import Space

Values = dict[str, float]
"""The searched numbers of one member, by name."""

QUANTILE = 0.25
"""So many of the members, the worst, copy as many of the best."""
RESAMPLE = 0.25
"""How likely a copied number is drawn anew instead of moved a little."""


class Decision(NamedTuple):
    """What each member goes on with: whose state, and which numbers."""

    parents: tuple[int, ...]
    values: tuple[Values, ...]


def first(space: Space, trials: int, key: tuple[int, ...]) -> Decision:
    """The numbers that members begin with: each range in as many strata as there are members, so that few cover it evenly."""
    draw = np.random.default_rng([*key, 0])
    columns = {name: (draw.permutation(trials) + draw.random(trials)) / trials for name in space}
    values = tuple({name: space[name].at(float(columns[name][i])) for name in space} for i in range(trials))
    return Decision(tuple(range(trials)), values)


def evolve(scores: Sequence[float], values: Sequence[Values], space: Space, key: tuple[int, ...], round_: int) -> Decision:
    """Exploit and explore after a round, the first of which is 1. A member copies only who is better; what has no score is worst."""
    order = ranking(scores)
    cut = max(int(len(order) * QUANTILE), 1) if len(order) > 1 else 0
    best, worst = order[:cut], order[len(order) - cut :]
    draw = np.random.default_rng([*key, round_])
    parents, following = list(range(len(order))), [dict(mine) for mine in values]
    for member in sorted(worst):
        donor = best[int(draw.integers(cut))]
        explored = {name: _explored(space, name, values[donor][name], draw) for name in space}
        if _number(scores[donor]) > _number(scores[member]):
            parents[member], following[member] = donor, explored
    return Decision(tuple(parents), tuple(following))


def _explored(space: Space, name: str, value: float, draw: np.random.Generator) -> float:
    """A copied number: sometimes drawn anew, mostly moved a little. It always draws three times, whatever comes of it."""
    anew, share, up = draw.random(3)
    return space[name].at(float(share)) if anew < RESAMPLE else space[name].moved(value, bool(up < 0.5))


def ranking(scores: Sequence[float]) -> list[int]:
    """Members from the best to the worst, the earlier of equals first; what is no number is worst."""
    return sorted(range(len(scores)), key=lambda i: (-_number(scores[i]), i))


def _number(score: float) -> float:
    return score if math.isfinite(score) else -math.inf


def survivors(scores: Sequence[float], keep: int) -> tuple[int, ...]:
    """The `keep` best, in their order."""
    return tuple(sorted(ranking(scores)[:keep]))


class Rung(NamedTuple):
    """A stage of successive halving: so many trials are trained up to this round."""

    trials: int
    round: int


def rungs(trials: int, factor: int) -> tuple[Rung, ...]:
    """From all trials for a short time to few for the whole: each rung has a `factor`-th of the trials and as many times the rounds."""
    if factor < 2:
        raise UserError(f"The factor of halving is {factor}, expected at least 2.")
    levels = 0
    while trials >= factor ** (levels + 1):
        levels += 1
    return tuple(Rung(trials // factor**k, factor**k) for k in range(levels + 1))


def promoted(scores: Sequence[Mapping[int, float]], sent: Sequence[Collection[int]], trials: int, factor: int) -> tuple[int, int] | None:
    """Asynchronous halving: which trial is trained next, and up to which rung. None: nothing is to be done before another one has ended.

    `scores[k]` are those of the trials that have ended rung k, `sent[k]` all that were sent there. A trial goes on as soon as it is among
    the best `factor`-th of those that have ended its rung, the highest rung first; else a new trial begins.
    """
    for k in reversed(range(len(scores) - 1)):
        order = sorted(scores[k], key=lambda trial: (-_number(scores[k][trial]), trial))
        for trial in order[: len(order) // factor]:
            if trial not in sent[k + 1]:
                return trial, k + 1
    return next(((trial, 0) for trial in range(trials) if trial not in sent[0]), None)
