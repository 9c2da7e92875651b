"""How far a run is and how long it will still take: a bar on a terminal, a line now and then elsewhere."""

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from psiphi.printable import sentence, terminal

LINE_PERIOD_S = 15.0
"""Without a terminal, the least time between two lines."""


class Silent:
    """Says nothing."""

    def advance(self, done: int, figures: Mapping[str, float]) -> None:
        """So much of the total is done, and these are the latest figures."""

    def say(self, text: str) -> None:
        """A sentence for whoever watches."""

    def close(self) -> None:
        """No more is to come."""


class Lines(Silent):
    """Prints a line when enough time has passed since the last, and at the end."""

    def __init__(self, label: str, done: int, total: int):
        self.label, self.total = label, total
        self.pace = Pace(done, total)
        self.printed = time.monotonic()

    def advance(self, done: int, figures: Mapping[str, float]) -> None:
        left = self.pace.left(done)
        now = time.monotonic()
        if done < self.total and now - self.printed < LINE_PERIOD_S:
            return
        self.printed = now
        self.say(f"{self.label} {done}/{self.total}, {clock(left)} left{_listed(figures)}")

    def say(self, text: str) -> None:
        print(sentence(text), file=sys.stderr, flush=True)


class Bar(Silent):
    """A rich progress bar with the time left and the latest figures."""

    def __init__(self, label: str, done: int, total: int):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.pace = Pace(done, total)
        columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
        columns += [TextColumn("{task.fields[left]} left{task.fields[figures]}", markup=False)]
        self.bar = Progress(*columns, console=Console(stderr=True), refresh_per_second=2)
        self.task = self.bar.add_task(label, total=total, completed=done, left="?", figures="")
        self.bar.start()

    def advance(self, done: int, figures: Mapping[str, float]) -> None:
        self.bar.update(self.task, completed=done, left=clock(self.pace.left(done)), figures=_listed(figures))

    def say(self, text: str) -> None:
        self.bar.console.print(sentence(text), highlight=False, markup=False)

    def close(self) -> None:
        self.bar.stop()


class Pace:
    """Estimates the time left from the latest steps. The first stretch includes compiling: it counts only until there is a second."""

    def __init__(self, done: int, total: int):
        self.total = total
        self.marks = [(time.monotonic(), done)]

    def left(self, done: int) -> float:
        """Seconds until `total`, now that `done` is reached; infinite before the first step."""
        now = time.monotonic()
        if done == self.marks[-1][1]:
            self.marks[-1] = now, done  # whatever took the time was not a step
        else:
            self.marks.append((now, done))
        return seconds_left(self.marks[1:] if len(self.marks) > 2 else self.marks, self.total)


def seconds_left(marks: Sequence[tuple[float, int]], total: int, window: int = 10) -> float:
    """At the pace of the last `window` marks (time, done)."""
    (start, before), (now, done) = marks[max(0, len(marks) - 1 - window)], marks[-1]
    return (total - done) * (now - start) / (done - before) if done > before else math.inf


def clock(seconds: float) -> str:
    """3725 as 1:02:05; what cannot be known is a question mark."""
    if math.isinf(seconds):
        return "?"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


@contextlib.contextmanager
def shown(label: str, *, done: int, total: int, enabled: bool = True) -> Iterator[Silent]:
    """A progress display for as long as the block lasts."""
    label = terminal(label)
    if not enabled:
        display = Silent()
    elif sys.stderr.isatty():
        display = Bar(label, done, total)
    else:
        display = Lines(label, done, total)
    try:
        yield display
    finally:
        display.close()


def _listed(figures: Mapping[str, float]) -> str:
    return "".join(f", {name} {value:.4g}" for name, value in figures.items())
