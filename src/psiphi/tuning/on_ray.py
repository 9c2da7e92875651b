"""Groups of trials on a Ray cluster, through Ray Tune. Needs the extra `ray`.

Every round of a population is one `Tuner.fit` whose trials are the round's groups; between rounds this process decides, with the same
`core` as everywhere. So the lineage is that of a population in one program, which Tune's own scheduler could not give: it draws from
Python's global random numbers, and a donor's checkpoint may be gone before its copy starts. Asynchronous halving has no rounds: there each
stretch of a trial is a task of Ray itself. States stay in psiphi's run directories, which all nodes must reach under the same path. A
worker that is lost is started again, and a group that had finished its round is not trained twice. What Tune itself writes are pickles, in
a directory that is removed in the end: the cluster must be one that you trust.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from psiphi import disk
from psiphi.errors import UserError
from psiphi.tuning import plan as plans
from psiphi.tuning import trials
from psiphi.tuning.plan import Plan
from psiphi.tuning.trials import Found, Group, Place, Task

LOST = 3
"""How often a group is started again after its worker was lost."""


@contextlib.contextmanager
def cluster(address: str, workers: int) -> Iterator[None]:
    """A Ray cluster for as long as the block lasts: the one at `address`, or one of so many processes on this machine."""
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError("--on ray needs Ray, expected it to be installed: pip install 'psiphi[ray]'.") from error
    kept = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "JAX_PLATFORMS")
    env = {name: os.environ[name] for name in kept if name in os.environ} | {"NPROC": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    quiet = {"logging_level": "ERROR", "log_to_driver": False, "runtime_env": {"env_vars": env}}
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            ray.init(address="local", num_cpus=workers, include_dashboard=False, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"at {address}" if address else "of this machine"
        why = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"The Ray cluster {where} cannot be used: {why}; one that asks for a token needs RAY_AUTH_MODE=token.") from error
    try:
        yield
    finally:
        ray.shutdown()


def place(workers: int) -> Place:
    """Rounds on the cluster, so many groups at a time."""
    return partial(_placed, workers)


def _placed(workers: int, plan: Plan, tasks: Sequence[Task]) -> list[Found]:
    """A round: one trial of Tune for each group that has not finished it."""
    from ray import tune  # pyright: ignore[reportMissingImports]

    left = [task for task in tasks if len(trials.standing(task.group)) < task.upto]
    if left:
        home = left[0].group.out.parent.absolute() / "ray"
        work = [_described(plan, task) for task in left]
        fit = tune.Tuner(
            tune.with_resources(_work, {"cpu": 1}),
            param_space={"work": tune.grid_search(work)},
            tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=workers),
            run_config=tune.RunConfig(
                name=f"round-{left[0].upto}", storage_path=str(home), verbose=0, failure_config=tune.FailureConfig(max_failures=LOST)
            ),
        )
        errors = fit.fit().errors
        disk.remove(home)
        if errors:
            raise UserError(f"A group of trials failed on Ray: {str(errors[0]).strip().splitlines()[-1]}")
    return [trials.standing(task.group) for task in tasks]


class Pool:
    """Tasks on the cluster that end at different times."""

    def __init__(self):
        import ray  # pyright: ignore[reportMissingImports]

        self._ray, self._running = ray, {}
        self._remote = ray.remote(num_cpus=1, max_retries=LOST)(_performed)

    def start(self, plan: Plan, task: Task) -> None:
        self._running[self._remote.remote(_described(plan, task))] = task

    def ended(self) -> Task:
        (ref,), _ = self._ray.wait(list(self._running), num_returns=1)
        try:
            self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            raise UserError(f"A trial failed on Ray: {str(error).strip().splitlines()[-1]}") from error
        return self._running.pop(ref)


def _work(config: dict[str, Any]) -> None:
    """What a worker of Tune does."""
    from ray import tune  # pyright: ignore[reportMissingImports]

    tune.report({"rounds": _performed(config["work"])})


def _performed(work: dict[str, Any]) -> int:
    """One task, done; gives the rounds that there are now. JAX is loaded here, not in the process that decides."""
    task = work["task"]
    group = Group(tuple(task["members"]), Path(task["out"]))
    sources = tuple(None if source is None else (source[0], source[1], source[2]) for source in task["sources"])
    return len(trials.perform(plans.from_json(work["plan"]), Task(group, task["upto"], tuple(task["values"]), sources)))


def _described(plan: Plan, task: Task) -> dict[str, Any]:
    """All of it as plain values, with absolute paths: workers have other working directories."""
    sources = [None if source is None else (str(Path(source[0]).absolute()), *source[1:]) for source in task.sources]
    where = str(task.group.out.absolute())
    said = {"members": list(task.group.members), "out": where, "upto": task.upto, "values": list(task.values), "sources": sources}
    return {"plan": plans.described(plan), "task": said}
