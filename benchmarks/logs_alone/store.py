"""Finished cells on disk: OUT/cells.jsonl, a line per fit and place in a sweep, with the figures of its agents, only ever added to.

Whenever a process dies, the file can be continued: a line that was left unfinished is cut off before the next, and what is there is
never written again.
"""

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from sweeps import Fit, Setting

from psiphi.errors import UserError
from psiphi.experiments.cells import trainings

FILE = "cells.jsonl"

FIGURE = ("agent", "scores", "test_scores", "starc", "starc_plain", "r_own", "r_all", "r_random", "doubtful", "findings", "measuring_s")
"""Of a cell, what differs between the agents of one fit."""

Cell = dict[str, Any]


class Key(NamedTuple):
    """What makes a cell this cell and no other."""

    sweep: str
    condition: str
    world: str
    seed: int
    agent: str


def key_of(cell: Cell) -> Key:
    return Key(*(cell[name] for name in Key._fields))


def fit_of(cell: Cell) -> Fit:
    """The fit that a cell came from."""
    return Fit(cell["world"], Setting(**cell["setting"]), cell["seed"])


def read(out: Path) -> list[Cell]:
    """The cells in a directory, none if it has none yet."""
    path = out / FILE
    return _parsed(path, path.read_bytes()) if path.exists() else []


def append(out: Path, cells: Iterable[Cell]) -> list[Cell]:
    """Add those of the cells that are not there yet, down to the disk; gives them."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / FILE
    with open(path, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        data = file.read()
        file.truncate(_whole(data))
        known = {key_of(cell) for cell in _parsed(path, data)}
        new = [cell for cell in cells if key_of(cell) not in known]
        lines = trainings(new, FIGURE)
        file.write(b"".join(json.dumps(line, allow_nan=False, ensure_ascii=False).encode() + b"\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())
    return new


def _whole(data: bytes) -> int:
    """How many bytes are whole lines."""
    return data.rfind(b"\n") + 1


def _parsed(path: Path, data: bytes) -> list[Cell]:
    cells = []
    for number, line in enumerate(data[: _whole(data)].splitlines(), start=1):
        try:
            fit = json.loads(line)
            some = [{**fit, **figure} for figure in fit.pop("figures", [{}])]
            for cell in some:
                key_of(cell)
            cells += some
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"Line {number} of {path} is not a cell, expected a JSON object with {', '.join(Key._fields)}.") from error
    return cells
