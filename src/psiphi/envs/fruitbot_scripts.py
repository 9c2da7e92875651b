"""FruitBot's demonstrators: they plan from pixels, by dynamic programming over the columns that the robot could be in.

Each looks at the plain frame (without a background), finds walls, fruits and objects by their colours, and values every column at every
step ahead by what it likes. What it then does is the way to the best of these paths. Only the easy levels' colours are known.
"""

import functools
from typing import NamedTuple

import numpy as np

from psiphi.envs.fruitbot import LEFT, NUM_ACTIONS, RIGHT, SIDE, STAY, robot_column
from psiphi.errors import UserError


class Taste(NamedTuple):
    """What a demonstrator thinks of touching a fruit and an object."""

    fruit: float
    object: float


TASTES: dict[str, Taste | None] = {
    "fruits-and-objects": Taste(1.0, 1.0),
    "objects-only": Taste(-1.0, 1.0),
    "random": None,
    "expert": Taste(1.0, -4.0),
}
"""The paper's three demonstrators, and one who plays the game as it pays; None: acts at random."""

PAPER = ("fruits-and-objects", "objects-only", "random")

SCROLL = 0.85
"""Rows that the corridor comes nearer in a step."""
FRONT = 57
"""The robot's first row."""
HORIZON = 64
"""Steps that are planned ahead."""
REACH = 2
"""Columns by which a plan may move in a step; the robot can do a little more."""
PUSH = 2.2
"""What an action adds to the sideways speed, which halves in every step."""
WALL = -1_000.0
MARGIN = 0.4
"""What each row of the margin counts: a thing of 4 rows has one of 10."""


def things(frames: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``[N, 64, 64]``: where plain frames show walls, fruits and objects."""
    r, g, b = (frames[..., i].astype(np.int32) >> 2 for i in range(3))
    found = _kinds()[(r << 12) | (g << 6) | b]
    return found == 1, found == 2, found == 3


@functools.cache
def _kinds() -> np.ndarray:
    """For each colour, to 6 bits a channel: wall 1, fruit 2, object 3, anything else 0."""
    r, g, b = (4 * x.reshape(-1) + 1 for x in np.meshgrid(*[np.arange(64)] * 3, indexing="ij"))
    wall = (r > 135) & (r < 190) & (g - r > 8) & (g - r < 30) & (b - g >= 0) & (b - g < 12)
    fruit = ((r > 200) & (g < 90) & (b < 100)) | ((r > 235) & (g > 130) & (g < 180) & (b < 80))
    thing = ((b > 220) & (r < 60)) | ((r > 235) & (g > 235) & (b > 235))
    return (wall + 2 * fruit + 3 * thing).astype(np.uint8)


def _shifted(marks: np.ndarray, shifts: range, axis: int) -> np.ndarray:
    """Marks, wherever one is so many rows or columns further on."""
    marks = np.moveaxis(marks, axis, 0)
    wide = np.zeros_like(marks)
    for shift in shifts:
        if shift >= 0:
            wide[: SIDE - shift] |= marks[shift:]
        else:
            wide[-shift:] |= marks[:shift]
    return np.moveaxis(wide, 0, axis)


def worth(frames: np.ndarray, taste: Taste) -> np.ndarray:
    """``[N, HORIZON, 64]``: what it is worth to be in a column so many steps from now."""
    wall, fruit, thing = things(frames)
    row = np.rint(FRONT - SCROLL * np.arange(HORIZON)).astype(int)

    def touched(marks: np.ndarray, beside: int, rows: range) -> np.ndarray:
        return _shifted(_shifted(marks, rows, 1), range(-beside, beside + 1), 2)[:, np.maximum(row, 0)]

    def liked(marks: np.ndarray, liking: float) -> np.ndarray:
        """What is to be had must be met squarely; what is to be avoided is left a margin, also from behind."""
        if liking > 0:
            return np.float32(liking) * touched(marks, 3, range(1))
        return np.float32(MARGIN * liking) * touched(marks, 5, range(-3, 7))

    value = liked(fruit, taste.fruit) + liked(thing, taste.object) + np.float32(WALL) * touched(wall, 4, range(-3, 8))
    value[:, row < 0] = 0.0
    return value


def best_after(value: np.ndarray) -> np.ndarray:
    """``[N, HORIZON, 64]``: the most that can still be had from a column at a step, moves costing a little."""
    total = value.copy()
    later = np.full((len(value), SIDE + 2 * REACH), -np.inf, np.float32)
    for step in range(value.shape[1] - 2, -1, -1):
        later[:, REACH:-REACH] = total[:, step + 1]
        best = later[:, REACH : REACH + SIDE].copy()
        for move in range(1, REACH + 1):
            for side in (-move, move):
                np.maximum(best, later[:, REACH + side : REACH + side + SIDE] - np.float32(0.02 * move), out=best)
        total[:, step] += best
    return total


class Script:
    """A demonstrator in N games at once. It remembers how fast it moves, which no frame shows."""

    def __init__(self, name: str, num_envs: int, seed: int):
        if name not in TASTES:
            raise UserError(f"{name!r} is not a demonstrator of FruitBot; expected one of {', '.join(TASTES)}.")
        self.taste, self.random = TASTES[name], np.random.default_rng(seed)
        self.speed = np.zeros(num_envs)

    def act(self, frames: np.ndarray, fresh: np.ndarray) -> np.ndarray:
        """What it does on plain frames ``[N, 64, 64, 3]``; `fresh` are the games that have just begun."""
        if self.taste is None:
            return self.random.integers(0, NUM_ACTIONS, len(frames)).astype(np.int32)
        self.speed[fresh] = 0.0
        column = robot_column(frames)
        total = best_after(worth(frames, self.taste))
        pushes = np.array([0.0, -PUSH, PUSH])
        speeds = self.speed[:, None] / 2 + pushes
        stops = np.clip(np.rint(column[:, None] + 2 * speeds), 3, SIDE - 4).astype(int)  # where it rolls to by itself
        games = np.arange(len(frames))[:, None]
        gain = total[games, 2, stops] - np.array([0.0, 0.05, 0.05])
        choice = np.argmax(gain, axis=1)
        self.speed = speeds[games[:, 0], choice]
        return np.array([STAY, LEFT, RIGHT], np.int32)[choice]
