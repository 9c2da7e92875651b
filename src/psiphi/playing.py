"""What a trained thing does in a world: as a policy to be judged, filmed or compared, whatever trained it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi import configs, gpi, worlds
from psiphi import lens as lenses
from psiphi import model as models
from psiphi.agents import ALGORITHMS, bc
from psiphi.api import files
from psiphi.api.answers import position
from psiphi.api.files import Loaded
from psiphi.demos import Demonstrations
from psiphi.errors import UserError
from psiphi.loops import gym
from psiphi.loops.evaluate import rollout_returns
from psiphi.loops.few_shot import FewShotConfig, Shots, few_shot, few_shot_in
from psiphi.training import EVERYBODY, check_fits, place_of
from psiphi.types import Env, EnvSpec
from psiphi.worlds import OWN, World

Act = Callable[[Array, Array], Array]
"""``act(obs[N], key) -> action[N]``, pure; actions are counted from 0."""


class Where(NamedTuple):
    """The world that something was trained in, or that it is to be asked in."""

    world: World
    config: Any
    task: str
    demonstrators: tuple[str, ...]


def spec_of(found: Loaded) -> EnvSpec:
    """What it reads and does."""
    if found.known is not None:
        return found.known.spec
    assert found.policies is not None
    return found.policies.spec


def where(found: Loaded, env: str | None = None, task: str | None = None) -> Where:
    """The world of a model, by its own file or by name; refuses a world that it cannot read."""
    run = found.run or {}
    if env is None and not run:
        raise UserError(
            "This model was not trained in a world: expected --env WORLD to ask it there, or --demos FILE to compare it with logs."
        )
    world = worlds.find(env) if env is not None else worlds.find(str(run.get("env")), trusted=False)
    same = env is None or world.name == run.get("env")
    config = world.config
    if same and world.config is not None:
        config = configs.from_json(type(world.config), run.get("world"), "The model's world")
    name = task if task is not None else str(run.get("task", OWN)) if same else OWN
    place = place_of(world.env(config, world.task(config, name or world.own)), 1)
    spec = spec_of(found)
    if (tuple(place.spec.obs_shape), place.spec.num_actions) != (tuple(spec.obs_shape), spec.num_actions):
        raise UserError(
            f"The model reads observations of shape {tuple(spec.obs_shape)} and knows {spec.num_actions} actions, "
            f"but {world.name} has {tuple(place.spec.obs_shape)} and {place.spec.num_actions}."
        )
    shown = tuple(str(agent) for agent in found.agents)
    return Where(world, config, world.task(config, name or world.own), shown)


# --- Policies ------------------------------------------------------------------------------------------------------------


def players(found: Loaded) -> dict[str, Act]:
    """All that a trained thing can do, by name: "ego" is its own policy, the others are the demonstrators' imitations."""
    result: dict[str, Act] = {}
    algorithm = ALGORITHMS[found.algorithm]
    if found.policies is not None:
        if algorithm.tells_apart:
            result |= {str(agent): partial(_by_network, found, k) for k, agent in enumerate(found.policies.agents)}
        else:
            result["ego"] = partial(_by_network, found, None)
    elif found.known is not None:
        model = found.known.model
        if found.known.has_ego or found.task is not None:
            w = jnp.asarray(model.w[-1] if found.task is None else found.task)
            result["ego"] = partial(_by_preferences, model, w, found.known.temperature)
        result |= {str(agent): partial(_by_imitation, model, k) for k, agent in enumerate(found.known.agents)}
    return result


def _by_network(found: Loaded, k: int | None, obs: Array, key: Array) -> Array:
    assert found.policies is not None
    glass = found.policies.lens
    seen = (
        obs
        if glass is None
        else lenses.look(jnp.asarray(obs), jnp.asarray(glass.mean), jnp.asarray(glass.scale), glass.layout, glass.standardise)
    )
    net = found.policies.net if k is None else bc.of_demonstrator(found.policies.net, k)
    return gpi.draw(net(seen), key, ALGORITHMS[found.algorithm].judged_at(found.config))


def _by_imitation(model: models.Model, k: int, obs: Array, key: Array) -> Array:
    del key
    return jnp.argmax(models.imitate(model, jnp.asarray(obs), jnp.full(obs.shape[0], k)), axis=-1)


def _by_preferences(model: models.Model, w: Array, temperature: float, obs: Array, key: Array) -> Array:
    return models.act(model, jnp.asarray(obs), jnp.broadcast_to(w, (obs.shape[0], w.shape[0])), key, temperature=temperature)


def player(found: Loaded, agent: str | None = None, w: np.ndarray | None = None) -> tuple[str, Act]:
    """One of them: a demonstrator by name, the ego, or whoever acts on preferences that are given."""
    if w is not None:
        if found.known is None:
            raise UserError(f"{found.algorithm} has no preferences to act on; expected a model of itd or psiphi.")
        d = found.known.model.w.shape[1]
        if np.shape(w) != (d,) or not np.isfinite(w).all():
            raise UserError(f"The preferences have shape {np.shape(w)}, expected {d} finite weights, one per cumulant.")
        return "these preferences", partial(_by_preferences, found.known.model, jnp.asarray(w, jnp.float32), found.known.temperature)
    there = players(found)
    if agent is None:
        name = "ego" if "ego" in there else next(iter(there), None)
        if name is None:
            raise UserError("This model has no policy to show.")
        return name, there[name]
    if agent not in there:
        raise UserError(f"There is no {agent!r} in this model; expected one of {', '.join(list(there)[:20])}.")
    return agent, there[agent]


# --- Judging -------------------------------------------------------------------------------------------------------------


def figures(place: Where, act: Act, seed: int, episodes: int, task: str | None = None) -> dict[str, float]:
    """What episodes of a policy come to on a task; the seed draws them."""
    task = place.task if task is None else task
    made, longest = place.world.env(place.config, task), place.world.longest(place.config)
    key = jax.random.fold_in(jax.random.key(seed), 3)
    if isinstance(made, Env):
        got = jax.jit(lambda k: rollout_returns(made, act, k, episodes, longest))(key)
    else:
        stage = place_of(made, min(8, episodes))
        assert stage.vector is not None
        hosts = gym.Worlds(stage.vector, first_action=stage.first_action)
        got = jax.tree.map(jnp.asarray, gym.rollout_returns(hosts, jax.jit(act), key, episodes, longest, seed))
        stage.vector.close()
    return {name: float(x) for name, x in place.world.figures(place.config, task, got).items()}


def judged(found: Loaded, place: Where, seed: int, episodes: int) -> dict[str, Any]:
    """Everybody in a model: the ego on its task, each imitation on what its demonstrator wants; and the truth, if that is known."""
    result: dict[str, Any] = {"algorithm": found.algorithm, "env": place.world.name, "seed": seed, "episodes": episodes, "policies": {}}
    for name, act in players(found).items():
        task = place.task if name in ("ego", EVERYBODY) else _wanted(place, name)
        result["policies"][name] = {"task": task, **figures(place, act, seed, episodes, task)}
    knows = found.known is not None and place.world.truth is not None and found.known.agents
    if knows and all(_is_task(place, name) for name in place.demonstrators):
        assert place.world.truth is not None and found.known is not None
        result["truth"] = place.world.truth(place.config, place.demonstrators, found.known.model, seed, episodes)
    return result


def _wanted(place: Where, name: str) -> str:
    if place.world.wants is None or not _is_task(place, name):
        return place.task
    return place.world.wants(place.config, name)


def _is_task(place: Where, name: str) -> bool:
    """Whether a demonstrator's name says what it wants there; agents out of a file need not."""
    try:
        return place.world.wants is not None and bool(place.world.wants(place.config, name))
    except UserError:
        return False


def compared(found: Loaded, demos: Demonstrations) -> dict[str, dict[str, float]]:
    """For each agent of some logs: likelihood, accuracy and calibration of its predicted actions; beside, how often it does its commonest.

    `nll` are nats per step; `calibration` is the expected calibration error of the likeliest action's probability, in ten bins.
    """
    demos = demos if found.known is None else demos.named_as(found.known.actions)
    check_fits(demos, spec_of(found))
    result: dict[str, dict[str, float]] = {}
    for k, agent in enumerate(demos.agents):
        mine = demos.agent_index == k
        if not mine.any():
            continue
        obs, action = demos.obs[mine], demos.action[mine]
        commonest = float(np.bincount(action).max() / len(action))
        chances = _chances(found, agent, obs)
        if chances is None:
            who = str(agent) if ALGORITHMS[found.algorithm].tells_apart else "ego"
            taken = np.asarray(jax.jit(players(found)[who])(jnp.asarray(obs), jax.random.key(0)))
            result[str(agent)] = {"steps": len(action), "accuracy": float(np.mean(taken == action)), "commonest": commonest}
            continue
        likeliest, sure = chances.argmax(axis=1), chances.max(axis=1)
        result[str(agent)] = {
            "steps": len(action),
            "accuracy": float(np.mean(likeliest == action)),
            "commonest": commonest,
            "nll": float(-np.mean(np.log(np.maximum(chances[np.arange(len(action)), action], 1e-12)))),
            "calibration": calibration_error(sure, likeliest == action),
        }
    return result


def calibration_error(sure: np.ndarray, right: np.ndarray, bins: int = 10) -> float:
    """How far, on average over steps, the probability of a prediction is from how often such predictions are right."""
    which = np.minimum((sure * bins).astype(int), bins - 1)
    gaps = [abs(sure[which == b].mean() - right[which == b].mean()) * (which == b).mean() for b in range(bins) if (which == b).any()]
    return float(sum(gaps))


def _chances(found: Loaded, agent: Any, obs: np.ndarray) -> np.ndarray | None:
    """``[B, A]``: how likely each action is; None where a policy's numbers are no probabilities."""
    if found.policies is None:
        from psiphi.api.answers import Policy

        assert found.known is not None
        k = position(found.known.agents, agent)
        lapse = found.known.lapse[k] if found.known.lapse else 0.0
        return Policy(found.known.model, found.known.spec, agent, k, found.known.beta, lapse).probabilities(obs)
    if not ALGORITHMS[found.algorithm].likelihoods:
        return None
    from psiphi.api.baselines import loaded

    whose = None if len(found.policies.agents) == 1 and agent not in found.policies.agents else agent
    logits = loaded(found).values(obs, whose)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


# --- A new task ----------------------------------------------------------------------------------------------------------


def few_shot_of(found: Loaded, inference: Literal["bayes", "ridge", "least-squares"] = "bayes") -> FewShotConfig:
    """How a model meets a new task: as softly as it acted while it learned, where it did."""
    if inference == "least-squares":
        return FewShotConfig(inference=inference, kappa=0.0, temperature=0.0)
    return FewShotConfig(inference=inference, temperature=getattr(found.config, "temperature", FewShotConfig().temperature))


def adapted(found: Loaded, place: Where, config: FewShotConfig, seed: int, *, shots: int, repetitions: int) -> Shots:
    """Meet a new task `repetitions` times over, each time from scratch: infer its preferences from the rewards of some episodes."""
    if found.known is None:
        raise UserError(f"{found.algorithm} has no preferences to infer; adapt needs a model of itd or psiphi.")
    env = place.world.env(place.config, place.task)
    longest, model = place.world.longest(place.config), found.known.model
    adapt_key = jax.random.split(jax.random.key(seed), 4)[0]
    if not isinstance(env, Env):
        stage = place_of(env, repetitions)
        assert stage.vector is not None
        hosts = gym.Worlds(stage.vector, first_action=stage.first_action)
        got = few_shot_in(hosts, model, config, adapt_key, shots=shots, max_steps=longest, seed=seed)
        stage.vector.close()
        return jax.tree.map(np.asarray, got)
    run = jax.jit(lambda key: few_shot(env, model, config, key, shots=shots, repetitions=repetitions, max_steps=longest))
    return jax.tree.map(np.asarray, run(adapt_key))


def read(path: Path) -> Loaded:
    return files.read(path)
