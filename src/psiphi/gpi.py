"""Generalised policy improvement: act by the best of all known policies' values on the present task.

Successor features come with axes ``[heads, ensemble, actions, d]``: one head per known policy, an ensemble for pessimism.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

Value = Callable[[Array], Array]
"""Maps successor features ``[..., d]`` to values ``[...]``: ``psi @ w``, or an optimistic version of it."""


def head_values(psi: Float[Array, "heads ensemble A d"], value: Value) -> Float[Array, "heads A"]:
    """What each known policy is worth, per action; pessimism is the min over the ensemble of the *value*, never of psi's parts."""
    return jnp.min(value(psi), axis=1)


def values(psi: Float[Array, "heads ensemble A d"], value: Value) -> Float[Array, " A"]:
    """The best value any known policy offers for each action."""
    return jnp.max(head_values(psi, value), axis=0)


def best(psi: Float[Array, "heads ensemble A d"], value: Value) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """The head and the action that are worth most."""
    found = head_values(psi, value)
    head, action = jnp.unravel_index(jnp.argmax(found), found.shape)
    return head, action


class Trust(NamedTuple):
    """How much GPI trusts demonstrators."""

    weight: float | Array
    """What a nat of their surprise costs, in units of reward."""
    beta: float | Array
    """The inverse temperature of their policies."""


def reluctance(
    psi: Float[Array, "heads ensemble A d"], preferences: Float[Array, "K d"], value: Value, trust: Trust
) -> Float[Array, "heads A"]:
    """What an action costs, 0 or less: the logarithm of how likely a demonstrator, one of the first K heads, takes it, weighed.

    Its successor features were hardly ever seen to be right for what it would not do, and the best of many wrong values is high; of one who
    does anything at all every action costs much. A further head pays what the demonstrator would pay who is worth most there.
    """
    own = jnp.mean(jnp.einsum("kead,kd->kea", psi[: preferences.shape[0]], preferences), axis=1)
    return charged(psi, jax.nn.log_softmax(trust.beta * own), value, trust.weight)


def charged(
    psi: Float[Array, "heads ensemble A d"], likely: Float[Array, "K A"], value: Value, weight: float | Array
) -> Float[Array, "heads A"]:
    """The same where it is known how `likely` each demonstrator takes each action, as logarithms."""
    cost, theirs = weight * likely, psi[: likely.shape[0]]
    best = jnp.argmax(jnp.max(head_values(theirs, value) + cost, axis=-1))
    return jnp.concatenate([cost, jnp.broadcast_to(cost[best], (psi.shape[0] - theirs.shape[0], psi.shape[2]))])


def action(psi: Float[Array, "heads ensemble A d"], w: Float[Array, " d"]) -> Int[Array, ""]:
    """Eq. gpi-with-sf and pi-ego: argmax over actions of the max over policies of psi.w."""
    return jnp.argmax(values(psi, lambda p: p @ w))


def best_head(psi: Float[Array, "heads ensemble A d"], w: Float[Array, " d"]) -> Int[Array, ""]:
    """Which known policy the GPI action comes from."""
    return jnp.argmax(jnp.max(head_values(psi, lambda p: p @ w), axis=1))


def draw(values: Float[Array, "B A"], key: Array, temperature: float) -> Int[Array, " B"]:
    """An action from softmax(values / temperature), by Gumbel noise; the best one where the temperature is 0."""
    return jnp.argmax(values + temperature * jax.random.gumbel(key, values.shape), axis=-1)
