"""What is the ego agent's task? Inference of its preferences `w` from rewards: ``reward = phi(s, a).w``.

Two answers. `least_squares` is the paper's: the minimiser of its reward loss over `w`. `posterior` is Bayesian linear regression
that starts from what the demonstrators want, says how sure it is, and so can be acted on within the very first episode
(`upper_confidence`). Both need only `Statistics` of fixed size, so a task can be inferred anew at every step of every environment.
Every function is pure and works on one task; callers vmap.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

Scalar = float | Shaped[Array, ""]

PRIOR_SCALES = (0.3, 0.55, 1.0, 1.75, 3.0)
"""How far a task may lie from "all the demonstrators want is worth 1": standard deviations of the coefficients. Even in the logarithm."""

NOISE_SCALES = (0.1, 0.2, 0.4, 0.8)
"""How badly ``phi.w`` may fit a reward, in units of reward, even in the logarithm.

The floor is a tenth of a unit because cumulants are learned: with a finer one, a hundred uneventful steps, at which a learned phi
is nearly but not quite zero, would prove beyond doubt that nothing is worth anything.
"""


class Statistics(NamedTuple):
    """All that linear regression ever needs to know of the experience: sums over the (weighted) steps."""

    gram: Float[Array, "d d"]
    """sum of ``phi phi'``"""
    moment: Float[Array, " d"]
    """sum of ``reward * phi``"""
    reward_square: Float[Array, ""]
    """sum of ``reward ** 2``"""
    count: Float[Array, ""]
    """number of steps"""


class Prior(NamedTuple):
    """Before any reward, a task is a mixture of the demonstrators': ``w = sum_k c_k basis_k`` with every `c_k` around 1."""

    basis: Float[Array, "K d"]
    """The demonstrators' preferences in units of reward: see `in_reward_units`."""


class Posterior(NamedTuple):
    """Mean and covariance of the belief about `w`."""

    mean: Float[Array, " d"]
    covariance: Float[Array, "d d"]


def no_experience(d: int) -> Statistics:
    """The statistics of zero steps with `d` cumulants."""
    return Statistics(jnp.zeros((d, d)), jnp.zeros(d), jnp.zeros(()), jnp.zeros(()))


def observe(stats: Statistics, phi: Float[Array, " d"], reward: Float[Array, ""], weight: Scalar = 1.0) -> Statistics:
    """Add one step; a step of `weight` 0 (after the episode's end, say) changes nothing."""
    return Statistics(
        gram=stats.gram + weight * jnp.outer(phi, phi),
        moment=stats.moment + weight * reward * phi,
        reward_square=stats.reward_square + weight * reward**2,
        count=stats.count + weight,
    )


def observe_batch(
    stats: Statistics, phi: Float[Array, "n d"], reward: Float[Array, " n"], weight: Shaped[Array, " n"] | None = None
) -> Statistics:
    """Add n steps at once: equals n times `observe`."""
    weight = jnp.ones_like(reward) if weight is None else weight
    return Statistics(
        gram=stats.gram + (phi * weight[:, None]).T @ phi,
        moment=stats.moment + phi.T @ (weight * reward),
        reward_square=stats.reward_square + jnp.sum(weight * reward**2),
        count=stats.count + jnp.sum(weight),
    )


def least_squares(phi: Float[Array, "n d"], reward: Float[Array, " n"], ridge: Scalar = 0.0) -> Float[Array, " d"]:
    """The paper's task inference: the `w` that minimises ``sum (reward - phi.w)^2 + ridge |w|^2``.

    With ``ridge = 0`` and fewer directions of phi than cumulants, the shortest of the minimisers, as `numpy.linalg.lstsq`.
    """
    u, s, vt = jnp.linalg.svd(phi, full_matrices=False)
    keep = s > jnp.finfo(phi.dtype).eps * max(phi.shape) * jnp.max(s, initial=0.0)
    s = jnp.where(keep, s, 1.0)
    inverse = jnp.where(keep, 1.0 / (s + ridge / s), 0.0)
    return vt.T @ (inverse * (u.T @ reward))


def solve(stats: Statistics, ridge: Scalar = 0.0) -> Float[Array, " d"]:
    """`least_squares` from the statistics alone.

    Squaring phi costs half of the digits: directions of phi a thousand times weaker than the strongest (in single precision) count
    as absent here, while `least_squares` still sees them.
    """
    eigenvalues, vectors = spectrum(stats.gram)
    seen = eigenvalues > 0.0
    inverse = jnp.where(seen, 1.0 / jnp.where(seen, eigenvalues + ridge, 1.0), 0.0)
    return vectors @ (inverse * (vectors.T @ stats.moment))


def spectrum(gram: Float[Array, "d d"]) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Eigenvalues and eigenvectors (columns) of sums of squares; eigenvalues that could be rounding errors are exactly 0."""
    eigenvalues, vectors = jnp.linalg.eigh(gram)
    rounding = 10 * len(gram) * jnp.finfo(gram.dtype).eps * jnp.max(eigenvalues)
    return jnp.where(eigenvalues > rounding, eigenvalues, 0.0), vectors


def posterior(
    stats: Statistics,
    prior: Prior,
    prior_scales: tuple[Scalar, ...] = PRIOR_SCALES,
    noise_scales: tuple[Scalar, ...] = NOISE_SCALES,
) -> Posterior:
    """What the rewards so far, and the demonstrators' wants before them, say about the ego's preferences.

    The hypothesis: ``w = sum_k c_k basis_k``, ``c ~ N(1, prior_scale^2 I)``, ``reward = phi.w + N(0, noise_scale^2)``. Neither scale is
    known; each pair out of `prior_scales` x `noise_scales` gives a Gaussian, weighted by its evidence (all equal at the start), and
    what is returned is the mean and the covariance of this mixture. With no experience that is the prior, with much of it
    `least_squares` in the span of the demonstrators' preferences. Outside that span the belief is zero and certain.

    One eigendecomposition of a K x K matrix serves all scales: in its eigenvectors every Gaussian is diagonal.
    """
    gram = prior.basis @ stats.gram @ prior.basis.T
    moment = prior.basis @ stats.moment
    # What the prior mean (every coefficient 1) leaves unexplained, and how that goes along with each demonstrator's reward.
    residual_moment = moment - jnp.sum(gram, axis=1)
    residual_square = stats.reward_square - jnp.sum(moment) - jnp.sum(residual_moment)

    eigenvalues, vectors = spectrum(gram)
    shift = jnp.where(eigenvalues > 0.0, vectors.T @ residual_moment, 0.0)
    scales = jnp.stack(jnp.meshgrid(jnp.array(prior_scales), jnp.array(noise_scales)), axis=-1).reshape(-1, 2)
    mean, variance, evidence = jax.vmap(gaussian, in_axes=(None, None, None, None, 0))(
        eigenvalues, shift, residual_square, stats.count, scales
    )
    weight = jax.nn.softmax(evidence)
    mixture_mean = weight @ mean
    spread = mean - mixture_mean
    mixture_covariance = jnp.diag(weight @ variance) + (spread * weight[:, None]).T @ spread
    directions = vectors.T @ prior.basis
    return Posterior(jnp.sum(prior.basis, axis=0) + mixture_mean @ directions, directions.T @ mixture_covariance @ directions)


def ridge_posterior(stats: Statistics, prior_scale: Scalar = 1.0, noise_scale: Scalar = 0.1) -> Posterior:
    """Bayesian linear regression that starts from nothing: ``w ~ N(0, prior_scale^2 I)``. For cumulants that are given, whose scale is
    known, and for tasks outside of the span of what the demonstrators want."""
    d = stats.moment.shape[0]
    covariance = jnp.linalg.inv(stats.gram / noise_scale**2 + jnp.eye(d) / prior_scale**2)
    return Posterior(covariance @ stats.moment / noise_scale**2, covariance)


def informed_posterior(stats: Statistics, examples: Float[Array, "M d"], slack: Scalar = 0.3, noise_scale: Scalar = 0.1) -> Posterior:
    """The same, but before any reward a task is expected to be like the `examples`: `w` has their mean and covariance, and `slack` is the
    standard deviation of what it may differ beyond that in each direction."""
    d, middle = stats.moment.shape[0], jnp.mean(examples, axis=0)
    spread = (examples - middle).T @ (examples - middle) / examples.shape[0]
    before = jnp.linalg.inv(spread + slack**2 * jnp.eye(d))
    covariance = jnp.linalg.inv(stats.gram / noise_scale**2 + before)
    return Posterior(covariance @ (stats.moment / noise_scale**2 + before @ middle), covariance)


def gaussian(
    eigenvalues: Float[Array, " K"],
    shift: Float[Array, " K"],
    residual_square: Float[Array, ""],
    count: Float[Array, ""],
    scales: Float[Array, "2"],
) -> tuple[Float[Array, " K"], Float[Array, " K"], Float[Array, ""]]:
    """The posterior for one pair of scales, along the eigenvectors: mean (from the prior's), variance, and the log evidence."""
    prior_variance, noise_variance = jnp.square(scales)
    variance = 1.0 / (eigenvalues / noise_variance + 1.0 / prior_variance)
    mean = variance * shift / noise_variance
    misfit = jnp.maximum(residual_square - jnp.dot(mean, shift), 0.0) / noise_variance
    evidence = 0.5 * (jnp.sum(jnp.log(variance / prior_variance)) - misfit - count * jnp.log(noise_variance))
    return mean, variance, evidence


def upper_confidence(psi: Float[Array, "*batch d"], belief: Posterior, kappa: Scalar = 2.0) -> Float[Array, "*batch"]:
    """The value of `psi` if the task is as kind as can be believed: ``psi.mean + kappa sqrt(psi' covariance psi)``."""
    variance = jnp.sum((psi @ belief.covariance) * psi, axis=-1)
    return psi @ belief.mean + kappa * jnp.sqrt(jnp.maximum(variance, 0.0))


def reward_unit(reward: Float[Array, " n"], mask: Shaped[Array, " n"], eps: Scalar = 1e-6) -> Float[Array, ""]:
    """The size of one reward in an inferred reward function, found without labels: ``E[r^4] / E|r|^3``. A size, so never negative.

    A reward that is m now and then, and 0 plus some noise otherwise, gives about |m|, for high moments hardly see the small values.
    (With m = 1 at one step in twenty and noise of .2, this ratio is .97; ``E|r|^3 / E[r^2]`` would be .62.) A reward that is
    constant gives the constant's size. Never nearer to 0 than `eps`: such a unit means that nothing was inferred.
    """
    largest = jnp.max(jnp.abs(reward) * (mask > 0), initial=0.0)
    scaled = jnp.abs(reward) / jnp.maximum(largest, eps)  # powers of the scaled reward neither overflow nor vanish
    weight = mask / jnp.maximum(jnp.sum(mask), 1.0)
    fourth, third = (jnp.sum(weight * scaled**power) for power in (4, 3))
    return jnp.maximum(largest * fourth / jnp.maximum(third, jnp.finfo(scaled.dtype).tiny), eps)


def in_reward_units(w: Float[Array, "K d"], units: Float[Array, " K"]) -> Float[Array, "K d"]:
    """The demonstrators' preferences, each scaled so that what it wants is worth 1: inference fixes them up to a temperature only."""
    return w / units[:, None]
