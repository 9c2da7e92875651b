"""Optax behind the two calls an agent makes, and the two ways a target network follows."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array

Tree = TypeVar("Tree")


def adam(learning_rate: float, *, clip: float = 0.0, cosine_steps: int = 0, final_fraction: float = 0.02) -> optax.GradientTransformation:
    """Adam; a global-norm clip if `clip` > 0; the rate falls along a cosine to `final_fraction` if `cosine_steps` > 0."""
    rate = optax.cosine_decay_schedule(learning_rate, cosine_steps, final_fraction) if cosine_steps else learning_rate
    clipping = optax.clip_by_global_norm(clip) if clip else optax.identity()
    return optax.chain(clipping, optax.adam(rate))


def start(optimiser: optax.GradientTransformation, parameters: Any) -> Any:
    """The optimiser's state before the first step."""
    return optimiser.init(parameters)


def step(optimiser: optax.GradientTransformation, gradients: Tree, state: Any, parameters: Tree) -> tuple[Tree, Any]:
    """One optimiser step: new parameters, new optimiser state."""
    updates, new_state = optimiser.update(gradients, state, parameters)  # pyright: ignore[reportArgumentType]
    return optax.apply_updates(parameters, updates), new_state  # pyright: ignore[reportReturnType, reportArgumentType]


def follow(target: Tree, parameters: Tree, rate: float) -> Tree:
    """An exponential moving average: the target goes `rate` of the way."""
    return jax.tree.map(lambda t, p: t + rate * (p - t), target, parameters)


def refresh(target: Tree, parameters: Tree, count: Array, period: int) -> Tree:
    """A periodic copy: the target becomes the parameters whenever `count` is a multiple of `period`."""
    return jax.tree.map(lambda t, p: jnp.where(count % period == 0, p, t), target, parameters)
