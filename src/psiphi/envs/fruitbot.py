"""FruitBot: a robot drives up a corridor of walls, fruits and other objects, seen from above: ProcGen's own game, by way of envpool.

This is what the Gymnasium environments (`psiphi.envs.fruitbot_gym`) and the demonstrators (`psiphi.envs.fruitbot_scripts`) share: the
config, the pool of games, what a reward says of a step, tasks and views. It needs ``pip install psiphi[fruitbot]``.
"""

import ctypes
import functools
import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from psiphi import configs
from psiphi.configs import Number
from psiphi.errors import UserError

NUM_ACTIONS = 15
LEFT, STAY, RIGHT = 1, 4, 7
"""ProcGen's 15 actions are 4 here: 0 to 2 go left, 6 to 8 right, 9 fires, the rest stay."""

MIRRORED = np.array([6, 7, 8, 3, 4, 5, 0, 1, 2, *range(9, NUM_ACTIONS)], np.int32)
"""Each action as it looks in a mirror."""

DISTINCT = np.array([LEFT, STAY, RIGHT, 9], np.int32)
"""One action for each thing that can be done: left, stay, right, fire."""
DISTINCT_MIRRORED = np.array([2, 1, 0, 3], np.int32)
AS_DISTINCT = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, *[1] * 5], np.int32)
"""What each of ProcGen's actions does, by its place among the distinct ones."""

SIDE = 64
"""Rows and columns of ProcGen's picture."""
CENTRED_COLUMNS = 96
"""Columns of the centred view; the robot is in the middle of them."""

LONGEST = 1_000
"""ProcGen's own limit of steps; a level takes 420."""


@dataclass(frozen=True)
class FruitBotConfig:
    """Which game is played, and how it is seen. The default is what can be learned from on a CPU; the paper's is `view="paper"`
    and `actions="all"`."""

    view: Literal["centred", "paper"] = "centred"
    """The frame as ProcGen draws it, 64x64x3 (paper), or moved sideways so that the robot is in the middle of 96 columns."""
    actions: Literal["distinct", "all"] = "distinct"
    """ProcGen's 15 actions, many of which do the same (paper), or one for each thing that can be done: left, stay, right, fire."""
    backgrounds: bool = False
    """Whether a picture lies behind the game; it changes what is seen, and nothing else."""
    difficulty: Literal["easy", "hard"] = "easy"
    """ProcGen's two kinds of levels; the demonstrators know the easy ones."""
    levels: Number = 0
    """How many different levels there are; 0: no end of them."""
    first_level: Number = 0
    """The first of them, where they are counted."""
    companions: configs.Count = 1
    """Demonstrators of each kind who play beside each environment, where they are watched online."""

    def __post_init__(self):
        configs.check(self)

    @property
    def obs_shape(self) -> tuple[int, int, int]:
        return (SIDE, SIDE if self.view == "paper" else CENTRED_COLUMNS, 3)

    @property
    def num_actions(self) -> int:
        return NUM_ACTIONS if self.actions == "all" else len(DISTINCT)

    @property
    def stay(self) -> int:
        """The number of the action that does nothing."""
        return int(self.numbered(np.array([STAY]))[0])

    def numbered(self, action: np.ndarray) -> np.ndarray:
        """ProcGen's actions as an agent counts them."""
        return action if self.actions == "all" else AS_DISTINCT[action]

    def played(self, action: np.ndarray) -> np.ndarray:
        """An agent's actions as ProcGen counts them."""
        return action if self.actions == "all" else DISTINCT[action]


# --- Tasks ---------------------------------------------------------------------------------------------------------------


class Counts(NamedTuple):
    """What happened in a step, or in an episode; also the weights of a task."""

    fruits: Any
    objects: Any
    presents: Any
    """Presents wait at a level's end: the first one touched completes it, and two may be touched at once."""


GAME = Counts(1.0, -4.0, 10.0)
"""What the game itself pays."""

NAMES = ("fruit", "object", "finish")
"""What a task can pay for; `finish` is paid for each present."""


def weights_of(task: str) -> Counts:
    """A task as the user gives it: what is paid for each thing, such as fruit=1,object=-4,finish=10; what is left out pays nothing."""
    found: dict[str, float] = {}
    for part in task.split(","):
        name, equals, number = (word.strip() for word in part.partition("="))
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if name not in NAMES or name in found or not equals or not math.isfinite(weight):
            raise UserError(
                f"{task!r} is not a task of FruitBot; expected weights of {', '.join(NAMES)}, each once: fruit=1,object=-4,finish=10."
            )
        found[name] = weight
    return Counts(*(found.get(name, 0.0) for name in NAMES))


def task_name(weights: Counts) -> str:
    """The standard form of a task."""
    return ",".join(f"{name}={weight:g}" for name, weight in zip(NAMES, weights, strict=True))


def decoded(reward: np.ndarray, completed: np.ndarray) -> Counts:
    """What the game's rewards say of steps: +1 a fruit, -4 an object, +10 a present, of which there are one or two at completion.

    Several things in one step add up: -3 is a fruit and an object. Four fruits and an object in one step would look like nothing.
    """
    reward = np.asarray(reward, np.float64)
    presents = np.where(completed, np.where(reward >= 15, 2, 1), 0)
    rest = reward - GAME.presents * presents
    objects = np.ceil(np.maximum(-rest, 0) / -GAME.objects)
    return Counts(*(np.rint(x).astype(np.int32) for x in (rest - GAME.objects * objects, objects, presents)))


def paid(weights: Counts, counts: Counts) -> np.ndarray:
    """The reward of a task."""
    return np.asarray(sum(w * np.asarray(n) for w, n in zip(weights, counts, strict=True)), np.float32)


# --- The pool ------------------------------------------------------------------------------------------------------------

QT = ("libicudata.so.56", "libicuuc.so.56", "libicui18n.so.56", "libQt5Core.so.5", "libQt5Gui.so.5")
"""What ProcGen draws with, in the order in which it must be loaded."""


@functools.cache
def _envpool() -> Any:
    """The package that runs ProcGen, after the libraries that it expects of the system."""
    if importlib.util.find_spec("envpool") is None or (qt := importlib.util.find_spec("PyQt5")) is None:
        raise UserError("FruitBot needs the packages envpool and PyQt5-Qt5, which are not installed here: pip install 'psiphi[fruitbot]'.")
    for place in qt.submodule_search_locations or ():
        for name in QT:
            _preload(Path(place) / "Qt5" / "lib" / name)
    import envpool  # pyright: ignore[reportMissingImports]

    return envpool


def _preload(library: Path) -> None:
    try:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        gl = "libGL" in str(error)
        needs = (
            "the system's OpenGL library, in Debian and Ubuntu the package libgl1" if gl else "PyQt5-Qt5: pip install 'psiphi[fruitbot]'"
        )
        raise UserError(f"FruitBot cannot load {library.name} ({error}); it needs {needs}.") from error


def pool(config: FruitBotConfig, num_envs: int, seed: int, threads: int = 1) -> Any:
    """So many games side by side. A pool cannot be seeded again: another seed is another pool."""
    package = _envpool()
    try:
        return package.make(
            f"Fruitbot{config.difficulty.capitalize()}-v0",
            env_type="gymnasium",
            num_envs=num_envs,
            seed=seed % (2**31 - num_envs),
            num_threads=min(threads, num_envs),
            channel_first=False,
            use_backgrounds=config.backgrounds,
            num_levels=config.levels,
            start_level=config.first_level,
        )
    except ImportError as error:
        raise UserError(
            "FruitBot cannot be drawn: envpool was imported before its Qt 5 was loaded; expected psiphi's FruitBot to be made first."
        ) from error


# --- Views ---------------------------------------------------------------------------------------------------------------

ROBOT = (164, 180, 198)
"""A colour that only the robot has, and only in the rows below."""
ROBOT_ROWS = slice(56, 62)


def robot_column(frames: np.ndarray) -> np.ndarray:
    """``[N]``: the robot's middle; where it cannot be seen, the middle of the picture."""
    rows = frames[:, ROBOT_ROWS]
    mine = ((rows[..., 0] == ROBOT[0]) & (rows[..., 1] == ROBOT[1]) & (rows[..., 2] == ROBOT[2])).any(axis=1)
    seen = mine.sum(axis=1)
    return np.where(seen > 0, (mine * np.arange(SIDE)).sum(axis=1) / np.maximum(seen, 1), SIDE / 2)


def seen(config: FruitBotConfig, frames: np.ndarray) -> np.ndarray:
    """ProcGen's frames ``[N, 64, 64, 3]`` as the config asks to see them."""
    if config.view == "paper":
        return frames
    shown = np.zeros((len(frames), *config.obs_shape), np.uint8)
    lefts = CENTRED_COLUMNS // 2 - np.rint(robot_column(frames)).astype(int)  # where column 0 comes to lie
    for one, frame, left in zip(shown, frames, lefts.tolist(), strict=True):  # fifty times as fast as gathering columns
        first, end = max(left, 0), min(left + SIDE, CENTRED_COLUMNS)
        one[:, first:end] = frame[:, first - left : end - left]
    return shown
