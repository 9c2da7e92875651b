"""From a row of a table to the run that it is: an algorithm in a world, with what the row changes in its settings there."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from psiphi import configs, training
from psiphi.agents import ALGORITHMS, itd
from psiphi.configs import Count
from psiphi.errors import UserError
from psiphi.experiments import roundabout
from psiphi.experiments.paper import Experiment, Method, Variant
from psiphi.loops.few_shot import FewShotConfig
from psiphi.training import NONE, ONLINE, Run


@dataclass(frozen=True)
class Effort:
    """How much of everything; None is the experiment's own. Less than that is for trying things out."""

    updates: Count | None = None
    """Updates of training."""
    episodes: Count | None = None
    """Demonstrated episodes per demonstrator."""
    repetitions: Count = 256
    """Repetitions of few-shot transfer per task; an eighth of it where there are 100 shots."""
    steps: Count | None = None
    """Environment steps of the learners that act."""

    def __post_init__(self):
        configs.check(self)


def run_of(what: Experiment, variant: Variant, method: Method, effort: Effort, seed: int = 0) -> Run:
    """The training of a row, or the first of several: with less of something, where that is asked for."""
    if method.how == "imitate" and variant.world == "roundabout":
        return _on_roundabout(variant, method, effort, seed)
    run = training.default_run(method.algorithm, variant.world, method.preset, seed=seed)
    run = dataclasses.replace(run, task=variant.ego)
    if run.demos == training.RECORDED and not variant.demonstrators:
        run = dataclasses.replace(run, demonstrators=what.demonstrators)
    run = training.changed(run, {**variant.changes, **method.changes})
    if method.cumulants is not None:
        run = training.changed(run, {"agent.itd.num_cumulants": method.cumulants})
    run = dataclasses.replace(run if "demos" in method.changes else _with_demonstrations(run), **_less(run, effort))
    return run if effort.steps is None or not run.study else _whole_when_studied(run)


def _whole_when_studied(run: Run) -> Run:
    """With fewer steps the sparse prior must still be whole when the study ends."""
    return training.changed(run, {"agent.itd.sparsity_ramp": run.study / training.loop_of(run).iterations})


def _on_roundabout(variant: Variant, method: Method, effort: Effort, seed: int) -> Run:
    """A row of table 1 there, which has settings and even learners of its own."""
    if method.algorithm not in roundabout.ROWS:
        raise UserError(f"Roundabout has no row for {method.algorithm!r}, expected one of {', '.join(roundabout.ROWS)}.")
    algorithm, fields = roundabout.ROWS[method.algorithm]
    shown = {name: value for name, value in method.changes.items() if name == "episodes"}
    run = training.changed(training.default_run(algorithm, "roundabout", seed=seed, **fields()), {**variant.changes, **shown})
    return dataclasses.replace(_with_demonstrations(run), **_less(run, effort))


def _with_demonstrations(run: Run) -> Run:
    """Demonstrations only for those who learn from them; BC-aux is asked for by a weight."""
    if not ALGORITHMS[run.algorithm].watches(run.agent):
        return dataclasses.replace(run, demos=NONE, demonstrators=())
    if run.demos == NONE:
        return dataclasses.replace(run, demos=_source(run))
    return run


def _source(run: Run) -> str:
    """Where demonstrations come from in a run's world: where its settings say, or what there is."""
    world = training.worlds.find(run.env)
    tuned = world.presets[run.algorithm]()["demos"] if run.algorithm in world.presets else NONE
    if tuned != NONE:
        return tuned
    return training.RECORDED if world.record is not None else ONLINE if world.watched(run.world) else NONE


def _less(run: Run, effort: Effort) -> dict[str, Any]:
    given = {"episodes": effort.episodes}
    if run.steps:
        given["steps"] = effort.steps
    else:
        given["updates"] = effort.updates
    return {name: value for name, value in given.items() if value is not None}


def few_shot_of(method: Method) -> FewShotConfig:
    """How a row meets a new task."""
    base = FewShotConfig(inference="least-squares", kappa=0.0, temperature=0.0) if method.preset == "paper" else FewShotConfig()
    return dataclasses.replace(base, **method.few_shot)


def described(run: Run) -> dict[str, Any]:
    """A run as JSON values, without its seed, and in words what the learner sees."""
    fields = dataclasses.asdict(run)
    del fields["seed"]
    return {**fields, "saw": saw(run)}


def saw(run: Run) -> list[str]:
    """Demonstrations, steps of its own, rewards: in words, for the report."""
    algorithm = ALGORITHMS[run.algorithm]
    shown = "none"
    if algorithm.watches(run.agent) and run.demos == ONLINE:
        cars = getattr(run.world, "observed", None)
        shown = "what others do, at every step" if cars is None else f"those of the {cars} nearest cars, at every step"
    elif algorithm.watches(run.agent) and run.demos != NONE:
        count = len(run.demonstrators or training.worlds.find(run.env).demonstrators(run.world))
        shown = f"{run.episodes:,} episodes of each of {count}"
    return [shown, _steps_seen(run), "of its own task" if algorithm.paid(run.agent) else "none"]


def _steps_seen(run: Run) -> str:
    """The learner's own steps; ITD's are random and reward-free, if it looks at them at all."""
    loop = training.loop_of(run)
    steps = run.steps or (loop.env_steps(loop.iterations) if training.acts(run) else 0)
    if hasattr(run.agent, "cross_policy_on"):  # ITD
        looks = itd.uses_any_steps(run.agent) and run.agent.cross_policy_on != "pooled"
        return f"{steps:,}, {'' if run.agent.pursue else 'random and '}reward-free" if looks else "none"
    return f"{steps:,}" if steps else "none"
