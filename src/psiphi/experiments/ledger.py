"""How far a reproduction is, when it will be over and what it costs: a table while it runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from psiphi import printable
from psiphi.experiments.cells import Cell
from psiphi.experiments.measures import Unit
from psiphi.progress import Silent, clock, shown


class Ledger:
    """What trainings took, by world and method. What one will take is what others of its kind took, or else what all did."""

    def __init__(self, wanted: Sequence[Unit], missing: Sequence[Unit], there: Sequence[Cell], side_by_side: int):
        self.left = list(missing)
        self.wanted = list(wanted)
        self.side_by_side = side_by_side
        self.took: dict[tuple[str, str], list[float]] = {}
        self.spent_s = 0.0
        for key in {(cell["env"], cell["method"], cell["seed"], cell["wall_s"]) for cell in there}:
            self.took.setdefault(key[:2], []).append(key[3])

    def finished(self, unit: Unit, wall_s: float | None) -> None:
        """A unit is over; without seconds it failed."""
        self.left.remove(unit)
        if wall_s is not None:
            self.took.setdefault(_kind(unit), []).append(wall_s)
            self.spent_s += wall_s

    def expected_s(self, unit: Unit) -> float:
        """Infinite as long as no training is over."""
        known = self.took.get(_kind(unit)) or [x for some in self.took.values() for x in some]
        return sum(known) / len(known) if known else float("inf")

    @property
    def to_go_s(self) -> float:
        """Seconds of work that are left."""
        return sum(map(self.expected_s, self.left))

    @property
    def left_s(self) -> float:
        """Seconds until all is over."""
        longest = max(map(self.expected_s, self.left), default=0.0)
        return max(self.to_go_s / self.side_by_side, longest)

    def sentence(self) -> str:
        done = len(self.wanted) - len(self.left)
        hours = [f"{seconds / 3600:.2f}" if seconds != float("inf") else "?" for seconds in (self.spent_s, self.to_go_s)]
        return f"{done}/{len(self.wanted)} trainings, {clock(self.left_s)} left; {hours[0]} core-hours spent, {hours[1]} to go"

    def rows(self) -> list[list[str]]:
        """By world and method: done of all, seconds of one, time that all of its missing ones take."""
        rows = []
        for kind in dict.fromkeys(map(_kind, self.wanted)):
            all_of, left = ([unit for unit in some if _kind(unit) == kind] for some in (self.wanted, self.left))
            took = self.took.get(kind, [])
            mean = f"{sum(took) / len(took):,.0f}" if took else "–"
            rows.append([*kind, f"{len(all_of) - len(left)}/{len(all_of)}", mean, clock(sum(map(self.expected_s, left)))])
        return rows


def _kind(unit: Unit) -> tuple[str, str]:
    return unit.variant.name, unit.method.name


class Live(Silent):
    """The rows as a table on a terminal, redrawn in place."""

    def __init__(self, ledger: Ledger):
        from rich.console import Console
        from rich.live import Live as Drawn

        self.ledger = ledger
        self.drawn = Drawn(console=Console(stderr=True), get_renderable=self._table, refresh_per_second=1)
        self.drawn.start()

    def _table(self) -> Any:
        from rich.table import Table

        table = Table("world", "method", "done", "seconds each", "left", title=self.ledger.sentence(), title_justify="left")
        for row in self.ledger.rows():
            table.add_row(*map(printable.rich, row))
        return table

    def say(self, text: str) -> None:
        self.drawn.console.print(printable.sentence(text), highlight=False, markup=False)

    def close(self) -> None:
        self.drawn.stop()


class Told(Silent):
    """Without a terminal: a line for each training."""

    def __init__(self, inner: Silent, ledger: Ledger):
        self.inner, self.ledger = inner, ledger

    def say(self, text: str) -> None:
        self.inner.say(text)

    def advance(self, done: int, figures: Any) -> None:
        self.inner.say(self.ledger.sentence())


@contextmanager
def watched(ledger: Ledger, terminal: bool) -> Iterator[Silent]:
    """A display for as long as the block lasts."""
    if not terminal:
        with shown("trainings", done=0, total=1) as inner:
            yield Told(inner, ledger)
        return
    display = Live(ledger)
    try:
        yield display
    finally:
        display.close()
