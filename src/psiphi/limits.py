"""How much a file may ask for: declared here once, and checked before any memory is taken."""

import contextlib
import os
from pathlib import Path

from psiphi.errors import UserError

MOST_ACTIONS = 65_536
"""Different actions; each costs a row of every network and of every table."""
MOST_NAMED_ACTIONS = 1_000
"""Different actions that came as names: more are texts of another kind."""
MOST_AGENTS = 4_096
"""Different agents; each costs a head of every network."""
MOST_COLUMNS = 65_536
"""Columns of a table."""
MOST_HEADER_BYTES = 8 * 2**20
"""The first line of a CSV file."""
MOST_FIELD_BYTES = 2**20
"""A cell of a CSV file."""
MOST_JSON_BYTES = 64 * 2**20
"""A manifest, a config, a dataset's metadata."""
MOST_ROWS_BYTES = 16 * 2**30
"""All rows of a run or of a reproduction."""
MOST_AXES = 32
"""Axes of an array."""
MOST_ENTRIES = 2**26
"""Entries of an observation."""
MOST_WRONG_ROWS = 1_000
"""Rows of a table with another number of fields than its header, after which it is taken for none."""
MOST_EMPTY_LINES = 1_000_000
"""Lines of a table with nothing in them."""
GROWTH, SMALL = 40, 64 * 2**20
"""A file may hold so many times its own size, and so many bytes more: compressed numbers grow when they are read, but not without end."""
SPARE = 0.8
"""The part of the free memory that may be asked for."""
CROWDED = 0.5
"""The part of the pieces of memory that a process may map from which on compiled programs are forgotten."""


def free_memory() -> int | None:
    """Bytes that can be had without swapping, within the limits of this process and of its container; None where it is not known."""
    found = [size for size in (_available(), _contained(), _granted()) if size is not None]
    return min(found) if found else None


def check_memory(what: object, size: int) -> None:
    """Refuse what will not fit into the memory that is free: a small file may claim to hold anything."""
    free = free_memory()
    if free is not None and size > SPARE * free:
        raise UserError(f"{what} asks for {_gib(size)} of memory, expected at most {_gib(SPARE * free)}, {SPARE:.0%} of what is free.")


def mapped() -> float:
    """The part that this process has mapped of the pieces of memory that it may (Linux); a compiled program takes dozens, and stays."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/maps", "rb") as pieces:
        return sum(1 for _ in pieces) / int(Path("/proc/sys/vm/max_map_count").read_text())
    return 0.0


def check_growth(path: Path, size: int) -> None:
    """Refuse a file that claims to hold far more than its own size allows, or more than the memory that is free."""
    most = SMALL + GROWTH * path.stat().st_size
    if size > most:
        raise UserError(f"{path} claims to hold {_gib(size)}, expected at most {_gib(most)} in a file of its size.")
    check_memory(path, size)


def check_most(what: object, found: int, most: int) -> None:
    """Refuse more than so many."""
    if found > most:
        raise UserError(f"{what}: found {found:,}, expected at most {most:,}.")


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _available() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not every system says
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _contained() -> int | None:
    """Room in the memory limit of a container (control groups, both versions)."""
    for most, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        with contextlib.suppress(OSError, ValueError):
            group = Path("/sys/fs/cgroup")
            return max(int((group / most).read_text()) - int((group / used).read_text()), 0)
    return None


def _granted() -> int | None:
    """Room in the address space that the process was granted (ulimit -v)."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most != resource.RLIM_INFINITY:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            return max(most - used, 0)
    return None
