"""What a trained network can be asked: rewards, imitation, and acting on any task by GPI."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from psiphi import gpi, tasks
from psiphi.nets import PsiPhiNet
from psiphi.types import Demos


class Model(NamedTuple):
    """A network, the preferences in use, and how large one unit of reward is to each demonstrator."""

    net: PsiPhiNet
    w: Float[Array, "heads d"]
    """Preferences of the heads, the demonstrators' first."""
    units: Float[Array, " K"]
    """Size of one unit of the inferred reward phi.w_k, so that w_k / units[k] speaks in rewards."""

    @property
    def prior(self) -> tasks.Prior:
        """Before any reward: the task is some mixture of what the demonstrators want."""
        return tasks.Prior(tasks.in_reward_units(self.w[: self.units.shape[0]], self.units))


def phi(model: Model, obs: Array, action: Int[Array, " B"]) -> Float[Array, "B d"]:
    """Cumulants of the actions taken."""
    return jnp.take_along_axis(model.net.phi(obs), action[:, None, None], axis=1)[:, 0]


def psi(model: Model, obs: Array, w: Float[Array, "B d"]) -> Float[Array, "B heads ensemble A d"]:
    """Successor features of every known policy and action; the last is the universal head's for the task w, where there is one."""
    features = model.net.features(obs)
    known = model.net.psi(features)
    if model.net.universal is None:
        return known
    mixture = w @ jnp.linalg.pinv(model.prior.basis)
    mixture = mixture / (jnp.linalg.norm(mixture, axis=1, keepdims=True) + 1e-8)
    return jnp.concatenate([known, model.net.universal_psi(features, mixture)[:, None]], axis=1)


def rewards(model: Model, obs: Array, action: Int[Array, " B"]) -> Float[Array, "B K"]:
    """What each demonstrator is inferred to be paid for this step, in units of reward."""
    return phi(model, obs, action) @ model.prior.basis.T


def imitate(model: Model, obs: Array, whose: Int[Array, " B"]) -> Float[Array, "B A"]:
    """Action values of a demonstrator on its own task, averaged over the ensemble: its policy is their softmax, its choice their argmax."""
    agents = model.units.shape[0]
    values = jnp.einsum("bkead,kd->bkea", model.net.psi(model.net.features(obs))[:, :agents], model.w[:agents])
    return jnp.mean(values, axis=2)[jnp.arange(obs.shape[0]), whose]


def act(model: Model, obs: Array, w: Float[Array, "B d"]) -> Int[Array, " B"]:
    """The GPI action for the task w."""
    return jax.vmap(gpi.action)(psi(model, obs, w), w)


def act_optimistically(model: Model, obs: Array, belief: tasks.Posterior, kappa: float) -> Int[Array, " B"]:
    """The GPI action under an upper confidence bound on the task."""

    def one(psi_s: Array, belief_s: tasks.Posterior) -> Array:
        return jnp.argmax(gpi.values(psi_s, lambda p: tasks.upper_confidence(p, belief_s, kappa)))

    return jax.vmap(one)(psi(model, obs, belief.mean), belief)


def measure_units(net: PsiPhiNet, w: Float[Array, "K d"], demos: Demos, limit: int = 4096) -> Float[Array, " K"]:
    """One unit of each demonstrator's inferred reward, from its own first `limit` steps."""

    def one(obs: Array, action: Array, count: Array, w_k: Array) -> Array:
        taken = jnp.take_along_axis(net.phi(obs), action[:, None, None], axis=1)[:, 0]
        return tasks.reward_unit(taken @ w_k, jnp.arange(action.shape[0]) < count)

    return jax.vmap(one)(demos.steps.obs[:, :limit], demos.steps.action[:, :limit], demos.count, w)
