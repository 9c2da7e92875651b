"""Optax behind the two calls an agent makes, schedules whose length is data, and the two ways a target network follows."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array

from psiphi import configs

Tree = TypeVar("Tree")

MOST_STEPS = 2**31 - 1
"""The longest schedule that an int32 can count."""


class Schedule(NamedTuple):
    """Where a schedule is. Its length is an array, not a constant of the program, so one compiled update serves runs of all lengths."""

    count: Array
    """Gradient steps so far."""
    length: Array
    """Gradient steps after which the rate no longer falls."""


def adam(
    learning_rate: float | Array,
    *,
    clip: float | Array = 0.0,
    eps: float = 1e-8,
    cosine_steps: int = 0,
    final_fraction: float = 0.02,
    linear_steps: int = 0,
) -> optax.GradientTransformation:
    """Adam; a global-norm clip if `clip` > 0; the rate falls along a cosine to `final_fraction` if `cosine_steps` > 0, or along a line to 0
    if `linear_steps` > 0."""
    clipping = optax.clip_by_global_norm(clip) if configs.on(clip) else optax.identity()
    if cosine_steps:
        falling = scheduled(lambda at: learning_rate * cosine(at, final_fraction), cosine_steps)
    elif linear_steps:
        falling = scheduled(lambda at: learning_rate * linear(at), linear_steps)
    else:
        falling = optax.scale_by_learning_rate(learning_rate)
    return optax.chain(clipping, optax.chain(optax.scale_by_adam(eps=eps), falling))


def cosine(at: Schedule, final_fraction: float) -> Array:
    """The share of the rate that is left: `optax.cosine_decay_schedule`.

    Where the length is a constant, XLA folds pi / length into one number before it multiplies. This is written in the same order, so that
    it rounds in the same way; so is `linear`.
    """
    angle = jnp.minimum(at.count, at.length) * (jnp.float32(jnp.pi) * (1 / at.length.astype(jnp.float32)))
    return (1 - final_fraction) * (0.5 * (1 + jnp.cos(angle))) + final_fraction


def linear(at: Schedule) -> Array:
    """The same along a line to 0: `optax.linear_schedule`."""
    return 1 - jnp.minimum(at.count, at.length) * (1 / at.length.astype(jnp.float32))


def progress(count: Array, length: Array) -> Array:
    """How much of `length`, a float, is over, from 0 to 1."""
    return jnp.clip(count * (1 / length), 0, 1)


def scheduled(rate: Callable[[Schedule], Array], length: int) -> optax.GradientTransformation:
    """Steps down the gradient whose size is `rate`, which is told how far the schedule is."""

    def init(parameters: Any) -> Schedule:
        del parameters
        return Schedule(jnp.zeros((), jnp.int32), jnp.asarray(min(length, MOST_STEPS), jnp.int32))

    def update(updates: Any, state: Schedule, parameters: Any = None) -> tuple[Any, Schedule]:
        del parameters
        size = -rate(state)
        stepped = jax.tree.map(lambda g: jnp.asarray(size, g.dtype) * g, updates)
        return stepped, state._replace(count=optax.safe_increment(state.count))

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


def start(optimiser: optax.GradientTransformation, parameters: Any) -> Any:
    """The optimiser's state before the first step."""
    return optimiser.init(parameters)


def step(optimiser: optax.GradientTransformation, gradients: Tree, state: Any, parameters: Tree) -> tuple[Tree, Any]:
    """One optimiser step: new parameters, new optimiser state."""
    updates, new_state = optimiser.update(gradients, state, parameters)  # pyright: ignore[reportArgumentType]
    return optax.apply_updates(parameters, updates), new_state  # pyright: ignore[reportReturnType, reportArgumentType]


def follow(target: Tree, parameters: Tree, rate: float | Array) -> Tree:
    """An exponential moving average: the target goes `rate` of the way."""
    return jax.tree.map(lambda t, p: t + rate * (p - t), target, parameters)


def refresh(target: Tree, parameters: Tree, count: Array, period: int) -> Tree:
    """A periodic copy: the target becomes the parameters whenever `count` is a multiple of `period`."""
    return jax.tree.map(lambda t, p: jnp.where(count % period == 0, p, t), target, parameters)
