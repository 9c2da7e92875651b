"""What is wrong with demonstrations, said so that a person can find and mend it."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from psiphi.errors import UserError

MOST = 100
"""Episodes named for one kind of problem; the rest are counted."""


class Problem(NamedTuple):
    """One thing that is wrong, and where: as exactly as it is known."""

    severity: Literal["error", "warning"]
    """Errors keep the file out; warnings are for a person to judge."""
    kind: str
    """A few words that name the kind of problem."""
    file: str
    agent: str | int | None
    episode: str | int | None
    step: int | float | None
    """Time as the file has it, or the number of the row in its episode; the first one, if there are `count`."""
    text: str
    """What was found and what was expected."""
    count: int = 1
    """How many steps (or rows) of the episode have the problem."""
    episodes: int = 1
    """How many episodes (or agents) this stands for."""

    def __str__(self) -> str:
        """One sentence."""
        parts = [f"{name} {value!r}" for name in ("agent", "episode", "step") if (value := getattr(self, name)) is not None]
        further = f" (and at {self.count - 1} further {'step' if self.count == 2 else 'steps'} of the episode)" if self.count > 1 else ""
        return f"{self.file}: {', '.join(parts)}{': ' if parts else ''}{self.text}{further}."


class DemonstrationsError(UserError):
    """Demonstrations that cannot be used; `problems` are all of them, errors and what else was noticed."""

    def __init__(self, problems: Sequence[Problem]):
        self.problems = tuple(problems)
        errors = [problem for problem in problems if problem.severity == "error"]
        more = f" This is the first of {len(errors)} errors; psiphi demos validate lists them all." if len(errors) > 1 else ""
        super().__init__(f"{errors[0]}{more}")


FEW = 3
"""So many problems of one kind are said one by one; more are counted, and the first one is said."""


def summed(problems: Sequence[Problem]) -> list[str]:
    """Sentences about problems, one for all of a kind that has many."""
    kinds: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault((problem.severity, problem.kind), []).append(problem)
    said = []
    for (severity, kind), some in kinds.items():
        times = sum(problem.episodes for problem in some)
        many = f"{severity}: {kind}, {times:,} times; the first: {some[0]}"
        said += [f"{severity}: {problem}" for problem in some] if times <= FEW else [many]
    return said


def per_episode(
    severity: Literal["error", "warning"],
    kind: str,
    file: str,
    rows: np.ndarray,
    episode_of: np.ndarray,
    place: Callable[[int], tuple[str | int | None, str | int | None, int | float | None]],
    text: Callable[[int], str],
) -> list[Problem]:
    """A problem for each episode that has bad rows, at the first of them. `rows` are ascending and grouped by episode."""
    if not len(rows):
        return []
    _, first, count = np.unique(episode_of, return_index=True, return_counts=True)
    order = np.argsort(first)
    named = [Problem(severity, kind, file, *place(int(rows[first[i]])), text(int(rows[first[i]])), int(count[i])) for i in order[:MOST]]
    if len(order) > MOST:
        rest = len(order) - MOST
        text_of_rest = f"{rest} further episodes have the problem: {kind}"
        named.append(Problem(severity, kind, file, None, None, None, text_of_rest, episodes=rest))
    return named
