"""One function per equation, on one transition; callers vmap. Each takes what it compares and returns the error (or the loss).

The paper writes the errors' norm as ||.||; here it is read, once, in `squared`, as the squared Euclidean norm.
What gets no gradient is decided by the caller, who passes the target network's values for it.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int


def squared(error: Float[Array, "*d"]) -> Float[Array, ""]:
    """The norm of every temporal-difference loss: the sum of squares of the error."""
    return jnp.sum(jnp.square(error))


def bc_q(psi: Float[Array, "A d"], w: Float[Array, " d"], action: Int[Array, ""], beta: float = 1.0) -> Float[Array, ""]:
    """Negative log-likelihood of a demonstrated action under softmax(beta psi.w): eq. bcq-loss, where beta is 1."""
    return -jax.nn.log_softmax(beta * psi @ w)[action]


def l1(w: Float[Array, " d"]) -> Float[Array, ""]:
    """The sparsity prior on preferences."""
    return jnp.sum(jnp.abs(w))


def itd(psi: Float[Array, " d"], phi: Float[Array, " d"], next_psi: Float[Array, " d"], discount: Float[Array, ""]) -> Float[Array, " d"]:
    """Inverse TD error, eq. itd-loss: what the cumulants must add for the successor features to be consistent.

    The next successor features are held fixed by the caller passing the target's.
    """
    return psi - phi - discount * next_psi


def reward(phi: Float[Array, " d"], w: Float[Array, " d"], r: Float[Array, ""]) -> Float[Array, ""]:
    """Error of the ego reward's linear model, eq. r-loss."""
    return phi @ w - r


def q(
    psi: Float[Array, " d"],
    w: Float[Array, " d"],
    n_step_reward: Float[Array, ""],
    discount: Float[Array, ""],
    next_value: Float[Array, ""],
) -> Float[Array, ""]:
    """Bellman error of the ego's value psi.w, eq. q-loss; `next_value` is the target's max over actions, `discount` gamma^n."""
    return psi @ w - n_step_reward - discount * next_value


def td_psi(
    psi: Float[Array, " d"], phi: Float[Array, " d"], next_psi: Float[Array, " d"], discount: Float[Array, ""]
) -> Float[Array, " d"]:
    """TD error of the ego's successor features, eq. psi-loss: `itd` the other way round, with phi held fixed by the caller."""
    return itd(psi, phi, next_psi, discount)


def cross_policy(
    psi: Float[Array, " d"],
    phi: Float[Array, " d"],
    next_psi: Float[Array, "A d"],
    next_policy: Float[Array, " A"],
    discount: Float[Array, ""],
) -> Float[Array, " d"]:
    """Expected-SARSA error of one policy's successor features on *anybody's* transition. Not in the paper.

    The dynamics are shared, so a step of the ego, or of another demonstrator, evaluates every policy; no reward is needed.
    """
    return itd(psi, phi, next_policy @ next_psi, discount)


def sparse(inferred_reward: Float[Array, ""], scale: float) -> Float[Array, ""]:
    """Picks the sparsest among rewards that differ by shaping only: log(1 + scale |phi.w|). Not in the paper."""
    return jnp.log1p(scale * jnp.abs(inferred_reward))


def terminal_anchor(psi: Float[Array, "A d"], w: Float[Array, " d"]) -> Float[Array, " A"]:
    """Value left to a demonstrator at the true end of its demonstration: should be zero for every action. Not in the paper."""
    return psi @ w
