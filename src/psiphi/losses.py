"""One function per equation, on one transition; callers vmap. Each takes what it compares and returns the error (or the loss).

The paper writes the errors' norm as ||.||; here it is read, once, in `squared`, as the squared Euclidean norm.
What gets no gradient is decided by the caller, who passes the target network's values for it.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

AdversarialReward = Literal["-log(1-D)", "log D", "log D - log(1-D)"]
"""What a generator is paid, D being the probability that a step was demonstrated."""


def squared(error: Float[Array, "*d"]) -> Float[Array, ""]:
    """The norm of every temporal-difference loss: the sum of squares of the error."""
    return jnp.sum(jnp.square(error))


def bc_q(psi: Float[Array, "A d"], w: Float[Array, " d"], action: Int[Array, ""], beta: float = 1.0) -> Float[Array, ""]:
    """Negative log-likelihood of a demonstrated action under softmax(beta psi.w): eq. bcq-loss, where beta is 1."""
    return -jax.nn.log_softmax(beta * psi @ w)[action]


def lapsed_bc_q(values: Float[Array, " A"], action: Int[Array, ""], lapse: Float[Array, ""] | float, beta: float) -> Float[Array, ""]:
    """`bc_q` of an agent that does anything at all in a share `lapse` of its steps: such noise is not read as indifference.

    Not in the paper.
    """
    likely = jax.nn.softmax(beta * values)[action]
    return -jnp.log((1.0 - lapse) * likely + lapse / values.shape[0])


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
    """Expected-SARSA error of one policy's successor features on a transition of *any agent*. Not in the paper.

    The dynamics are shared, so a step of the ego, or of another demonstrator, evaluates every policy; no reward is needed.
    """
    return itd(psi, phi, next_policy @ next_psi, discount)


def sparse(inferred_reward: Float[Array, ""], scale: float) -> Float[Array, ""]:
    """Picks the sparsest among rewards that differ by shaping only: log(1 + scale |phi.w|). Not in the paper."""
    return jnp.log1p(scale * jnp.abs(inferred_reward))


def negative(inferred_reward: Float[Array, ""]) -> Float[Array, ""]:
    """How far a reward is below nothing. Not in the paper."""
    return jnp.maximum(-inferred_reward, 0.0)


def terminal_anchor(psi: Float[Array, "A d"], w: Float[Array, " d"]) -> Float[Array, " A"]:
    """Value left to a demonstrator at the true end of its demonstration: should be zero for every action. Not in the paper."""
    return psi @ w


# --- The baselines: Q-learning and cloning -------------------------------------------------------------------------------


def cross_entropy(logits: Float[Array, " A"], action: Int[Array, ""]) -> Float[Array, ""]:
    """Negative log-likelihood of a demonstrated action under softmax(logits): behaviour cloning."""
    return -jax.nn.log_softmax(logits)[action]


def entropy(logits: Float[Array, " A"]) -> Float[Array, ""]:
    """Entropy of softmax(logits)."""
    log_policy = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.exp(log_policy) * log_policy)


def bellman(
    q: Float[Array, ""], n_step_reward: Float[Array, ""], discount: Float[Array, ""], next_value: Float[Array, ""]
) -> Float[Array, ""]:
    """Bellman error of an action's value. `next_value` is the backup: `hard_value`, `double_value` or `soft_value` of the next state."""
    return q - n_step_reward - discount * next_value


def hard_value(next_q: Float[Array, " A"]) -> Float[Array, ""]:
    """Q-learning's backup: the best action's value."""
    return jnp.max(next_q)


def double_value(chooser_q: Float[Array, " A"], next_q: Float[Array, " A"]) -> Float[Array, ""]:
    """Double Q-learning's backup: one network chooses the action, the other says what it is worth, so that no error is sought out."""
    return next_q[jnp.argmax(chooser_q)]


def soft_value(next_q: Float[Array, " A"], temperature: float) -> Float[Array, ""]:
    """Soft Q-learning's backup: temperature * logsumexp(Q / temperature), the best value plus what it is worth not to be sure of it."""
    return temperature * jax.nn.logsumexp(next_q / temperature)


def huber(error: Float[Array, ""], knee: float) -> Float[Array, ""]:
    """The squared error up to `knee`, beyond it the tangent: twice what is usually called Huber's loss, so as to agree with `squared`."""
    size = jnp.abs(error)
    return jnp.where(size <= knee, jnp.square(error), knee * (2 * size - knee))


# --- The baselines: policy gradients and adversarial imitation -----------------------------------------------------------


def gae(
    reward: Float[Array, " T"],
    value: Float[Array, " T"],
    next_value: Float[Array, " T"],
    discount: Float[Array, " T"],
    last: Bool[Array, " T"],
    lambda_: float | Float[Array, ""],
) -> Float[Array, " T"]:
    """Generalised advantage estimates along one environment's steps, which may hold several episodes.

    `discount` is gamma, or 0 where the task truly ended; `next_value` is of the observation before any reset. So a time limit bootstraps,
    a termination does not, and no sum runs on beyond either.
    """
    error = reward + discount * next_value - value

    def add(after: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        advantage = step[0] + step[1] * after
        return advantage, advantage

    return jax.lax.scan(add, jnp.zeros_like(error[0]), (error, lambda_ * discount * ~last), reverse=True)[1]


def clipped_surrogate(
    log_policy: Float[Array, ""], old_log_policy: Float[Array, ""], advantage: Float[Array, ""], clip: float | Float[Array, ""]
) -> Float[Array, ""]:
    """PPO's pessimistic estimate of what an action gains, -L^CLIP: moving the probability by more than `clip` earns nothing."""
    ratio = jnp.exp(log_policy - old_log_policy)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def clipped_value(value: Float[Array, ""], old_value: Float[Array, ""], target: Float[Array, ""], clip: float) -> Float[Array, ""]:
    """Squared error of a value, or of that value held within `clip` of the old one if that is worse. Not in PPO's paper, but its code."""
    held = old_value + jnp.clip(value - old_value, -clip, clip)
    return jnp.maximum(squared(value - target), squared(held - target))


def discrimination(logit: Float[Array, ""], demonstrated: Float[Array, ""]) -> Float[Array, ""]:
    """Binary cross-entropy of D = sigmoid(logit), the probability that a step was *demonstrated*, with the truth (1, 0 or between).

    GAIL's paper trains D the other way round, towards 1 on the generator: its D is 1 - D here.
    """
    return jax.nn.softplus(logit) - demonstrated * logit


def discriminator_entropy(logit: Float[Array, ""]) -> Float[Array, ""]:
    """Entropy of the guess whether a step was demonstrated: log 2 where D = 1/2."""
    return jax.nn.softplus(logit) - jax.nn.sigmoid(logit) * logit


def adversarial_reward(logit: Float[Array, ""], form: AdversarialReward) -> Float[Array, ""]:
    """What the generator gets for a step, D = sigmoid(logit) being the probability that it was demonstrated.

    "-log(1-D)" is positive (it pays to stay), "log D" negative (it pays to leave), their sum "log D - log(1-D)" is the logit and both.
    GAIL's paper writes the cost as log D with its D = 1 - D here, which is the first form.
    """
    forms = {"-log(1-D)": jax.nn.softplus(logit), "log D": -jax.nn.softplus(-logit), "log D - log(1-D)": logit}
    return forms[form]
