"""Where the units of a reproduction are run: in processes here, on a Ray cluster, or as jobs of SLURM.

A unit is run the same way everywhere, by `reproduce.alone`: in a process of its own with one thread. Only the process that was asked for
the reproduction writes cells. A unit can be run again at any time: it continues in its directory, where one process at a time is let in.
So a unit whose worker, node or job is killed is given out again, and its cells are those of an undisturbed one.
"""

import contextlib
import functools
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from psiphi import disk, limits, printable
from psiphi.errors import UserError
from psiphi.experiments import reproduce
from psiphi.experiments.cells import Cell
from psiphi.experiments.measures import Unit
from psiphi.experiments.reproduce import MOST_DEATHS, UNFINISHED, Work

On = Literal["local", "ray", "slurm"]
Outcomes = Iterator[tuple[Unit, list[Cell] | str]]

CELLS = "cells.json"
"""In a unit's directory: what its job left, its cells or a sentence."""
PATIENCE_S = 10.0
"""Seconds that a Ray cluster has to answer."""


def runner(on: On, *, jobs: int = 1, address: str = "", slurm: str = "") -> Callable[[Work, Sequence[Unit]], Outcomes]:
    """What runs units there; what cannot be is refused at once."""
    if address and on != "ray":
        raise UserError(f"--address is {address!r}, expected it only with --on ray.")
    if slurm and on != "slurm":
        raise UserError(f"--slurm is {slurm!r}, expected it only with --on slurm.")
    if on == "ray":
        _imported("ray", "ray")
        check_reachable(address)
        return functools.partial(on_ray, jobs=jobs, address=address)
    if on == "slurm":
        _imported("submitit", "slurm")
        return functools.partial(on_slurm, jobs=jobs, options=parsed(slurm))
    return reproduce.in_turn if jobs == 1 else functools.partial(reproduce.side_by_side, jobs=jobs)


def _imported(module: str, extra: str) -> Any:
    try:
        return __import__(module)
    except ImportError as error:
        raise UserError(f"--on {extra} needs {module}, expected it to be installed: pip install 'psiphi[{extra}]'.") from error


# --- Ray -----------------------------------------------------------------------------------------------------------------


def check_reachable(address: str) -> None:
    """One sentence for a cluster that does not answer; Ray itself would try for a minute, or find one where it says that there is one."""
    if address in ("", "auto"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"--address is {address!r}, expected HOST:PORT, ray://HOST:PORT or auto.")
    try:
        socket.create_connection((host, int(port)), PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"No Ray cluster answers at {address}, expected the address that ray start printed.") from error


def on_ray(work: Work, todo: Sequence[Unit], *, jobs: int, address: str) -> Outcomes:
    """On the cluster at the address, or on one of `jobs` cores of this machine, which lasts as long as the work."""
    ray, work = _imported("ray", "ray"), work.of_one_thread()
    where = {"address": address} if address else {"address": "local", "num_cpus": jobs, "include_dashboard": False}
    try:
        ray.init(**where, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"at {address}" if address else "of this machine"
        why = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"The Ray cluster {where} cannot be used: {why}; one that asks for a token needs RAY_AUTH_MODE=token.") from error
    remote = ray.remote(num_cpus=1, max_retries=MOST_DEATHS)(reproduce.alone)
    try:
        asked = {remote.remote(work.task(unit)): unit for unit in todo}
        while asked:
            for ref in ray.wait(list(asked), timeout=1.0)[0]:
                unit = asked.pop(ref)
                try:
                    got = ray.get(ref)
                except ray.exceptions.RayError as error:
                    got = f"Ray gave it up: {printable.sentence(str(error).splitlines()[0])}"
                yield unit, got
    finally:
        ray.shutdown()  # what is still at work ends with its driver


# --- SLURM ---------------------------------------------------------------------------------------------------------------


def parsed(options: str) -> dict[str, Any]:
    """``partition=cpu,timeout_min=600`` as parameters of submitit; numbers are numbers."""
    found: dict[str, Any] = {}
    for option in filter(None, (part.strip() for part in options.split(","))):
        name, equals, value = option.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"--slurm has {option!r}, expected NAME=VALUE, such as partition=cpu,timeout_min=600.")
        found[name] = int(value) if value.isdigit() else value
    return found


class _Job(NamedTuple):
    job: Any
    path: Path
    """Where its cells will be."""


def on_slurm(work: Work, todo: Sequence[Unit], *, jobs: int, options: Mapping[str, Any]) -> Outcomes:
    """At most `jobs` jobs at a time. ``cluster=local`` among the options is submitit's stand-in, with processes of this machine."""
    submitit, work = _imported("submitit", "slurm"), work.of_one_thread()
    folder = work.directory / UNFINISHED / "slurm"
    cluster, given = options.get("cluster", "slurm"), {k: v for k, v in options.items() if k != "cluster"}
    own = {"partition", "account", "qos", "constraint", "mem", "array_parallelism"}
    given = {f"slurm_{name}" if name in own else name: value for name, value in given.items()}
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(**{"name": f"psiphi-{work.what.name}", "cpus_per_task": 1, "timeout_min": 1_440, **given})
    except (RuntimeError, ValueError, NameError, TypeError) as error:
        raise UserError(f"SLURM cannot be used: {printable.sentence(str(error).splitlines()[0])}") from error

    def submit(unit: Unit) -> _Job:
        path = work.where(unit).directory / CELLS
        return _Job(executor.submit(job, work.task(unit), str(path.absolute())), path)

    waiting, running, deaths = list(todo), {}, dict.fromkeys(todo, 0)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                unit = waiting.pop(0)
                left = work.where(unit).directory / CELLS
                if left.exists():  # by a job that ended after the process that had asked for it
                    if isinstance(got := disk.read_json(left, limits.MOST_ROWS_BYTES), list):
                        yield unit, got
                        continue
                    disk.remove(left)
                running[unit] = submit(unit)
            time.sleep(0.2)
            for unit, (submitted, path) in list(running.items()):
                ended = submitted.done()  # before the look for its file, which it writes last
                if path.exists():
                    del running[unit]
                    yield unit, disk.read_json(path, limits.MOST_ROWS_BYTES)
                elif ended:
                    del running[unit]
                    deaths[unit] += 1
                    if deaths[unit] <= MOST_DEATHS:
                        waiting.insert(0, unit)
                    else:
                        yield unit, f"its job was killed {deaths[unit]} times; the last one's output is {submitted.paths.stderr}."
        disk.remove(folder)
    finally:
        for submitted, _ in running.values():
            with contextlib.suppress(OSError):
                submitted.cancel()


def job(task: dict[str, Any], path: str) -> None:
    """What a job does: the unit, and its cells or what went wrong as a file of JSON. Nothing of ours is unpickled from a job."""
    disk.write(Path(path), json.dumps(reproduce.alone(task)).encode())
