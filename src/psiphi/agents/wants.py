"""ITD where the cumulants are given: what does each demonstrator want of what changes in a step?

Rewards are linear, ``r_k = w_k . f(s, a, s')``, so nothing is extrapolated; what is learned are preferences w_k, values Q_k of each
demonstrator's own task and, beside them, the successor features psi_k of f. Three things must fit: softmax(beta Q_k) imitates agent k but
for a share of uniform mistakes; Q_k is what follows r_k under agent k's policy, on *every* step of the logs, whoever made it; and w_k is
sparse. Not in the paper, whose phi is a network of (s, a): from logs alone that is right along logged behaviour and a guess elsewhere.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from psiphi import configs, losses
from psiphi.nets import PsiPhiNet, taken
from psiphi.types import Demonstration, Metrics, Transition

EVALUATED = 4
"""Successor features are evaluated on a quarter of the steps of an update: rewards do not wait for them, and they have as many updates."""

SURE = 0.05
"""The weight of imitation without lapses. To who lapses, an action that is very unlikely is a lapse and teaches nothing; values that ran
away would then stay away."""

USUAL_LAPSE = -2.2
"""Where the logits of the lapse rate are drawn to, a tenth, by a prior that a few hundred steps outweigh."""


def joint_loss(
    net: PsiPhiNet, target: PsiPhiNet, demo: Demonstration, cross: Transition, ramp: Array, config: Any
) -> tuple[Array, Metrics]:
    """The weighted sum of all terms, and each of them; `config` is an `ITDConfig`."""
    own = net.own_values(_folded(net.features, demo.obs))
    here, policy, next_q = net.features(cross.obs), *_policy(target, cross.next_obs, config.beta)
    phi = net.cumulants(cross.obs, cross.action, cross.next_obs, cross.discount)
    some, less, fewer, other = jax.tree.map(lambda x: x[: max(x.shape[0] // EVALUATED, 1)], (here, policy, phi, cross))
    terms = {
        "bc_q": (config.bc_weight, imitation(own, demo.action, net.lapse, config.beta)),
        "itd": (config.itd_weight, consistency(net, here, policy, next_q, phi, cross, config.gamma)),
        "cross_policy": (config.cross_policy, evaluation(net, target, some, less, fewer, other, config.gamma)),
        "sparsity": (config.sparsity, ramp * simplicity(net, config.sparsity_scale)),
        "lapse": (1e-3, jnp.zeros(()) if net.lapse is None else jnp.mean(jnp.square(net.lapse - USUAL_LAPSE))),
    }
    total = sum((weight * value for weight, value in terms.values() if configs.on(weight)), start=jnp.zeros(()))
    return total, {name: value for name, (_, value) in terms.items()} | diagnostics(net, own, demo)


def _folded(read: Any, obs: Array) -> Array:
    """A torso on observations ``[K, B, ...]``."""
    return read(obs.reshape(-1, *obs.shape[2:])).reshape(*obs.shape[:2], -1)


def _policy(target: PsiPhiNet, next_obs: Array, beta: float) -> tuple[Array, Array]:
    """``[X, K, E, A]``: what each demonstrator would do next, by the neighbour in the ensemble, and what that is worth.

    The smallest value of the ensemble is believed: with each member's own, or their mean, values of steps outside of the logs run away.
    """
    next_q = target.values(target.features(next_obs))
    least = jnp.broadcast_to(jnp.min(next_q, axis=2, keepdims=True), next_q.shape)
    return jax.nn.softmax(beta * jnp.roll(next_q, 1, axis=2)), least


def imitation(values: Float[Array, "K B E A"], action: Array, lapse: Array | None, beta: float) -> Array:
    """L_BC-Q with a lapse rate, averaged over demonstrators, steps and ensemble."""
    never_lapsing = -jnp.mean(taken(jax.nn.log_softmax(beta * values)[..., None], action[:, :, None]))
    if lapse is None:
        return never_lapsing
    share = jax.nn.sigmoid(lapse)
    per_member = jax.vmap(losses.lapsed_bc_q, (0, None, None, None))
    per_step = jax.vmap(per_member, (0, 0, None, None))
    return jnp.mean(jax.vmap(per_step, (0, 0, 0, None))(values, action, share, beta)) + SURE * never_lapsing


def consistency(net: PsiPhiNet, here: Array, policy: Array, next_q: Array, phi: Array, cross: Transition, gamma: float) -> Array:
    """Inverse TD in values: w_k.f is what makes Q_k consistent, on the steps of all agents, ends included."""
    q = taken(net.values(here)[..., None], cross.action[:, None, None])[..., 0]  # [X, K, E]
    following = jnp.sum(policy * next_q, axis=-1)
    paid = (phi @ net.w.T)[:, :, None]
    return jnp.mean(jnp.square(q - paid - gamma * cross.discount[:, None, None] * following))


def evaluation(net: PsiPhiNet, target: PsiPhiNet, here: Array, policy: Array, phi: Array, cross: Transition, gamma: float) -> Array:
    """TD of every policy's successor features of f. They read the features and do not shape them: rewards do not depend on them."""
    psi = taken(net.psi(jax.lax.stop_gradient(here)), cross.action[:, None, None])  # [X, K, E, d]
    next_psi = jnp.einsum("xkea,xkead->xked", policy, target.psi(target.features(cross.next_obs)))
    per_member = jax.vmap(losses.itd, (0, None, 0, None))
    error = jax.vmap(jax.vmap(per_member, (0, None, 0, None)))(psi, phi, jax.lax.stop_gradient(next_psi), gamma * cross.discount)
    return jnp.mean(jnp.square(error))


def simplicity(net: PsiPhiNet, scale: float) -> Array:
    """The sparse prior on preferences: a cumulant that is often far from 0 costs more; the constant is free, as its rate is 0."""
    assert net.given is not None
    rate = jax.lax.stop_gradient(net.given.rate)
    return jnp.mean(jnp.sum(jnp.log1p(scale * rate * jnp.abs(net.w)), axis=1)) / scale


def diagnostics(net: PsiPhiNet, values: Float[Array, "K B E A"], demo: Demonstration) -> Metrics:
    """As of learned cumulants: the share of actions predicted, the directions of the preferences, the reward's size beside the values'."""
    phi = jax.vmap(net.cumulants)(demo.obs, demo.action, demo.next_obs, demo.discount)
    reward = jnp.einsum("kbd,kd->kb", phi, net.w)
    spread = jnp.std(values.reshape(values.shape[0], -1), axis=1)
    alike = net.w @ net.w.T  # its eigenvalues are the powers of the directions; no need to find each of them
    return {
        "accuracy": jnp.mean(jnp.argmax(values, axis=-1) == demo.action[..., None]),
        "rank": jnp.square(jnp.trace(alike)) / (jnp.sum(jnp.square(alike)) + 1e-12),
        "signal": jnp.min(jnp.std(reward, axis=1) / (spread + 1e-8)),
    }
