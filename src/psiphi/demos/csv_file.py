"""Long tables in CSV, with nothing but the standard library and NumPy."""

import csv
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from psiphi import disk, limits, printable
from psiphi import progress as display
from psiphi.demos import files
from psiphi.demos.columns import Columns, Found, find, misfits
from psiphi.demos.demonstrations import Demonstrations, flattened
from psiphi.demos.rows import Coder, Flaw, Rows, combined, together
from psiphi.errors import UserError

LINES, CELLS = 20_000, 2_000_000
"""Lines, and cells, read together."""
MOST_FLAWS = 100_000
"""After so many unreadable cells the rest of them is not listed."""
PREAMBLE = "# psiphi "
"""Before the header, and only where actions have names: what they mean, in JSON."""
PEEKED = 1_000
"""Lines by which it is seen which columns hold numbers."""
TRUTHS = {"true": 1.0, "false": 0.0}
"""How tables write truth values in columns of numbers."""
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
TRUE, FALSE = {"true", "t", "yes", "1", "1.0"}, {"false", "f", "no", "0", "0.0", ""}


def read(path: Path, columns: Columns, progress: bool) -> Rows:
    """A table with a header. Commas, or semicolons or tabs if the header has those and no comma; then numbers may have a decimal comma."""
    most = _lines(path)
    with open(path, newline="", encoding="utf-8-sig") as file:
        try:
            return _read(path, file, most, columns, progress)
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not text in UTF-8.") from error
        except csv.Error as error:
            raise UserError(f"{path} is not a table in CSV: {error}.") from error


def _lines(path: Path) -> int:
    """At most so many lines are in it; quoted names may contain line ends."""
    with open(path, "rb") as file:
        return 1 + sum(block.count(b"\n") + block.count(b"\r") for block in iter(lambda: file.read(1 << 20), b""))


def _read(path: Path, file, most: int, columns: Columns, progress: bool) -> Rows:
    header, said = _line(path, file), {}
    if header.startswith(PREAMBLE):
        header, said = _line(path, file), disk.parsed(header.removeprefix(PREAMBLE).encode(), f"{path}, line 1")
        if not isinstance(said, dict):
            raise UserError(f"{path} is damaged: its first line is not an object in JSON.")
    delimiter = next((mark for mark in ",;\t" if mark in header), ",")
    present = [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])]
    limits.check_most(f"{path} has too many columns", len(present), limits.MOST_COLUMNS)
    reader = csv.reader(file, delimiter=delimiter)
    peeked = list(itertools.islice(reader, max(min(PEEKED, CELLS // max(len(present), 1)), 1)))
    places = {name: i for i, name in reversed([*enumerate(present)])}  # of columns with one name, the first
    commas = set() if delimiter == "," else {i for i in range(len(present)) if _decimal_commas(peeked, i)}
    numeric = lambda name: places[name] in commas or _numeric(peeked, places[name])  # noqa: E731
    found = find(str(path), present, columns, lambda names: [name for name in names if numeric(name)])
    commas = {i for i in commas if present[i] not in found.ids}
    # A row takes a byte for each of its fields; of rows with fewer there may be some, but not many.
    most = min(most, path.stat().st_size // len(present) + limits.MOST_WRONG_ROWS + 2)
    named = len(found.action) == 1 and _names(peeked, place := places[found.action[0]]) and place not in commas
    table = _Table(path, found, present, most, np.dtype(columns.dtype or "float32"), named)
    reader = (_with_points(line, commas) for line in itertools.chain(peeked, reader))
    empty, at_once = 0, max(min(LINES, CELLS // len(present)), 1)
    with display.shown(f"reading {path.name}", done=0, total=most, enabled=progress) as bar:
        while lines := list(itertools.islice(reader, at_once)):
            some = [line for line in lines if line]  # an empty line is none
            empty += len(lines) - len(some)
            limits.check_most(f"{path} has too many empty lines", empty, limits.MOST_EMPTY_LINES)
            table.add(some)
            bar.advance(min(table.rows, most - 1), {})
        bar.advance(most, {})
    used = [name for name in (*found.obs, *found.action, *([found.t] if found.t else [])) if places[name] in commas]
    note = [f"{path}: numbers of {', '.join(map(repr, used[:5]))} are read with a decimal comma."] if used else []
    table.found = found._replace(notes=(*found.notes, *note))
    return table.result(columns, files.meant(str(path), said, columns))


def _line(path: Path, file) -> str:
    line = file.readline(limits.MOST_HEADER_BYTES + 1)
    limits.check_most(f"{path} has too long a first line, in characters", len(line), limits.MOST_HEADER_BYTES)
    return line


def _numeric(lines: list[list[str]], place: int) -> bool:
    """Whether a column holds numbers, or true and false, by its first cells; empty ones say nothing."""
    cells = _first(lines, place)
    return bool(cells) and all(_value(cell) is not None for cell in cells)


def _decimal_commas(lines: list[list[str]], place: int) -> bool:
    """Whether a column has numbers like 23,5, by its first cells. Where all have three digits behind, they may be thousands: then not."""
    cells = _first(lines, place)
    behind = [len(cell.split(",")[1]) for cell in cells if DECIMAL_COMMA.fullmatch(cell)]
    return any(n != 3 for n in behind) and all(DECIMAL_COMMA.fullmatch(cell) or cell.lstrip("+-").isdecimal() for cell in cells)


def _with_points(line: list[str], places: set[int]) -> list[str]:
    """A row whose numbers in these places have a decimal point."""
    for i in places:
        if i < len(line) and DECIMAL_COMMA.fullmatch(line[i].strip()):
            line[i] = line[i].replace(",", ".")
    return line


def _names(lines: list[list[str]], place: int) -> bool:
    """Whether a column holds names, by its first cells: none of them is a number."""
    cells = _first(lines, place)
    return bool(cells) and not any(_value(cell) is not None and cell.lower() not in TRUTHS for cell in cells)


def _first(lines: list[list[str]], place: int) -> set[str]:
    return {line[place].strip() for line in lines if place < len(line) and line[place].strip()}


def _value(cell: str) -> float | None:
    """A number, 1 for true and 0 for false; None for anything else."""
    try:
        return float(cell) if _plain(cell) else None
    except ValueError:
        return TRUTHS.get(cell.strip().lower())


class _Table:
    """The columns as they grow, in arrays that are large enough from the start."""

    def __init__(self, path: Path, found: Found, present: list[str], most: int, dtype: np.dtype, named: bool):
        limits.check_memory(path, most * (len(found.obs) * dtype.itemsize + 32))
        self.file, self.found, self.present, self.dtype = str(path), found, present, dtype
        self.place = {name: i for i, name in enumerate(present)}
        self.obs = np.empty((most, len(found.obs)), dtype)
        self.named = found.action[:1] if named else ()
        self.numbers = {name: np.empty(most) for name in (*found.action, found.t) if name is not None and name not in self.named}
        self.flags = {name: np.empty(most, bool) for name in (found.terminated, found.truncated) if name is not None}
        self.ids = {name: (Coder(), np.empty(most, np.int32)) for name in (*found.ids, *self.named)}
        self.flaws: list[Flaw] = []
        self.rows = self.wrong = 0

    def add(self, lines: list[list[str]]) -> None:
        """Some more lines."""
        width = len(self.present)
        most = max(min(limits.MOST_WRONG_ROWS, CELLS // 10 // width), 1)
        for i, line in enumerate(lines):
            if len(line) != width:
                self.wrong += 1
                limits.check_most(f"{self.file} has rows without the {width:,} fields of its header", self.wrong, most)
                self._flaw(i, "wrong number of fields", f"the row has {len(line)} fields, but the header has {width}")
                lines[i] = (line + [""] * width)[:width]
        if not lines:
            return
        cells = list(zip(*lines, strict=True))
        here = slice(self.rows, self.rows + len(lines))
        for j, name in enumerate(self.found.obs):
            what = f"the observation's {name!r}"
            values = self._parsed(cells[self.place[name]], what, blank=False)
            with np.errstate(over="ignore"):  # too large for the type is infinite, and said to be
                self.obs[here, j] = 0 if (wrong := misfits(values, self.dtype)).any() else values
            for i in np.flatnonzero(wrong & ~np.isnan(values)):
                self._flaw(int(i), "does not fit its type", f"{what} is {values[i]}, expected a number of type {self.dtype.name}")
        for name, column in self.numbers.items():
            what = "the time" if name == self.found.t else "the action" if len(self.found.action) == 1 else f"the action's {name!r}"
            column[here] = self._parsed(cells[self.place[name]], what, blank=True)
        for name, column in self.flags.items():
            column[here] = self._truths(cells[self.place[name]], name)
        for name, (coder, column) in self.ids.items():
            column[here] = coder.codes(printable.from_csv(cell.strip()) for cell in cells[self.place[name]])
        self.rows += len(lines)

    def _parsed(self, cells: tuple[str, ...], what: str, *, blank: bool) -> np.ndarray:
        """Numbers. What is none becomes NaN and a flaw; an empty cell only where it may not be `blank`."""
        try:
            if not _plain("".join(cells)):
                raise ValueError
            return np.array(cells, np.float64)
        except ValueError:
            return np.array([self._number(i, cell, what, blank) for i, cell in enumerate(cells)])

    def _number(self, i: int, cell: str, what: str, blank: bool) -> float:
        value = _value(cell)
        if value is None and (cell.strip() or not blank):
            found = repr(cell) if cell.strip() else "missing"
            self._flaw(i, "not a number", f"{what} is {found}, expected a number")
        return np.nan if value is None else value

    def _truths(self, cells: tuple[str, ...], name: str) -> np.ndarray:
        meaning = {cell: _truth(cell) for cell in set(cells)}
        for i, cell in enumerate(cells) if None in meaning.values() else ():
            if meaning[cell] is None:
                self._flaw(i, "neither true nor false", f"{name} is {cell!r}, expected true or false")
        return np.array([bool(meaning[cell]) for cell in cells])

    def _flaw(self, i: int, kind: str, text: str) -> None:
        if len(self.flaws) < MOST_FLAWS:
            self.flaws.append(Flaw(self.rows + i, kind, text))

    def result(self, columns: Columns, meant: dict[str, Any]) -> Rows:
        found, n = self.found, self.rows
        ids = {name: coder.ids(column[:n], numeric=name not in self.named) for name, (coder, column) in self.ids.items()}
        action = ids[self.named[0]] if self.named else together([self.numbers[name][:n] for name in found.action], n)
        return Rows(
            file=self.file,
            obs=self.obs[:n].reshape(n, *found.shape),
            names=found.names,
            agent=combined([ids[name] for name in found.agent], n, "all"),
            episode=combined([ids[name] for name in found.episode], n, 0),
            group=combined([ids[name] for name in found.group], n, 0) if found.group else None,
            t=None if found.t is None else self.numbers[found.t][:n],
            terminated=None if found.terminated is None else self.flags[found.terminated][:n],
            truncated=None if found.truncated is None else self.flags[found.truncated][:n],
            flaws=tuple(self.flaws),
            notes=found.notes,
            ends=columns.ends,
            action_columns=found.action,
            **files.acted(self.file, columns, None, meant, action),
        )


def _plain(text: str) -> bool:
    """Whether numbers are written as everybody writes them: Python's 1_0 and the digits of other scripts are none in a table."""
    return text.isascii() and "_" not in text


def _truth(cell: str) -> bool | None:
    word = cell.strip().lower()
    return True if word in TRUE else False if word in FALSE else None


def write(demos: Demonstrations, path: Path, progress: bool) -> None:
    """A table with the columns that `read` expects. Numbers are written with as many digits as it takes to get them back."""
    names = [f"obs_{name}" for name in demos.names]
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with (
        display.shown(f"writing {path.name}", done=0, total=len(demos), enabled=progress) as bar,
        files.replacing(path) as draft,
        open(draft, "w", newline="", encoding="utf-8") as file,
    ):
        if said := files.meaning(demos):
            file.write(f"{PREAMBLE}{json.dumps(said)}\n")
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        kept = [Columns.group] if demos.group is not None else []
        writer.writerow(["agent", "episode", "t", *names, "action", "terminated", "truncated", *kept])
        group_of = [*(printable.csv(group) for group in demos.groups), ""]
        names_of = [printable.csv(agent) for agent in demos.agents]
        done = 0
        for block in files.blocks(demos):
            plain = block.obs.astype(np.uint8) if block.obs.dtype == bool else block.obs
            obs = flattened(plain).astype(str).tolist()
            agent = [names_of[k] for k in block.agent]
            action = np.where(block.has_action, block.action.astype(str), "").tolist()
            flags = [block.terminated.astype(int).tolist(), block.truncated.astype(int).tolist()]
            flags += [[group_of[g] for g in block.group]] if kept else []
            columns = zip(agent, map(printable.csv, block.episode.tolist()), block.t.tolist(), obs, action, *flags, strict=True)
            writer.writerows([who, episode, t, *seen, *rest] for who, episode, t, seen, *rest in columns)
            done += int(block.has_action.sum())
            bar.advance(done, {})
