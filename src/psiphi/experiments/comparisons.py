"""PsiPhi-learning beside the baselines: who imitates best (table 1), who adapts (table 2), who learns a task fastest.

Each function is one training, or as many as one row of a table needs with one seed, and gives the figures that come of it.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi import configs, stats
from psiphi import model as model_functions
from psiphi.agents import algorithm_of, bc, dqn, psiphi, sqil
from psiphi.configs import Count, Number
from psiphi.envs import coingrid
from psiphi.errors import UserError
from psiphi.experiments import baselines, imitation, models, paper, roundabout, traffic
from psiphi.experiments import coingrid as experiment
from psiphi.experiments.paper import ALL, FEW, MANY, Experiment, Figure, Method, Variant
from psiphi.loops import scan
from psiphi.loops.evaluate import rollout_returns
from psiphi.model import Model
from psiphi.types import Demos, Pace

Measured = Iterator[tuple[Figure, float, Any]]
"""Figures, their values, and what else is to be kept of them (or None)."""

JUDGED = 512
"""Episodes on which a trained policy is judged."""

CURVE_STEPS, EVALUATE_EVERY, RANDOM_STEPS = 8_192, 256, 512
"""Environment steps of a learning curve, between two of its points, and at its start, before the first update."""


class Done(NamedTuple):
    """The figures of one row with one seed, by method where trainings are shared, and what they cost."""

    figures: dict[str, list[tuple[Figure, float, Any]]]
    env_steps: int
    train_s: float


# --- Settings ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Online:
    """PsiPhi-learning while it acts: a setting with a task of the ego's, and how fast it goes."""

    setting: experiment.Setting
    """The world, the demonstrators and the learner."""
    steps: Count = CURVE_STEPS
    """Environment steps, random ones at the start included."""
    updates_per_rollout: Count = 2
    """Updates for each step of all environments side by side: as many as the DQN it is compared with."""
    study: Number = 250
    """Rounds of updates after the random steps and before the first step of its own: what demonstrations teach needs no steps."""
    evaluate_every: Count = EVALUATE_EVERY
    """Environment steps between two evaluations."""
    evaluate_episodes: Count = 128
    """Episodes of each evaluation."""

    def __post_init__(self):
        configs.check(self)


@dataclass(frozen=True)
class Inferred:
    """A DQN on what ITD inferred."""

    model: experiment.Setting = field(default_factory=experiment.Setting)
    """ITD's part."""
    dqn: baselines.Setting = field(default_factory=lambda: baselines.default("dqn"))
    """The DQN's part."""

    def __post_init__(self):
        configs.check(self)


@dataclass(frozen=True)
class Adapted:
    """A policy that is trained on in each new task."""

    before: baselines.Setting
    """How it imitated before."""
    inside: sqil.SQILConfig
    """How it learns in the task: in one environment, whose reward it now sees."""
    updates_per_step: Count = 1
    """Updates for each step in the task."""
    repetitions: Count = 4
    """How often to start over in each task."""

    def __post_init__(self):
        configs.check(self)


def online_setting(task: str, steps: int) -> Online:
    """PsiPhi-learning on a task; the schedules are as long as the run."""
    online = Online(experiment.Setting(ego_task=models.task(task), ego=psiphi.PsiPhiConfig(), prefill_steps=RANDOM_STEPS), steps=steps)
    return dataclasses.replace(online, setting=models.changed(online.setting, schedules(online)))


def schedules(online: Online) -> dict[str, float]:
    """The rate falls over all updates; the sparse prior is whole when the study ends, so that phi means rewards from the first step on.

    It is weaker than ITD's: the ego's rewards ground phi too, and what the ego avoids is rare in its steps: the prior would forget it.
    """
    whole = online.study / _iterations(online)
    return {"updates": _iterations(online) * online.updates_per_rollout, "itd.sparsity_ramp": whole, "itd.sparsity": 0.2}


def _iterations(online: Online) -> int:
    return online.study + -(-(online.steps - online.setting.prefill_steps) // online.setting.num_envs)


def setting_of(
    what: Experiment, variant: Variant, method: Method, *, steps: int | None = None, episodes: int | None = None, updates: int | None = None
) -> Any:
    """What a row is: all that its figures depend on besides the seed; with less of something, where that is asked for."""
    if variant.name in traffic.PANELS:
        cumulants = {} if method.cumulants is None else {"agent.itd.num_cumulants": method.cumulants}
        return traffic.setting_of(variant.name, method.algorithm, {**method.changes, **cumulants}, steps)
    if method.how == "predict":
        return imitation.setting_of(method.algorithm, dict(method.changes), updates, episodes)
    if variant == paper.ROUNDABOUT:
        return roundabout.setting_of(method.algorithm, steps=steps, episodes=episodes, updates=updates)
    if method.how == "adapt":
        given = {"before.steps": steps, "before.episodes": episodes}
        setting = adapted_setting(method)
    elif method.algorithm == "psiphi":
        cumulants = {} if method.cumulants is None else {"setting.itd.num_cumulants": method.cumulants}
        setting = models.changed(online_setting(variant.task or "R+G", steps or CURVE_STEPS), {**method.changes, **cumulants})
        given = {"setting.episodes": episodes}
    elif method.algorithm == "itd":
        setting = models.changed(Inferred(), method.changes)
        given = {"dqn.steps": steps, "model.episodes": episodes, "model.updates": updates}
    else:
        pace = {"steps": CURVE_STEPS, "evaluate_every": EVALUATE_EVERY, "prefill_steps": RANDOM_STEPS}
        seen = {"task": variant.task, **pace} if method.how == "curve" else {}
        setting = models.changed(baselines.default(method.algorithm), {**seen, **method.changes})  # pyright: ignore[reportArgumentType]
        given = {"steps": steps, "episodes": episodes} | ({"updates": updates} if method.algorithm == "bc" else {})
    return models.changed(setting, {name: value for name, value in given.items() if value is not None})


def adapted_setting(method: Method) -> Adapted:
    """It stops imitating soon: SQIL of two demonstrators at once imitates both after 4,000 steps, and unlearns it after 20,000, when its
    own steps, which are not paid, look like theirs. In the task demonstrations leave the batch over the first quarter of its updates."""
    before = models.changed(baselines.default("sqil"), {"pooled": True, "steps": 8_000, **method.changes})
    return Adapted(before, models.changed(before.agent, {"env_reward": True, "fade_updates": 1_000}))


def described(setting: Any) -> dict[str, Any]:
    """A setting as JSON values, and in words what the learner sees."""
    return {**dataclasses.asdict(setting), "saw": saw(setting)}


def saw(setting: Any) -> list[str]:
    """Demonstrations, steps of its own, rewards: in words, for the report."""
    if isinstance(setting, traffic.Setting):
        return traffic.saw(setting)
    if isinstance(setting, roundabout.Setting):
        return roundabout.saw(setting)
    if isinstance(setting, imitation.Setting):
        return imitation.saw(setting)
    if isinstance(setting, Adapted):
        demonstrations, steps, _ = saw(setting.before)
        return [demonstrations, f"{steps}; then those of the task", "those of the task"]
    if isinstance(setting, Inferred):
        return [_shown(setting.model), f"{setting.dqn.steps:,} for each reward, beside ITD's random ones", "what ITD inferred"]
    if isinstance(setting, Online):
        return [_shown(setting.setting), f"{setting.steps:,}", "of its own task"]
    name = baselines.name_of(setting.agent)
    paid = algorithm_of(setting.agent).paid(setting.agent)
    shown = _shown(setting) if baselines.needs_demonstrations(setting) else "none"
    return [shown, "none" if name == "bc" else f"{setting.steps:,}", "of its own task" if paid else "none"]


def _shown(setting: Any) -> str:
    return f"{setting.episodes:,} episodes of each of {len(setting.demonstrators)}"


# --- Who imitates best ---------------------------------------------------------------------------------------------------


def imitate(what: Experiment, method: Method, setting: Any, seed: int, references: Mapping[str, float]) -> Done:
    """One policy for what each demonstrator wants; `references` are the returns to divide by, by demonstrator."""
    if method.name != what.reference and not references:
        raise UserError(f"{method.name} is measured by the return of {what.reference}, which there is none of with seed {seed}.")
    if isinstance(setting, roundabout.Setting):
        by_method, env_steps, train_s = roundabout.imitate(setting, method.name, seed)
    elif isinstance(setting, Inferred):
        by_method, env_steps, train_s = on_inferred(setting, seed)
    else:
        returns, env_steps, train_s = imitated(setting, what, seed)
        by_method = {method.name: returns}
    by = {} if method.name == what.reference else references
    figures = {name: list(_return_figures(what, returns, by)) for name, returns in by_method.items()}
    return Done(figures, env_steps, train_s)


def _return_figures(what: Experiment, returns: Mapping[str, float], references: Mapping[str, float]) -> Measured:
    for metric, scale in (("return", dict.fromkeys(returns, 1.0)), ("normalised_return", references)):
        if scale:
            shares = {who: value / scale[who] for who, value in returns.items()}
            for who, value in (shares | {ALL: float(np.mean(list(shares.values())))}).items():
                yield Figure(metric, who), value, None


def imitated(setting: baselines.Setting, what: Experiment, seed: int) -> tuple[dict[str, float], int, float]:
    """The mean return of one policy per demonstrator, on what that one wants, and what all of them cost."""
    name = baselines.name_of(setting.agent)
    demos = baselines.demonstrations(setting, seed) if baselines.needs_demonstrations(setting) else None
    if name == "bc":
        trained = baselines.train(setting, seed, demos=demos, progress=False)
        nets = [bc.of_demonstrator(trained.net, k) for k in range(len(what.demonstrators))]
        return _returns(setting, what, nets, seed), 0, trained.wall_s
    nets, steps, seconds = [], 0, 0.0
    for k, who in enumerate(what.demonstrators):
        changes: dict[str, Any] = {"task": who} | ({"agent.demonstrator": k} if hasattr(setting.agent, "demonstrator") else {})
        trained = baselines.train(models.changed(setting, changes), seed, demos=demos, progress=False)
        nets, steps, seconds = [*nets, trained.net], steps + trained.env_steps, seconds + trained.wall_s
    return _returns(setting, what, nets, seed), steps, seconds


def _returns(setting: baselines.Setting, what: Experiment, nets: list[Any], seed: int) -> dict[str, float]:
    key = judging_key(seed)
    return {
        who: float(baselines.judged(setting, net, models.task(who), key, JUDGED).mean())
        for who, net in zip(what.demonstrators, nets, strict=True)
    }


def judging_key(seed: int) -> Array:
    """Of the boards on which everybody is judged: the same for all methods of a seed."""
    return jax.random.fold_in(jax.random.key(seed), 3)


def on_inferred(setting: Inferred, seed: int) -> tuple[dict[str, dict[str, float]], int, float]:
    """A DQN on each inferred reward, and ITD's own policies."""
    itd = experiment.train(setting.model, seed, progress=False)
    returns, own = {}, {}
    steps, seconds = itd.env_steps, itd.wall_s
    for k, weights in enumerate(setting.model.demonstrators):
        who = coingrid.task_name(weights)
        task = models.changed(setting.dqn, {"task": who, "demonstrator": k})
        trained = baselines.train(task, seed, model=itd.model, progress=False)
        returns[who] = float(baselines.judged(task, trained.net, weights, judging_key(seed), JUDGED).mean())
        own[who] = float(np.mean(_own_returns(setting.model.world, itd.model, jnp.asarray(weights), k, judging_key(seed))))
        steps, seconds = steps + trained.env_steps, seconds + trained.wall_s
    return {"itd": returns, "itd-policy": own}, steps, seconds


@functools.partial(jax.jit, static_argnames="world")
def _own_returns(world: coingrid.CoinGridConfig, model: Model, weights: Array, whose: Array, key: Array) -> Array:
    def policy(obs: Array, act_key: Array) -> Array:
        del act_key
        return jnp.argmax(model_functions.imitate(model, obs, jnp.full(obs.shape[0], whose)), axis=-1)

    return rollout_returns(coingrid.make(world, weights), policy, key, JUDGED, world.max_steps)["returns"]


# --- Who learns a task fastest -------------------------------------------------------------------------------------------


def curve(variant: Variant, setting: Any, seed: int) -> tuple[list[tuple[Figure, float, Any]], int, float]:
    """The learning curve of one training, and the figures that sum it up."""
    task = variant.task or "R+G"
    if isinstance(setting, Online):
        steps, returns, env_steps, seconds = learned_online(setting, seed)
    elif isinstance(setting, traffic.Setting):
        driven = traffic.train(setting, seed, progress=False)
        steps, returns = curve_of(driven.rows)
        env_steps, seconds = driven.env_steps, driven.wall_s
    else:
        trained = baselines.train(setting, seed, progress=False)
        steps, returns = curve_of(trained.rows)
        env_steps, seconds = trained.env_steps, trained.wall_s
        if not env_steps:  # BC learns from no steps: what it became holds from the start
            steps, returns = [0, setting.steps], [returns[-1]] * 2
    extra = {"curve": {"env_steps": steps, "normalised_return": [round(x, 4) for x in returns]}}
    figures = [
        (Figure("auc", task), area(steps, returns), extra),
        (Figure("final_return", task), float(np.mean(returns[-max(len(returns) // 10, 1) :])), None),
        (Figure("steps_to_90", task), float(stats.steps_to(steps, returns, paper.SOLVED)), None),
    ]
    return figures, env_steps, seconds


def learned_online(online: Online, seed: int) -> tuple[list[int], list[float], int, float]:
    """PsiPhi-learning's curve."""
    setting = online.setting
    assert setting.ego_task is not None
    weights = setting.ego_task
    env = coingrid.make(setting.world, weights)
    agent = experiment.make_agent(setting, env.spec)
    demos = experiment.demonstrations(setting, seed).demos

    def evaluate(state: Any, key: Array) -> dict[str, Array]:
        got = rollout_returns(env, functools.partial(agent.policy, state), key, online.evaluate_episodes, setting.world.max_steps)
        return {"normalised_return": jnp.mean(coingrid.normalise(setting.world, weights, got["returns"]))}

    loop = scan.LoopConfig(
        iterations=_iterations(online),
        chunk=online.evaluate_every // setting.num_envs,
        num_envs=setting.num_envs,
        updates_per_rollout=online.updates_per_rollout,
        prefill_steps=setting.prefill_steps,
        study=online.study,
        seed=seed,
    )
    result = scan.run(env, agent, demos, loop, evaluate=evaluate, progress=False)
    return *curve_of(result.rows), loop.env_steps(loop.iterations), result.rows[-1]["wall_s"]


def curve_of(rows: list[dict[str, Any]]) -> tuple[list[int], list[float]]:
    """Steps and normalised returns; of several evaluations after the same number of steps, the last."""
    found = {row["env_steps"]: row["eval/normalised_return"] for row in rows if "eval/normalised_return" in row}
    return list(found), list(found.values())


def area(steps: list[int], returns: list[float]) -> float:
    """The mean return over the steps, straight lines between evaluations; before the first one it is what that one found."""
    if len(steps) == 1:
        return float(returns[0])
    x, y = np.asarray([0, *steps], float), np.asarray([returns[0], *returns], float)
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2) / x[-1])


# --- Who predicts others best --------------------------------------------------------------------------------------------


def predict(method: Method, setting: imitation.Setting, seed: int) -> Done:
    """The accuracies of one training, and the figures that sum them up."""
    started = time.monotonic()
    found = imitation.run(setting, seed)
    extra = {"curve": {"updates": found.updates, "accuracy": [round(x, 4) for x in found.held_out]}}
    figures = [
        (Figure("accuracy", ALL), found.held_out[-1], extra),
        (Figure("best_accuracy", ALL), max(found.held_out), None),
        (Figure("shown_accuracy", ALL), found.shown[-1], None),
    ]
    return Done({method.name: figures}, found.env_steps, time.monotonic() - started)


# --- Who adapts ----------------------------------------------------------------------------------------------------------


def adapt(setting: Adapted, seed: int) -> tuple[list[tuple[Figure, float, Any]], int, float]:
    """SQILv2 in table 2: imitate everybody without rewards, then go on in each task with its reward, a model per task."""
    demos = baselines.demonstrations(setting.before, seed)
    trained = baselines.train(setting.before, seed, demos=demos, progress=False)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 4), len(paper.TASKS))
    figures = []
    for task, key in zip(paper.TASKS, keys, strict=True):
        weights = jnp.asarray(models.task(task))
        got = np.asarray(_adapted(setting, trained.net, demos, weights, key)).mean(axis=0)
        figures += [(Figure("normalised_return", task, shots), float(x), None) for shots, x in zip((0, FEW, MANY), got, strict=True)]
    return figures, trained.env_steps, trained.wall_s


@functools.partial(jax.jit, static_argnames="setting")
def _adapted(setting: Adapted, net: Any, demos: Demos, weights: Array, key: Array) -> Array:
    """Normalised returns ``[repetitions, 3]`` before, after 1 and after 100 episodes' worth of steps, each over fresh episodes."""
    world, config = setting.before.world, setting.inside
    env = coingrid.make(world, weights)
    agent = sqil.make(config, env.spec, 0, Pace(num_envs=1))  # its rate is constant: no schedule asks how long this is

    def judge(state: dqn.State, judge_key: Array) -> Array:
        got = rollout_returns(env, functools.partial(agent.policy, state), judge_key, JUDGED // 4, world.max_steps)
        return jnp.mean(coingrid.normalise(world, weights, got["returns"]))

    def one(repetition_key: Array) -> Array:
        init_key, reset_key, first_key, rest_key, judge_key = jax.random.split(repetition_key, 5)
        state = agent.init(init_key, demos)._replace(net=net, target=net)
        world_state, obs = jax.vmap(env.reset)(reset_key[None])

        def step(carry: tuple[Any, Any, Array], step_key: Array) -> tuple[tuple[Any, Any, Array], None]:
            state, world_state, obs = carry
            collect_key, update_key = jax.random.split(step_key)
            world_state, obs, rollout = scan.collect(env, functools.partial(agent.act, state), world_state, obs, collect_key, 1)
            state = agent.observe(state, rollout)
            state, _ = jax.lax.scan(agent.update, state, jax.random.split(update_key, setting.updates_per_step))
            return (state, world_state, obs), None

        start = (state, world_state, obs)
        after_one, _ = jax.lax.scan(step, start, jax.random.split(first_key, FEW * world.max_steps))
        after_all, _ = jax.lax.scan(step, after_one, jax.random.split(rest_key, (MANY - FEW) * world.max_steps))
        judge_keys = jax.random.split(judge_key, 3)
        return jnp.stack([judge(s[0], k) for s, k in zip((start, after_one, after_all), judge_keys, strict=True)])

    return jax.lax.map(one, jax.random.split(key, setting.repetitions))
