"""Kinds that switch inside an episode: a hidden Markov chain over kinds, summed over forward and backward.

An episode begins with a kind that is drawn. At each later step the kind stays, with one probability for all, or is drawn anew, and may then
be the same again. So a chain that always stays is a mixture, and a step costs as much as there are kinds, not their square.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float


class Smoothed(NamedTuple):
    """What is known of the kinds after all steps of an episode were seen."""

    share: Float[Array, "N K"]
    """How likely each step is of each kind."""
    anew: Float[Array, "N K"]
    """How likely the kind was drawn anew there and was this one."""
    likely: Float[Array, " N"]
    """The logarithm of how likely each step is, given those before it in its episode."""


def smoothed(likely: Float[Array, "N K"], first: Bool[Array, " N"], drawn: Float[Array, " K"], stay: Float[Array, ""]) -> Smoothed:
    """Of log-likelihoods by kind, episode after episode; `first` are the first steps of episodes, `drawn` how often each kind is drawn."""
    most = jnp.max(likely, axis=1)
    row = jnp.exp(likely - most[:, None])

    def forward(before: Array, now: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array, Array]]:
        here, begins = now
        new = jnp.where(begins, 1.0, 1 - stay) * drawn
        expected = new + jnp.where(begins, 0.0, stay) * before
        total = jnp.sum(expected * here)
        known = expected * here / total
        return known, (known, new / jnp.maximum(expected, 1e-30), jnp.log(total))

    def backward(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        here, begins = now
        ahead = here * later
        before = stay * ahead + (1 - stay) * jnp.dot(drawn, ahead)
        return jnp.where(begins, 1.0, before / jnp.sum(before)), later

    _, (known, new, total) = jax.lax.scan(forward, drawn, (row, first))
    _, later = jax.lax.scan(backward, jnp.ones_like(drawn), (row, first), reverse=True)
    share = known * later / jnp.sum(known * later, axis=1, keepdims=True)
    return Smoothed(share, share * new, total + most)


def refitted(found: Smoothed, first: Bool[Array, " N"]) -> tuple[Float[Array, " K"], Float[Array, ""]]:
    """How often each kind is drawn, and how likely a kind stays, that make these chains likeliest: the M step."""
    count = jnp.sum(found.anew, axis=0)
    later = jnp.where(first, 0.0, jnp.sum(found.anew, axis=1))
    return count / jnp.sum(count), 1 - jnp.sum(later) / jnp.maximum(jnp.sum(~first), 1)
