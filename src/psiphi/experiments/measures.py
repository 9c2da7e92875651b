"""From what was trained to figures: each kind of row of a table, or line of a figure, is one function here.

Every function trains what its row needs, by `psiphi.training.train`, and measures it. Nothing here knows how to train.
"""

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi import gpi, playing, stats, training, worlds
from psiphi import model as models
from psiphi.agents import ALGORITHMS, bc, itd, sqil
from psiphi.api import trained as answers
from psiphi.envs import coingrid
from psiphi.errors import UserError
from psiphi.experiments import highway, imitation, paper, pictures, roundabout
from psiphi.experiments.paper import ALL, CHANGED, FEW, MANY, WORST, Experiment, Figure, Method, Variant
from psiphi.experiments.runs import Effort, few_shot_of, run_of
from psiphi.loops import runs, scan
from psiphi.loops.evaluate import rollout_returns
from psiphi.loops.few_shot import FewShotConfig, few_shot
from psiphi.model import Model
from psiphi.training import Run, Trained, train
from psiphi.types import Demos, Env, Pace
from psiphi.worlds import World, fruitbot
from psiphi.worlds import coingrid as world
from psiphi.worlds.world import Recorded

Measured = list[tuple[Figure, float, Any]]
"""Figures, their values, and what else is to be kept of them (or None)."""

OFFLINE_STEPS = 8_192
"""Over so many steps a learner that takes none is drawn."""

JUDGED, HOSTED = 512, 64
"""Episodes on which a trained policy is judged, in compiled worlds and in Gymnasium's."""


class Unit(NamedTuple):
    """One row of a table with one seed."""

    variant: Variant
    method: Method
    seed: int

    def __str__(self) -> str:
        return f"{self.variant.name}, {self.method.name}, seed {self.seed}"


class Where(NamedTuple):
    """The directory in which a unit's trainings are put down while they run, the seconds between two checkpoints, and where the model of
    a learning curve is to stay, if it is."""

    directory: Path
    checkpoint_every_s: float = 30.0
    model: Path | None = None


class Done(NamedTuple):
    """The figures of one row with one seed, by method where trainings are shared, and what they cost."""

    figures: dict[str, Measured]
    env_steps: int = 0
    train_s: float = 0.0
    earlier_s: float = 0.0
    """Of the seconds of training, those of processes before this one."""


# --- A model that is asked -----------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """A trained model and in what way it is asked."""

    what: Experiment
    run: Run
    model: Model
    few_shot: FewShotConfig
    effort: Effort

    @property
    def demonstrators(self) -> tuple[str, ...]:
        return self.run.demonstrators

    @property
    def gamma(self) -> float:
        return getattr(self.run.agent, "gamma", None) or self.run.agent.itd.gamma


def _transferred(asked: Asked, key: Array, shots: int, repetitions: int) -> dict[str, dict[str, float]]:
    return transfer(asked.run.world, asked.model, asked.few_shot, key, shots=shots, repetitions=repetitions)


def transfer(
    config: coingrid.CoinGridConfig, model: Model, few: FewShotConfig, key: Array, *, shots: int, repetitions: int
) -> dict[str, dict[str, float]]:
    """Normalised returns of the four tasks: in the first episode, and after `shots` episodes. Means over the repetitions."""
    tasks = jnp.asarray(list(coingrid.TASKS.values()))
    keys = jax.random.split(key, len(tasks))
    first, after = _transfer(model, tasks, keys, world=config, config=few, shots=shots, repetitions=repetitions)
    return {
        "first": {name: float(x) for name, x in zip(coingrid.TASKS, first, strict=True)},
        "after": {name: float(x) for name, x in zip(coingrid.TASKS, after, strict=True)},
    }


@functools.partial(jax.jit, static_argnames=("world", "config", "shots", "repetitions"))
def _transfer(
    model: Model, tasks: Array, keys: Array, *, world: coingrid.CoinGridConfig, config: FewShotConfig, shots: int, repetitions: int
) -> tuple[Array, Array]:
    def one(w: Array, key: Array) -> tuple[Array, Array]:
        env = coingrid.make(world, w)
        got = few_shot(env, model, config, key, shots=shots, repetitions=repetitions, max_steps=world.max_steps)
        return coingrid.normalise(world, w, got.first).mean(), coingrid.normalise(world, w, got.after).mean()

    return jax.vmap(one)(tasks, keys)


def few_shots(asked: Asked, seed: int, key: Array) -> Iterator[tuple[Figure, float, Any]]:
    got = _transferred(asked, key, FEW, asked.effort.repetitions)
    for task in paper.TASKS:
        yield Figure("normalised_return", task, 0), got["first"][task], None
        yield Figure("normalised_return", task, FEW), got["after"][task], None


def many_shots(asked: Asked, seed: int, key: Array) -> Iterator[tuple[Figure, float, Any]]:
    got = _transferred(asked, key, MANY, max(asked.effort.repetitions // 8, 1))
    for task in paper.TASKS:
        yield Figure("normalised_return", task, MANY), got["after"][task], None


def phi(asked: Asked, seed: int, key: Array) -> Iterator[tuple[Figure, float, Any]]:
    got = world.explained(asked.run.world, asked.demonstrators, asked.model, key)
    yield Figure("r2", ALL), float(np.mean(got["r2"])), None
    for metric in ("r2", "reward_correlation"):
        for who, value in zip(asked.demonstrators, got[metric], strict=True):
            yield Figure(metric, who), value, None


def accuracy(asked: Asked, seed: int, key: Array) -> Iterator[tuple[Figure, float, Any]]:
    got = world.held_out_accuracy(asked.run.world, asked.demonstrators, asked.model, seed, min(500, asked.run.episodes))
    yield Figure("accuracy", ALL), got["accuracy"], None
    yield Figure("ceiling_accuracy", ALL), got["ceiling"], None


def planner(asked: Asked, seed: int, key: Array) -> Iterator[tuple[Figure, float, Any]]:
    returns = world.planned_on_inferred(asked.run.world, asked.demonstrators, asked.model, key, gamma=asked.gamma)
    for who, value in zip(asked.demonstrators, returns, strict=True):
        yield Figure("planner_return", who), value, None


def starc(asked: Asked, seed: int, key: Array) -> Iterator[tuple[Figure, float, Any]]:
    distance = training.worlds.find(asked.run.env).starc
    assert distance is not None
    distances = distance(asked.run.world, asked.demonstrators, asked.model, key, asked.gamma)
    for who, value in zip(asked.demonstrators, distances, strict=True):
        yield Figure("starc", who), value, None


def cumulants(asked: Asked, seed: int, key: Array) -> Iterator[tuple[Figure, float, Any]]:
    """The best cumulant for each colour; the worst colour's cell keeps the picture."""
    steps_key, board_key = jax.random.split(key)
    matrix = np.asarray(world.explained(asked.run.world, asked.demonstrators, asked.model, steps_key)["cumulants"])
    best = np.abs(matrix).max(axis=0)
    colours = ["RGY".index(who) for who in asked.demonstrators]
    for who, colour in zip(asked.demonstrators, colours, strict=True):
        yield Figure("correlation", who), float(best[colour]), None
    picture = pictures.described(asked.run.world, asked.demonstrators, asked.model, matrix, board_key)
    yield Figure("correlation", WORST), float(best[colours].min()), picture


ASKED: dict[str, Callable[[Asked, int, Array], Iterator[tuple[Figure, float, Any]]]] = {
    "few-shot": few_shots,
    "many-shot": many_shots,
    "phi": phi,
    "imitation": accuracy,
    "planner": planner,
    "cumulants": cumulants,
    "starc": starc,
}
"""What can be asked of a model; the order decides the keys."""


def model(
    what: Experiment, unit: Unit, sharing: Sequence[Method], effort: Effort, references: Mapping[str, float], where: Where | None = None
) -> Done:
    """Train a model and ask all that the experiment measures, once for each way of asking that shares the training."""
    key = jax.random.fold_in(jax.random.key(unit.seed), 3)
    run = run_of(what, unit.variant, unit.method, effort, unit.seed)
    if not unit.method.trains:
        run = training.completed(run)
        found = world.ceiling(run.world, run.demonstrators, key, gamma=run.agent.gamma)
        return Done({unit.method.name: [(Figure("gpi_ceiling", task), value, None) for task, value in found.items()]})
    trained = train(run, **_in(where, "training"), progress=False)
    warn_of_collapse(trained)
    learned = answers.model_of(trained)
    figures = {}
    for method in sharing:
        asked = Asked(what, trained.run, learned, few_shot_of(method), effort)
        rows = [ASKED[name](asked, unit.seed, jax.random.fold_in(key, i)) for i, name in enumerate(ASKED) if name in what.measures]
        figures[method.name] = [row for some in rows for row in some]
    return Done(figures, trained.env_steps, trained.wall_s, trained.earlier_s)


def _in(where: Where | None, name: str) -> dict[str, Any]:
    """Where one of a unit's trainings is put down, and how often, as arguments."""
    return {} if where is None else {"out": where.directory / name, "checkpoint_every_s": where.checkpoint_every_s}


def warn_of_collapse(trained: Trained) -> None:
    last = trained.rows[-1]
    warning = itd.collapse(last["train/signal"] or 0.0, last["train/rank"] or 0.0, len(trained.agents))
    if warning:
        print(f"psiphi: {warning}", file=sys.stderr)


# --- Who learns a task fastest -------------------------------------------------------------------------------------------


def curve(
    what: Experiment, unit: Unit, sharing: Sequence[Method], effort: Effort, references: Mapping[str, float], where: Where | None = None
) -> Done:
    """The learning curve of one training, and the figures that sum it up."""
    trained = train(run_of(what, unit.variant, unit.method, effort, unit.seed), **_in(where, "training"), progress=False)
    if where is not None and where.model is not None:
        answers.save(where.model, trained)
    task = unit.variant.task or paper.EGO
    steps, returns = curve_of(trained.rows)
    if not trained.env_steps:  # who learns from no steps is from the start what it became
        steps, returns = [0, effort.steps or OFFLINE_STEPS], [returns[-1]] * 2
    extra = {"curve": {"env_steps": steps, "normalised_return": [round(x, 4) for x in returns]}} | also_of(trained.rows)
    figures: Measured = [
        (Figure("auc", task), area(steps, returns), extra),
        (Figure("final_return", task), float(np.mean(returns[-max(len(returns) // 10, 1) :])), None),
        (Figure("steps_to_90", task), float(stats.steps_to(steps, returns, paper.SOLVED)), None),
    ]
    return Done({unit.method.name: figures}, trained.env_steps, trained.wall_s, trained.earlier_s)


def curve_of(rows: list[dict[str, Any]]) -> tuple[list[int], list[float]]:
    """Steps and returns, normalised where the world says what 1 is; of several evaluations after the same number of steps, the last."""
    name = next((name for name in ("eval/normalised_return", "eval/return") if any(name in row for row in rows)), None)
    if name is None:
        raise UserError("There is no curve: the run was never evaluated, expected evaluate_every above 0.")
    found = {row["env_steps"]: row[name] for row in rows if name in row}
    return list(found), list(found.values())


def also_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What else the world counted at the evaluations, such as what was collected; nothing where it counts returns only."""
    judged = [row for row in rows if "eval/return" in row]
    names = [name for name in (judged[-1] if judged else {}) if name.startswith("eval/") and not name.endswith("return")]
    counts = {name.removeprefix("eval/"): [round(row[name], 4) for row in judged] for name in names}
    return {"also": {"env_steps": [row["env_steps"] for row in judged], **counts}} if names else {}


def area(steps: list[int], returns: list[float]) -> float:
    """The mean return over the steps, straight lines between evaluations; before the first one it is what that one found."""
    if len(steps) == 1:
        return float(returns[0])
    x, y = np.asarray([0, *steps], float), np.asarray([returns[0], *returns], float)
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2) / x[-1])


# --- Who imitates best ---------------------------------------------------------------------------------------------------


def imitate(
    what: Experiment, unit: Unit, sharing: Sequence[Method], effort: Effort, references: Mapping[str, float], where: Where | None = None
) -> Done:
    """One policy for what each demonstrator wants; `references` are the returns to divide by, by demonstrator."""
    if unit.method.name != what.reference and not references:
        raise UserError(f"{unit.method.name} is measured by the return of {what.reference}, which there is none of with seed {unit.seed}.")
    run = training.completed(run_of(what, unit.variant, unit.method, effort, unit.seed))
    imitated = _together if run.algorithm == "itd-dqn" else _imitated
    returns, env_steps, train_s, earlier_s, *inferred = imitated(what, unit, run, effort, where)
    inferred = inferred if paper.known(what, unit.variant) else []
    by = {} if unit.method.name == what.reference else references
    figures = {method.name: list(_return_figures(got, by)) for method, got in zip(sharing, returns, strict=False)}
    for learned in inferred:
        figures[unit.method.name] += _reward_figures(what, unit, run, learned, effort)
    return Done(figures, env_steps, train_s, earlier_s)


def _reward_figures(what: Experiment, unit: Unit, run: Run, learned: Model, effort: Effort) -> Iterator[tuple[Figure, float, Any]]:
    """What was inferred beside the truth, in every world in which the variant judges: no learner stands between."""
    key = jax.random.fold_in(jax.random.key(unit.seed), 4)
    for end, moved in _judged_in(unit.variant, run):
        asked = Asked(what, moved, learned, few_shot_of(unit.method), effort)
        for i, name in enumerate(ASKED):
            if name in paper.known(what, unit.variant):
                for figure, value, extra in ASKED[name](asked, unit.seed, jax.random.fold_in(key, i)):
                    yield figure._replace(task=figure.task + end), value, extra


def rule(
    what: Experiment, unit: Unit, sharing: Sequence[Method], effort: Effort, references: Mapping[str, float], where: Where | None = None
) -> Done:
    """The rule by which the demonstrators act, in the place of a policy: it learned nothing."""
    if unit.method.algorithm == "script":
        returns = fruitbot.earned(_traffic(unit.variant), unit.variant.demonstrators or what.demonstrators, HOSTED, unit.seed)
    else:
        returns = roundabout.idm_returns(_traffic(unit.variant), unit.seed, JUDGED)
    return Done({unit.method.name: list(_return_figures(returns, references))})


def _traffic(variant: Variant) -> Any:
    """The world's config in which nothing is learned."""
    return training.changed(training.default_run("bc", variant.world), variant.changes).world


def _return_figures(returns: Mapping[str, float], references: Mapping[str, float]) -> Iterator[tuple[Figure, float, Any]]:
    for metric, scale in (("return", dict.fromkeys(returns, 1.0)), ("normalised_return", references)):
        if scale:
            for end in ("", CHANGED):
                shares = {who: value / scale[who] for who, value in returns.items() if who.endswith(CHANGED) == bool(end)}
                every = {ALL + end: float(np.mean(list(shares.values())))} if shares else {}
                for who, value in (shares | every).items():
                    yield Figure(metric, who), value, None


Returns = tuple[list[dict[str, float]], int, float, float] | tuple[list[dict[str, float]], int, float, float, Model]
"""Mean returns by demonstrator, of the method and of those that share its training; environment steps; seconds of training, and of
these the part of processes before this one; and the model whose rewards are to be judged by themselves, if there is one."""


def _judged_in(variant: Variant, run: Run) -> list[tuple[str, Run]]:
    """The worlds in which a variant judges: what the names of tasks end with there, and the run in that world."""
    return [(end, training.changed(run, variant.moved if end else {})) for end in paper.ends_of(variant)]


def _everywhere(unit: Unit, run: Run, who: Sequence[str], nets: Sequence[Any]) -> dict[str, float]:
    """The returns of one policy per demonstrator, as they are, in every world in which the variant judges."""
    return {name + end: x for end, moved in _judged_in(unit.variant, run) for name, x in _returns(moved, who, nets).items()}


def _imitated(what: Experiment, unit: Unit, run: Run, effort: Effort, where: Where | None) -> Returns:
    """The mean return of one policy per demonstrator, on what that one wants, and what all of them cost."""
    who = unit.variant.demonstrators or what.demonstrators
    place, algorithm = training.worlds.find(run.env), ALGORITHMS[run.algorithm]
    if not algorithm.watches(run.agent):
        return _on_truth(unit, run, who, where)
    shown = None if place.record is None else place.record(run.world, run.demonstrators, run.episodes, run.seed, "train").demos
    if algorithm.successor_features:
        learner = next((method.algorithm for method in what.methods if method.name == what.reference), "dqn")
        found = _on_inferred(unit, run, who, shown, learner, {**unit.method.learner, **_steps(effort)}, where)
        return found
    if algorithm.tells_apart:
        trained = train(run, **_in(where, "training"), demos=shown, progress=False)
        nets = [bc.of_demonstrator(trained.net, k) for k in range(len(who))]
        return [_everywhere(unit, run, who, nets)], 0, trained.wall_s, trained.earlier_s
    all_trained = []
    for k, name in enumerate(who):
        # An imitator of one demonstrator is given that one's steps and no number.
        mine = None if shown is None else jax.tree.map(lambda x, k=k: x[k : k + 1], shown)
        wanted = dataclasses.replace(run, task=_wanted(place, run.world, name))
        all_trained.append(train(wanted, **_in(where, f"demonstrator-{k}"), demos=mine, progress=False))
    return [_everywhere(unit, run, who, [trained.net for trained in all_trained])], *_cost(all_trained)


def _on_truth(unit: Unit, run: Run, who: Sequence[str], where: Where | None) -> Returns:
    """A learner on each true reward, in every world in which all are judged."""
    place = training.worlds.find(run.env)
    returns, all_trained = {}, []
    for end, moved in _judged_in(unit.variant, run):
        for k, name in enumerate(who):
            wanted = dataclasses.replace(moved, task=_wanted(place, moved.world, name))
            all_trained.append(train(wanted, **_in(where, f"demonstrator-{k}{end}"), progress=False))
            returns |= {name + end: _returns(moved, [name], [all_trained[-1].net])[name]}
    return [returns], *_cost(all_trained)


def _together(what: Experiment, unit: Unit, run: Run, effort: Effort, where: Where | None) -> Returns:
    """ITD and learners on what it infers, side by side; in a changed world, whoever learns on the true reward there learns on it anew."""
    (returns, own), env_steps, train_s, earlier_s, learned = roundabout.together(run, JUDGED, **_in(where, "training"))
    (reference,) = [method for method in what.methods if method.name == what.reference and paper.has(unit.variant, method)]
    alone = training.completed(run_of(what, unit.variant, reference, effort, unit.seed))
    place, all_trained = training.worlds.find(run.env), []
    for end, moved in _judged_in(unit.variant, run)[1:]:
        own |= {name + end: x for name, x in roundabout.own_returns(moved, learned, JUDGED).items()}
        for k, name in enumerate(run.demonstrators):
            learner = dataclasses.replace(alone, world=moved.world, task=_wanted(place, moved.world, name), demonstrator=k)
            all_trained.append(train(learner, **_in(where, f"demonstrator-{k}{end}"), model=learned, progress=False))
            returns[name + end] = _returns(learner, [name], [all_trained[-1].net])[name]
    more = _cost(all_trained)
    return [returns, own], env_steps + more[0], train_s + more[1], earlier_s + more[2], learned


def _cost(trainings: Sequence[Trained]) -> tuple[int, float, float]:
    """Environment steps, seconds, and of these the part of processes before this one."""
    return sum(t.env_steps for t in trainings), sum(t.wall_s for t in trainings), sum(t.earlier_s for t in trainings)


def _steps(effort: Effort) -> dict[str, Any]:
    return {} if effort.steps is None else {"steps": effort.steps}


def _on_inferred(
    unit: Unit, run: Run, who: Sequence[str], shown: Demos | None, algorithm: str, changes: Mapping[str, Any], where: Where | None
) -> tuple[list[dict[str, float]], int, float, float, Model]:
    """A learner on each inferred reward, the same as learns on the true one, and ITD's own policies; in every world in which the variant
    judges, on what was inferred in the first."""
    inferred = train(run, **_in(where, "training"), demos=shown, progress=False)
    warn_of_collapse(inferred)
    learned = answers.model_of(inferred)
    place = training.worlds.find(run.env)
    returns, own = {}, {}
    all_trained = [inferred]
    for k, name in enumerate(who):
        task = _wanted(place, run.world, name)
        first = training.changed(training.default_run(algorithm, run.env, task=task, demonstrator=k, seed=run.seed), changes)
        for end, learner in _judged_in(unit.variant, first):
            trained = train(learner, **_in(where, f"demonstrator-{k}{end}"), model=learned, progress=False)
            returns[name + end] = _returns(learner, [name], [trained.net])[name]
            own[name + end] = _imitations_return(learner, learned, name, k)
            all_trained.append(trained)
    return [returns, own], *_cost(all_trained), learned


def _wanted(place: World, config: Any, demonstrator: str) -> str:
    """The task of a demonstrator."""
    return demonstrator if place.wants is None else place.wants(config, demonstrator)


def _returns(run: Run, who: Sequence[str], nets: Sequence[Any]) -> dict[str, float]:
    place = training.worlds.find(run.env)
    temperature = ALGORITHMS[run.algorithm].judged_at(run.agent)
    longest = place.longest(run.world)
    result = {}
    for name, net in zip(who, nets, strict=True):
        env = place.env(run.world, _wanted(place, run.world, name))
        if isinstance(env, Env):
            judge = jax.jit(lambda net, key, env=env: _played(env, net, temperature, key, longest))
            result[name] = float(np.mean(judge(net, judging_key(run.seed))))
        else:
            result[name] = _hosted(run, name, lambda obs, key, net=net: gpi.draw(net(obs), key, temperature))
    return result


def _imitations_return(run: Run, learned: Any, name: str, k: int) -> float:
    """What ITD's own imitation of a demonstrator earns by what that one wants."""
    place = training.worlds.find(run.env)
    if isinstance(place.env(run.world, _wanted(place, run.world, name)), Env):
        return float(np.mean(_own_returns(run.world, learned, jnp.asarray(world.weights_of(name)), k, judging_key(run.seed))))
    return _hosted(run, name, lambda obs, key: jnp.argmax(models.imitate(learned, obs, jnp.full(obs.shape[0], k)), axis=-1))


def _hosted(run: Run, name: str, act: playing.Act) -> float:
    """The mean return of a policy in a Gymnasium world, by what a demonstrator wants."""
    place = training.worlds.find(run.env)
    task = _wanted(place, run.world, name)
    return playing.figures(playing.Where(place, run.world, task, ()), act, run.seed, HOSTED, task)["return"]


def _played(env: Env, net: Any, temperature: float, key: Array, longest: int) -> Array:
    return rollout_returns(env, lambda obs, act_key: gpi.draw(net(obs), act_key, temperature), key, JUDGED, longest)["returns"]


def judging_key(seed: int) -> Array:
    """Of the boards on which everybody is judged: the same for all methods of a seed."""
    return jax.random.fold_in(jax.random.key(seed), 3)


@functools.partial(jax.jit, static_argnames="config")
def _own_returns(config: coingrid.CoinGridConfig, learned: Model, weights: Array, whose: Array, key: Array) -> Array:
    def policy(obs: Array, act_key: Array) -> Array:
        del act_key
        return jnp.argmax(models.imitate(learned, obs, jnp.full(obs.shape[0], whose)), axis=-1)

    return rollout_returns(coingrid.make(config, weights), policy, key, JUDGED, config.max_steps)["returns"]


# --- Who predicts others best --------------------------------------------------------------------------------------------


def predict(
    what: Experiment, unit: Unit, sharing: Sequence[Method], effort: Effort, references: Mapping[str, float], where: Where | None = None
) -> Done:
    """The accuracies of one training, and the figures that sum them up."""
    started = time.monotonic()
    setting = imitation.setting_of(unit.method.algorithm, {**unit.variant.changes, **unit.method.changes}, effort.updates, effort.episodes)
    found = imitation.run(setting, unit.seed, **_in(where, "training"))
    extra = {"curve": {"updates": found.updates, "accuracy": [round(x, 4) for x in found.held_out]}}
    figures: Measured = [
        (Figure("accuracy", ALL), found.held_out[-1], extra),
        (Figure("best_accuracy", ALL), max(found.held_out), None),
        (Figure("shown_accuracy", ALL), found.shown[-1], None),
    ]
    return Done({unit.method.name: figures}, found.env_steps, time.monotonic() - started + found.earlier_s, found.earlier_s)


FORESEEN = 200
"""Episodes of each demonstrator in which predictions are judged."""


def foresee(
    what: Experiment, unit: Unit, sharing: Sequence[Method], effort: Effort, references: Mapping[str, float], where: Where | None = None
) -> Done:
    """The share of each demonstrator's actions that a training predicts, in episodes that it was not shown and in those that it was."""
    trained = train(run_of(what, unit.variant, unit.method, effort, unit.seed), **_in(where, "training"), progress=False)
    run, record = trained.run, worlds.find(trained.run.env).record
    if record is None:
        raise UserError(f"{run.env} records no demonstrations, so there are none to hold out; expected a world that does.")
    shown, others = (record(run.world, run.demonstrators, n, run.seed, split) for n, split in ((run.episodes, "train"), (FORESEEN, "test")))
    figures: Measured = [
        (Figure("accuracy", ALL), foreseen(trained, others), None),
        (Figure("shown_accuracy", ALL), foreseen(trained, shown), None),
    ]
    if others.best is not None:
        figures.append((Figure("ceiling_accuracy", ALL), float(np.asarray(others.best)[np.asarray(others.episode) >= 0].mean()), None))
    return Done({unit.method.name: figures}, trained.env_steps, trained.wall_s, trained.earlier_s)


def foreseen(trained: Trained, recorded: Recorded) -> float:
    """The share of the recorded actions that a training's imitations would take, too."""
    steps, real = recorded.demos.steps, np.asarray(recorded.episode) >= 0
    hits = [np.asarray(imitation_of(trained, k)(steps.obs[k]) == steps.action[k]) for k in range(len(real))]
    return float(np.stack(hits)[real].mean())


def imitation_of(trained: Trained, k: int) -> Callable[[Array], Array]:
    """What demonstrator k would do, as a training has it: from successor features and preferences, or from a policy of its own."""
    if trained.algorithm.successor_features:
        learned = answers.model_of(trained)
        return jax.jit(lambda obs: jnp.argmax(models.imitate(learned, obs, jnp.full(obs.shape[0], k)), axis=-1))
    if trained.algorithm.imitates is None:
        raise UserError(f"{trained.run.algorithm} has one policy for all demonstrators, expected one for each, as bc has.")
    policy = trained.algorithm.imitates(trained.run.agent, trained.state, k)
    return jax.jit(lambda obs: policy(obs, jax.random.key(0)))


# --- Who adapts ----------------------------------------------------------------------------------------------------------

INSIDE = {"env_reward": True, "fade_updates": 1_000}
"""What a policy that goes on learning in a task changes: it sees the reward, and demonstrations leave its batch."""
UPDATES_PER_STEP, REPETITIONS = 1, 4


def adapt(
    what: Experiment, unit: Unit, sharing: Sequence[Method], effort: Effort, references: Mapping[str, float], where: Where | None = None
) -> Done:
    """SQILv2 in table 2: imitate everybody without rewards, then go on in each task with its reward, a model per task."""
    run = training.completed(run_of(what, unit.variant, unit.method, effort, unit.seed))
    place = training.worlds.find(run.env)
    assert place.record is not None
    shown = training.pool(place.record(run.world, run.demonstrators, run.episodes, run.seed, "train").demos)
    before = dataclasses.replace(run, pooled=False)
    trained = train(before, **_in(where, "training"), demos=shown, progress=False)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(unit.seed), 4), len(paper.TASKS))
    weights = jnp.asarray([world.weights_of(task) for task in paper.TASKS])

    def stretch(got: Array, done: int) -> tuple[Array, int, dict[str, Any]]:
        returns = np.asarray(_adapted(run, trained.net, shown, weights[done], keys[done])).mean(axis=0)
        return got.at[done].set(returns), done + 1, {}

    begin = functools.partial(jnp.zeros, (len(paper.TASKS), 3))
    got = runs.by_stretches({"run": dataclasses.asdict(run)}, begin, stretch, len(paper.TASKS), **_in(where, "tasks")).state
    figures: Measured = [
        (Figure("normalised_return", task, shots), float(x), None)
        for task, row in zip(paper.TASKS, got, strict=True)
        for shots, x in zip((0, FEW, MANY), row, strict=True)
    ]
    return Done({unit.method.name: figures}, trained.env_steps, trained.wall_s, trained.earlier_s)


@functools.partial(jax.jit, static_argnames="run")
def _adapted(run: Run, net: Any, demos: Demos, weights: Array, key: Array) -> Array:
    """Normalised returns ``[repetitions, 3]`` before, after 1 and after 100 episodes' worth of steps, each over fresh episodes."""
    config, env = run.world, coingrid.make(run.world, weights)
    loop = training.loop_of(run)
    pace = Pace(num_envs=1, updates=loop.iterations * loop.updates_per_rollout)
    agent = sqil.make(dataclasses.replace(run.agent, **INSIDE), env.spec, 1, pace)

    def judge(state: Any, judge_key: Array) -> Array:
        got = rollout_returns(env, functools.partial(agent.policy, state), judge_key, JUDGED // 4, config.max_steps)
        return jnp.mean(coingrid.normalise(config, weights, got["returns"]))

    def one(repetition_key: Array) -> Array:
        init_key, reset_key, first_key, rest_key, judge_key = jax.random.split(repetition_key, 5)
        state = agent.init(init_key, demos)._replace(net=net, target=net)
        world_state, obs = jax.vmap(env.reset)(reset_key[None])

        def step(carry: tuple[Any, Any, Array], step_key: Array) -> tuple[tuple[Any, Any, Array], None]:
            state, world_state, obs = carry
            collect_key, update_key = jax.random.split(step_key)
            world_state, obs, rollout = scan.collect(env, functools.partial(agent.act, state), world_state, obs, collect_key, 1)
            state = agent.observe(state, rollout)
            state, _ = jax.lax.scan(agent.update, state, jax.random.split(update_key, UPDATES_PER_STEP))
            return (state, world_state, obs), None

        start = (state, world_state, obs)
        after_one, _ = jax.lax.scan(step, start, jax.random.split(first_key, FEW * config.max_steps))
        after_all, _ = jax.lax.scan(step, after_one, jax.random.split(rest_key, (MANY - FEW) * config.max_steps))
        judge_keys = jax.random.split(judge_key, 3)
        return jnp.stack([judge(s[0], k) for s, k in zip((start, after_one, after_all), judge_keys, strict=True)])

    return jax.lax.map(one, jax.random.split(key, REPETITIONS))


# --- Who meets a new goal on Highway -------------------------------------------------------------------------------------


def goals(
    what: Experiment, unit: Unit, sharing: Sequence[Method], effort: Effort, references: Mapping[str, float], where: Where | None = None
) -> Done:
    """Returns on each new goal, by the number of rewarded episodes, over those of the DQN that learned it."""
    if unit.method.name != what.reference and not references:
        raise UserError(f"{unit.method.name} is measured by the return of {what.reference}, which there is none of with seed {unit.seed}.")
    episodes, repetitions = min(effort.repetitions, highway.JUDGED), min(effort.repetitions, highway.REPETITIONS)
    if unit.method.algorithm == "idm":
        met = highway.best_demonstrator(_traffic(unit.variant), what.goals, unit.seed, episodes)
    else:
        run = run_of(what, unit.variant, unit.method, effort, unit.seed)
        met = highway.meet(run, what.goals, few_shot_of(unit.method), unit.method.learner, episodes, repetitions, **_in(where, "training"))
    by = {} if unit.method.name == what.reference else references
    figures = [
        (figure._replace(shots=shots), value, extra)
        for shots, returns in met.returns.items()
        for figure, value, extra in _return_figures(dict(zip(what.goals, returns, strict=True)), by)
    ]
    return Done({unit.method.name: figures}, met.env_steps, met.train_s, met.earlier_s)


HOW: dict[str, Callable[..., Done]] = {
    "model": model,
    "curve": curve,
    "imitate": imitate,
    "rule": rule,
    "predict": predict,
    "foresee": foresee,
    "adapt": adapt,
    "goals": goals,
}
"""What is done with a row, by the name that its method gives."""
