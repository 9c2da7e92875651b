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
    """Size of one unit of the inferred reward phi.w_k, so that w_k / units[k] speaks in rewards; always above 0."""

    @property
    def prior(self) -> tasks.Prior:
        """Before any reward: the task is some mixture of what the demonstrators want."""
        return tasks.Prior(tasks.in_reward_units(self.w[: self.units.shape[0]], self.units))


def phi(model: Model, obs: Array, action: Int[Array, " B"]) -> Float[Array, "B d"]:
    """Cumulants of the actions taken."""
    return jnp.take_along_axis(model.net.phi(obs), action[:, None, None], axis=1)[:, 0]


def psi(model: Model, obs: Array) -> Float[Array, "B heads ensemble A d"]:
    """Successor features of every known policy and action."""
    return model.net.psi(model.net.features(obs))


def rewards(model: Model, obs: Array, action: Int[Array, " B"]) -> Float[Array, "B K"]:
    """What each demonstrator is inferred to be paid for this step, in units of reward."""
    return phi(model, obs, action) @ model.prior.basis.T


def imitate(model: Model, obs: Array, whose: Int[Array, " B"]) -> Float[Array, "B A"]:
    """Action values of a demonstrator on its own task, averaged over the ensemble: its policy is their softmax, its choice their argmax."""
    agents = model.units.shape[0]
    values = jnp.einsum("bkead,kd->bkea", psi(model, obs)[:, :agents], model.w[:agents])
    return jnp.mean(values, axis=2)[jnp.arange(obs.shape[0]), whose]


def act(model: Model, obs: Array, w: Float[Array, "B d"], key: Array, *, temperature: float) -> Int[Array, " B"]:
    """The GPI action for the task w, soft where `temperature` > 0.

    Softness breaks the ties and the circles into which a greedy choice among approximate values falls; it is the demonstrators' own
    form of optimality.
    """
    return gpi.draw(jax.vmap(lambda psi_s, w_s: gpi.values(psi_s, lambda p: p @ w_s))(psi(model, obs), w), key, temperature)


def act_on_belief(model: Model, obs: Array, belief: tasks.Posterior, key: Array, *, kappa: float, temperature: float) -> Int[Array, " B"]:
    """The same for a task that is only believed, by an upper confidence bound of `kappa` standard deviations."""

    def one(psi_s: Array, belief_s: tasks.Posterior) -> Array:
        return gpi.values(psi_s, lambda p: tasks.upper_confidence(p, belief_s, kappa))

    return gpi.draw(jax.vmap(one)(psi(model, obs), belief), key, temperature)


def measure_units(net: PsiPhiNet, w: Float[Array, "K d"], demos: Demos, limit: int = 4096) -> Float[Array, " K"]:
    """One unit of each demonstrator's inferred reward, from its own first `limit` steps."""

    def one(obs: Array, action: Array, count: Array, w_k: Array) -> Array:
        taken = jnp.take_along_axis(net.phi(obs), action[:, None, None], axis=1)[:, 0]
        return tasks.reward_unit(taken @ w_k, jnp.arange(action.shape[0]) < count)

    return jax.vmap(one)(demos.steps.obs[:, :limit], demos.steps.action[:, :limit], demos.count, w)


def mended(model: Model) -> Model:
    """A model out of a file. Before version 0.2 the unit of an agent that only has costs was negative, which turned its reward round."""
    return model._replace(units=jnp.abs(model.units))
