"""What a trained network can be asked: rewards, imitation, and acting on any task by GPI."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from psiphi import gpi, tasks
from psiphi.errors import UserError
from psiphi.nets import Committee, Net
from psiphi.types import Demonstration, Demos


class Model(NamedTuple):
    """A network, the preferences in use, and how large one unit of reward is to each demonstrator."""

    net: Net
    w: Float[Array, "heads d"]
    """Preferences of the heads, the demonstrators' first."""
    units: Float[Array, " K"]
    """Size of one unit of the inferred reward phi.w_k, so that w_k / units[k] speaks in rewards; always above 0."""
    trust: gpi.Trust | None = None
    """What GPI asks for actions that would surprise the demonstrators; None: nothing."""

    @property
    def prior(self) -> tasks.Prior:
        """Before any reward: the task is some mixture of what the demonstrators want."""
        return tasks.Prior(tasks.in_reward_units(self.w[: self.units.shape[0]], self.units))


def span(model: Model) -> tasks.Prior:
    """What a new task may be a mixture of: what the demonstrators want and, where one head more is the ego's, what the ego was paid for."""
    demonstrators = model.units.shape[0]
    own = model.w[demonstrators:] if model.w.shape[0] == demonstrators + 1 else model.w[:0]
    return tasks.Prior(jnp.concatenate([model.prior.basis, own]))


def phi(
    model: Model, obs: Array, action: Int[Array, " B"], next_obs: Array | None = None, discount: Float[Array, " B"] | None = None
) -> Float[Array, "B d"]:
    """Cumulants of steps. Only those learned of (s, a) can be told without where a step led."""
    if next_obs is None or discount is None:
        if needs_next(model):
            raise UserError("This model's cumulants are of whole steps: expected next_obs beside obs and action.")
        next_obs, discount = obs, jnp.ones(action.shape)
    return model.net.cumulants(obs, action, next_obs, discount)


def needs_next(model: Model) -> bool:
    """Whether cumulants depend on where a step leads."""
    return isinstance(model.net, Committee) or model.net.given is not None or model.net.of_next


def psi(model: Model, obs: Array) -> Float[Array, "B heads ensemble A d"]:
    """Successor features of every known policy and action."""
    return model.net.psi(model.net.features(obs))


def rewards(
    model: Model, obs: Array, action: Int[Array, " B"], next_obs: Array | None = None, discount: Float[Array, " B"] | None = None
) -> Float[Array, "B K"]:
    """What each demonstrator is inferred to be paid for this step, in units of reward."""
    return phi(model, obs, action, next_obs, discount) @ model.prior.basis.T


def values(model: Model, obs: Array) -> Float[Array, "B K A"]:
    """Action values of every demonstrator on its own task, averaged over the ensemble."""
    agents = model.units.shape[0]
    return jnp.mean(model.net.task_values(obs, model.w[:agents])[:, :agents], axis=2)


def imitate(model: Model, obs: Array, whose: Int[Array, " B"]) -> Float[Array, "B A"]:
    """Action values of a demonstrator on its own task, averaged over the ensemble: its policy is their softmax, its choice their argmax."""
    return values(model, obs)[jnp.arange(obs.shape[0]), whose]


def advantages(model: Model, obs: Array, action: Int[Array, " B"]) -> Float[Array, "B K"]:
    """How much less an action is worth to each demonstrator than its best: 0 for what it would do, below 0 for all else."""
    q = values(model, obs)
    return jnp.take_along_axis(q, action[:, None, None], axis=2)[..., 0] - jnp.max(q, axis=2)


def behaviour(
    model: Model, obs: Array, action: Int[Array, " B"], next_obs: Array, discount: Float[Array, " B"], gamma: tasks.Scalar
) -> Float[Array, "B K"]:
    """What each demonstrator does, as a reward: ``Q_k(s, a) - gamma V_k(s')``, nothing after an end.

    Its optimal policy is the imitation, under any dynamics: a planner on it is safe, and learns nothing that the imitation did not know.
    """
    q = jnp.take_along_axis(values(model, obs), action[:, None, None], axis=2)[..., 0]
    return q - gamma * discount[:, None] * jnp.max(values(model, next_obs), axis=2)


def policy_values(model: Model, psi: Float[Array, "heads ensemble A d"], value: gpi.Value) -> Float[Array, "heads A"]:
    """What each known policy is worth in a state, per action, less what GPI asks for actions that would surprise it."""
    found = gpi.head_values(psi, value)
    return found if model.trust is None else found + gpi.reluctance(psi, model.w[: model.units.shape[0]], value, model.trust)


def act(model: Model, obs: Array, w: Float[Array, "B d"], key: Array, *, temperature: float) -> Int[Array, " B"]:
    """The GPI action for the task w, soft where `temperature` > 0.

    Softness breaks the ties and the circles into which a greedy choice among approximate values falls; it is the demonstrators' own
    form of optimality.
    """
    values = jax.vmap(lambda psi_s, w_s: policy_values(model, psi_s, lambda p: p @ w_s))(psi(model, obs), w)
    return gpi.draw(jnp.max(values, axis=1), key, temperature)


def act_on_belief(model: Model, obs: Array, belief: tasks.Posterior, key: Array, *, kappa: float, temperature: float) -> Int[Array, " B"]:
    """The same for a task that is only believed, by an upper confidence bound of `kappa` standard deviations."""

    def one(psi_s: Array, belief_s: tasks.Posterior) -> Array:
        return policy_values(model, psi_s, lambda p: tasks.upper_confidence(p, belief_s, kappa))

    return gpi.draw(jnp.max(jax.vmap(one)(psi(model, obs), belief), axis=1), key, temperature)


def measure_units(net: Net, w: Float[Array, "K d"], demos: Demos, limit: int = 4096) -> Float[Array, " K"]:
    """One unit of each demonstrator's inferred reward, from its own first `limit` steps."""

    def one(steps: Demonstration, count: Array, w_k: Array) -> Array:
        inferred = net.cumulants(steps.obs, steps.action, steps.next_obs, steps.discount) @ w_k
        return tasks.reward_unit(inferred, jnp.arange(steps.action.shape[0]) < count)

    return jax.vmap(one)(jax.tree.map(lambda x: x[:, :limit], demos.steps), demos.count, w)


def mended(model: Model) -> Model:
    """A model out of a file. Before version 0.2 the unit of an agent that only has costs was negative, which turned its reward round."""
    return model._replace(units=jnp.abs(model.units))
