"""Where to look for settings: a range of numbers by the name of a config's field. Each algorithm's space stands beside its config.

A range maps the unit interval onto its numbers, so that every search draws alike: `at(u)` of a uniform u is a draw.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from psiphi.errors import UserError

STEP = 0.2
"""How far a value is moved when it is perturbed: a fifth of itself on a logarithmic range, a fifth of the range on another."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; with `log`, evenly by their magnitude."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self):
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise UserError(f"A range is from {self.low} to {self.high}, expected two finite numbers, the smaller first.")
        if self.log and self.low <= 0:
            raise UserError(f"A logarithmic range begins at {self.low}, expected a number above 0.")

    def at(self, share: float) -> float:
        """The number below which this share of the range lies."""
        if self.log:
            return self.clipped(self.low * (self.high / self.low) ** share)
        return self.clipped(self.low + share * (self.high - self.low))

    def moved(self, value: float, up: bool) -> float:
        """A little more or less, within the range."""
        if self.log:
            return self.clipped(value * (1 + STEP if up else 1 - STEP))
        return self.clipped(value + (STEP if up else -STEP) * (self.high - self.low))

    def clipped(self, value: float) -> float:
        return min(max(value, self.low), self.high)

    def middle(self, values: list[float]) -> float:
        """The mean: of magnitudes on a logarithmic range."""
        if self.log:
            return self.clipped(math.exp(sum(map(math.log, values)) / len(values)))
        return self.clipped(sum(values) / len(values))

    def __str__(self) -> str:
        return f"{self.low!r}:{self.high!r}{':log' if self.log else ''}"


@dataclass(frozen=True)
class Choice:
    """Some numbers, in order."""

    values: tuple[float, ...]

    def __post_init__(self):
        if len(set(self.values)) < 2 or not all(map(math.isfinite, self.values)):
            raise UserError(f"The choice is among {self.values}, expected at least two finite numbers.")

    def at(self, share: float) -> float:
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def moved(self, value: float, up: bool) -> float:
        """The neighbour, or itself at an end."""
        place = self.values.index(value) + (1 if up else -1)
        return self.values[min(max(place, 0), len(self.values) - 1)]

    def middle(self, values: list[float]) -> float:
        """The one that occurs most, of several the latest."""
        return max(reversed(values), key=values.count)

    def __str__(self) -> str:
        return ",".join(map(repr, self.values))


Space = Mapping[str, Range | Choice]
"""Ranges by the dotted names of a config's fields."""


def inside(name: str, space: Space) -> dict[str, Range | Choice]:
    """The same for a config inside another."""
    return {f"{name}.{field}": where for field, where in space.items()}


def of_words(words: list[str], usual: Space) -> dict[str, Range | Choice]:
    """A space as users write it: ``learning_rate`` for the algorithm's own range, ``gamma=0.9:0.99``, ``ema=0.01:0.1:log``,
    ``clip=1,10``."""
    found: dict[str, Range | Choice] = {}
    for word in words:
        name, given, where = word.partition("=")
        name = name.strip().replace("-", "_").removeprefix("agent.")
        if not given and name not in usual:
            raise UserError(f"{word!r} has no range of its own, expected one of {', '.join(usual)}, or NAME=LOW:HIGH.")
        found[name] = _range(word, where) if given else usual[name]
    return found or dict(usual)


def _range(word: str, where: str) -> Range | Choice:
    parts = where.split(":")
    log = len(parts) == 3 and parts[2] == "log"
    try:
        if "," in where:
            return Choice(tuple(sorted(float(part) for part in where.split(","))))
        if len(parts) == 2 or log:
            return Range(float(parts[0]), float(parts[1]), log)
    except ValueError:
        pass
    raise UserError(f"{word!r} is not a range, expected NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C with numbers.")
