"""The statistics of the tables: robust averages of few runs, with honest intervals (Agarwal et al., NeurIPS 2021), and R^2."""

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from psiphi.errors import UserError

Statistic = Callable[..., Any]
"""A summary called as ``statistic(x, axis=1)`` on a matrix with a resample in each row: `iqm`, `np.mean`, `np.median`."""


@overload
def iqm(x: ArrayLike) -> float: ...
@overload
def iqm(x: ArrayLike, axis: int) -> np.ndarray: ...
def iqm(x: ArrayLike, axis: int | None = None) -> float | np.ndarray:
    """Interquartile mean of all entries (or along an axis): what is left when the lowest and the highest quarter are dropped.

    `floor(n / 4)` entries are dropped at each end, as `scipy.stats.trim_mean(x, 0.25, axis=None)` does: with n not divisible by
    four slightly more than half remains, and with three entries or fewer it is the mean.
    """
    array = _checked(x)
    if axis is None:
        return float(iqm(array.ravel(), axis=0))
    ordered = np.moveaxis(np.sort(array, axis=axis), axis, -1)
    dropped = ordered.shape[-1] // 4
    return ordered[..., dropped : ordered.shape[-1] - dropped].mean(axis=-1)


def bootstrap_interval(
    x: ArrayLike, statistic: Statistic = iqm, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic of independent runs `x[runs]`. The same arguments give the same interval."""
    return stratified_interval(np.reshape(_checked(x), (-1, 1)), statistic, confidence, resamples, seed)


def stratified_interval(
    x: ArrayLike, statistic: Statistic = iqm, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """The same for a matrix `x[runs, tasks]`: runs are resampled within each task, so that every task keeps its weight."""
    scores = _checked(x)
    if scores.ndim != 2:
        raise UserError(f"The scores have {scores.ndim} axes, expected two: runs and tasks.")
    if not 0 < confidence < 1:
        raise UserError(f"The confidence is {confidence}, expected a number between 0 and 1.")
    runs, tasks = scores.shape
    drawn = np.random.default_rng(seed).integers(runs, size=(resamples, runs, tasks))
    values = statistic(scores[drawn, np.arange(tasks)].reshape(resamples, -1), axis=1)
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def probability_of_improvement(
    pairs: Sequence[tuple[ArrayLike, ArrayLike]], confidence: float = 0.95, resamples: int = 2_000, seed: int = 0
) -> tuple[float, float, float]:
    """How probably a run of one method is better than a run of another, the mean over tasks, with its stratified bootstrap interval.

    ``pairs`` are, for each task, the runs of the one and of the other, the larger the better. A tie counts half.
    """
    tasks = [(np.ravel(_checked(x)), np.ravel(_checked(y))) for x, y in pairs]
    if not tasks:
        raise UserError("There are no tasks to compare the methods on.")
    wins = [(x[:, None] > y) + 0.5 * (x[:, None] == y) for x, y in tasks]
    rng = np.random.default_rng(seed)
    drawn = np.zeros(resamples)
    for win in wins:
        ours, theirs = (rng.integers(n, size=(resamples, n)) for n in win.shape)
        drawn += win[ours[:, :, None], theirs[:, None, :]].mean(axis=(1, 2)) / len(wins)
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(np.mean([win.mean() for win in wins])), float(low), float(high)


def r_squared(features: ArrayLike, targets: ArrayLike) -> float:
    """Share of the variance of `targets[n]` that a linear function of `features[n, d]` with an intercept explains, in [0, 1].

    It is not corrected for d, so n must be much larger. Constant targets have no variance to explain: the answer is NaN.
    """
    x, y = _checked(features), _checked(targets)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise UserError(f"The features have shape {x.shape} and the targets {y.shape}, expected (n, d) and (n,).")
    if np.ptp(y) == 0:
        return float("nan")
    x, y = x - x.mean(axis=0), y - y.mean()
    residual = y - x @ np.linalg.lstsq(x, y)[0]
    return float(np.clip(1 - residual @ residual / (y @ y), 0, 1))


def _checked(x: ArrayLike) -> np.ndarray:
    array = np.asarray(x, dtype=np.float64)
    if array.size == 0:
        raise UserError("There are no numbers to summarise.")
    if np.isnan(array).any():  # sorting puts NaN last, where trimming would silently drop it
        raise UserError(f"{np.isnan(array).sum()} of {array.size} numbers to summarise are NaN.")
    return array


def steps_to(steps: Sequence[int], returns: Sequence[float], level: float) -> int:
    """The first evaluation that reached the level; the last one if none did."""
    return next((at for at, value in zip(steps, returns, strict=True) if value >= level), steps[-1])
