"""Few-shot transfer: meet a new task, infer its preferences from the rewards of k episodes, and act on it. No gradient is taken.

- *0-shot* is the return of the first episode itself; the preferences are inferred inside it, after every step.
- *k-shot* is the return of a fresh episode, on another draw of the world, after k episodes in the task; preferences are then fixed.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from psiphi import configs, tasks
from psiphi import model as models
from psiphi.configs import Weight
from psiphi.loops.gym import Worlds, features_of
from psiphi.model import Model
from psiphi.types import Env


@dataclass(frozen=True)
class FewShotConfig:
    """How a new task is inferred."""

    inference: Literal["bayes", "ridge", "imagined", "least-squares"] = "bayes"
    """Extension: Bayesian regression in the span of the demonstrators' preferences and the ego's own, the same in all directions of the
    cumulants, where those are given, the same from what the imagined preferences have in common, or the paper's least squares."""
    kappa: Weight = 2.0
    """Extension: optimism of the first episode, in standard deviations (not of least squares, which has none); 0: greedy."""
    temperature: Weight = 0.08
    """Extension: softness of the GPI policy in units of reward; 0: greedy (paper)."""
    ridge: Weight = 1e-3
    """Ridge of the least squares, which is otherwise undetermined before the first rewards."""

    def __post_init__(self):
        configs.check(self)


class Shots(NamedTuple):
    """What few-shot transfer gave in each of N repetitions of one task."""

    first: Float[Array, " N"]
    """Undiscounted return of the first episode."""
    after: Float[Array, " N"]
    """Undiscounted return of an episode after the last of k."""
    w: Float[Array, "N d"]
    """The preferences inferred."""
    features: tuple[Array, Array] | None = None
    """What the environments counted, ``[N, f]``, in the first and in the last of these episodes; None where they count nothing."""


def infer(config: FewShotConfig, model: Model, stats: tasks.Statistics) -> tasks.Posterior:
    """What the experience so far says of each repetition's task."""
    if config.inference == "bayes":
        return jax.vmap(tasks.posterior, (0, None))(stats, models.span(model))
    if config.inference == "ridge":
        return jax.vmap(tasks.ridge_posterior)(stats)
    if config.inference == "imagined":
        return jax.vmap(tasks.informed_posterior, (0, None))(stats, model.w[model.units.shape[0] :])

    def one(s: tasks.Statistics) -> tasks.Posterior:
        w = jnp.where(s.reward_square > 0, tasks.solve(s, config.ridge), jnp.sum(model.prior.basis, axis=0))
        return tasks.Posterior(w, jnp.zeros((w.size, w.size)))

    return jax.vmap(one)(stats)


def episode(
    env: Env,
    model: Model,
    config: FewShotConfig,
    stats: tasks.Statistics,
    key: Array,
    *,
    max_steps: int,
    learn_inside: bool,
    kappa: float,
) -> tuple[Array, tasks.Statistics]:
    """One episode in each of N worlds: its returns, and what is known afterwards."""
    reset_key, steps_key = jax.random.split(key)
    repetitions = stats.count.shape[0]
    before = infer(config, model, stats)

    def step(carry: tuple[Any, ...], step_key: Array) -> tuple[tuple[Any, ...], None]:
        state, obs, going, total, stats = carry
        belief = infer(config, model, stats) if learn_inside else before
        act_key, world_key = jax.random.split(step_key)
        action = models.act_on_belief(model, obs, belief, act_key, kappa=kappa, temperature=config.temperature)
        state, now = jax.vmap(env.step)(state, action, jax.random.split(world_key, repetitions))
        features = models.phi(model, obs, action, now.obs, now.discount)
        stats = jax.vmap(tasks.observe)(stats, features, now.reward, going)
        return (state, now.obs, going * (1.0 - now.last), total + going * now.reward, stats), None

    state, obs = jax.vmap(env.reset)(jax.random.split(reset_key, repetitions))
    start = (state, obs, jnp.ones(repetitions), jnp.zeros(repetitions), stats)
    (_, _, _, total, stats), _ = jax.lax.scan(step, start, jax.random.split(steps_key, max_steps))
    return total, stats


def few_shot(env: Env, model: Model, config: FewShotConfig, key: Array, *, shots: int, repetitions: int, max_steps: int) -> Shots:
    """Adapt to one task N times over: the first episode, `shots` - 1 more, and one in which it is judged."""
    first_key, more_key, last_key = jax.random.split(key, 3)
    cumulants = model.w.shape[1]
    stats = jax.vmap(lambda _: tasks.no_experience(cumulants))(jnp.arange(repetitions))
    kappa = 0.0 if config.inference == "least-squares" else config.kappa
    first, stats = episode(env, model, config, stats, first_key, max_steps=max_steps, learn_inside=True, kappa=kappa)

    def another(stats: tasks.Statistics, episode_key: Array) -> tuple[tasks.Statistics, None]:
        return episode(env, model, config, stats, episode_key, max_steps=max_steps, learn_inside=False, kappa=0.0)[1], None

    stats, _ = jax.lax.scan(another, stats, jax.random.split(more_key, shots - 1))
    after, _ = episode(env, model, config, stats, last_key, max_steps=max_steps, learn_inside=False, kappa=0.0)
    return Shots(first, after, infer(config, model, stats).mean)


# --- The same in Gymnasium environments ----------------------------------------------------------------------------------


def few_shot_in(worlds: Worlds, model: Model, config: FewShotConfig, key: Array, *, shots: int, max_steps: int, seed: int) -> Shots:
    """`few_shot` with a repetition in each of some Gymnasium environments."""
    stats = jax.vmap(lambda _: tasks.no_experience(model.w.shape[1]))(jnp.arange(worlds.num_envs))
    keys = jax.random.split(key, shots + 1)
    returns, counts = [], []
    for i in range(shots + 1):
        inside = i == 0
        kappa = config.kappa if inside and config.inference != "least-squares" else 0.0
        worlds.reset(seed + i)
        total, features, after = _episode_in(worlds, model, config, stats, keys[i], max_steps=max_steps, learn_inside=inside, kappa=kappa)
        stats = after if i < shots else stats  # in the last one it is judged, not taught
        returns.append(total)
        counts.append(features)
    met = None if counts[0] is None else (counts[0], counts[-1])
    return Shots(returns[0], returns[-1], infer(config, model, stats).mean, met)


def _episode_in(
    worlds: Worlds,
    model: Model,
    config: FewShotConfig,
    stats: tasks.Statistics,
    key: Array,
    *,
    max_steps: int,
    learn_inside: bool,
    kappa: float,
) -> tuple[Array, Array | None, tasks.Statistics]:
    """One episode in each environment, which are at the beginning of one; what comes after its end does not count."""
    believe = jax.jit(lambda stats: infer(config, model, stats))
    act = jax.jit(lambda obs, belief, k: models.act_on_belief(model, obs, belief, k, kappa=kappa, temperature=config.temperature))

    @jax.jit
    def learn(stats: tasks.Statistics, obs: Array, action: Array, now: Any, counts: Array) -> tasks.Statistics:
        features = models.phi(model, obs, action, now.next_obs, now.discount)
        return jax.vmap(tasks.observe)(stats, features, now.reward, counts)

    going, total, belief = np.ones(worlds.num_envs, np.float32), np.zeros(worlds.num_envs), believe(stats)
    met: np.ndarray | None = None
    for t in range(max_steps):
        obs = jnp.asarray(worlds.obs)
        action = act(obs, belief, jax.random.fold_in(key, t))
        step = worlds.step(np.asarray(action, np.int32))
        counts = going * step.real
        stats = learn(stats, obs, action, jax.tree.map(jnp.asarray, step.transition), jnp.asarray(counts))
        belief = believe(stats) if learn_inside else belief
        total += counts * np.asarray(step.transition.reward)
        seen = features_of(step)
        if seen is not None:
            met = counts[:, None] * seen + (0.0 if met is None else met)
        going = going * (1.0 - counts * np.asarray(step.transition.last, np.float32))
        if not going.any():
            break
    return jnp.asarray(total), None if met is None else jnp.asarray(met), stats
