"""K-means for a few columns of numbers: k-means++ beginnings, several restarts, and centroids that may come in mirrored pairs."""

from typing import NamedTuple

import numpy as np

SAMPLE = 20_000
"""Rows on which beginnings are compared; the best one is then fitted to all rows."""
TRIED, ITERATIONS, POLISH = 15, 100, 5
"""At most so many for each beginning, for the best one on the sample, and then on all rows."""
STILL = 1e-5
"""Centroids that move less than this, in standard deviations, do not move."""
CHUNK = 65_536
"""Rows whose distances are computed together."""


def k_means(x: np.ndarray, k: int, *, seed: int = 0, restarts: int = 8, mirrored: np.ndarray | None = None) -> np.ndarray | None:
    """``[k, c]``: centroids of the rows ``x[n, c]``, the best of several restarts; None if fewer than k different ones exist.

    `mirrored` says which columns change their sign in a mirror. With it, the mirror image of every centroid is a centroid.
    """
    rng = np.random.default_rng(seed)
    some = x if len(x) <= SAMPLE else x[rng.choice(len(x), SAMPLE, replace=False)]
    sign = np.ones(x.shape[1]) if mirrored is None else np.where(mirrored, -1.0, 1.0)
    layouts = [np.arange(k)] if mirrored is None else [_partners(k, alone) for alone in range(k % 2, k + 1, 2)]
    trials = [_trial(some, partner, sign, rng) for partner in layouts for _ in range(restarts if mirrored is None else 3)]
    if mirrored is not None:  # how many centroids lie on the mirror is tried out: the two best numbers are tried more often
        order = sorted(trials, key=lambda trial: trial.inertia)
        alone = list(dict.fromkeys(int((trial.partner == np.arange(k)).sum()) for trial in order))[:2]
        trials += [_trial(some, _partners(k, n), sign, rng) for n in alone for _ in range(restarts)]
    best = min(trials, key=lambda trial: trial.inertia)
    centroids = _lloyd(some, best.centroids, best.partner, sign, ITERATIONS)
    if some is not x:
        centroids = _lloyd(x, centroids, best.partner, sign, POLISH)
    return centroids if _different(centroids) else None


def nearest(x: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """int64[n]: the centroid next to each row."""
    half = (centroids**2).sum(1) / 2  # |x - c|^2 is smallest where c.c/2 - x.c is
    parts = [np.argmin(half - x[i : i + CHUNK] @ centroids.T, axis=1) for i in range(0, len(x), CHUNK)]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


class _Trial(NamedTuple):
    centroids: np.ndarray
    partner: np.ndarray
    inertia: float
    """Squared distances to the nearest centroid, summed; infinite if two centroids are the same."""


def _partners(k: int, alone: int) -> np.ndarray:
    """int64[k]: the mirror image of each centroid; the first `alone` are their own."""
    partner = np.arange(k)
    partner[alone::2], partner[alone + 1 :: 2] = np.arange(alone + 1, k, 2), np.arange(alone, k, 2)
    return partner


def _trial(x: np.ndarray, partner: np.ndarray, sign: np.ndarray, rng: np.random.Generator) -> _Trial:
    """Centroids from one beginning."""
    centroids = _lloyd(x, _beginning(x, partner, sign, rng), partner, sign, TRIED)
    if not _different(centroids):
        return _Trial(centroids, partner, np.inf)
    return _Trial(centroids, partner, float(((x - centroids[nearest(x, centroids)]) ** 2).sum()))


def _different(centroids: np.ndarray) -> bool:
    return len(np.unique(centroids, axis=0)) == len(centroids)


def _beginning(x: np.ndarray, partner: np.ndarray, sign: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """k-means++: each further centroid is a row, drawn by its squared distance to those that there are."""
    centroids = np.zeros((len(partner), x.shape[1]))
    away = np.full(len(x), np.inf)
    for i, other in enumerate(partner):
        if other < i:
            continue  # a mirror image, which came with its partner
        total = away.sum()
        row = x[rng.integers(len(x)) if not np.isfinite(total) or total == 0 else rng.choice(len(x), p=away / total)]
        centroids[i], centroids[other] = row, row * sign
        if other == i and (sign < 0).any():
            centroids[i] = (row + row * sign) / 2
        for c in {i, int(other)}:
            away = np.minimum(away, ((x - centroids[c]) ** 2).sum(1))
    return centroids


def _lloyd(x: np.ndarray, centroids: np.ndarray, partner: np.ndarray, sign: np.ndarray, most: int) -> np.ndarray:
    """Alternate nearest centroids and means, until nothing moves. A pair's mean is taken over both, one of them mirrored."""
    mirror = (sign < 0).any()
    for _ in range(most):
        label = nearest(x, centroids)
        count = np.bincount(label, minlength=len(centroids)).astype(float)
        total = np.stack([np.bincount(label, column, len(centroids)) for column in x.T], axis=1)
        if mirror:
            total, count = total + sign * total[partner], count + count[partner]
        moved = np.where(count[:, None] > 0, total / np.maximum(count, 1)[:, None], centroids)
        if (idle := np.flatnonzero(count == 0)).size:  # of no row: it begins anew at the row that is worst served
            far = x[int(np.argmax(((x - centroids[label]) ** 2).sum(1)))]
            moved[idle[0]], moved[partner[idle[0]]] = far, far * sign
            if mirror and partner[idle[0]] == idle[0]:
                moved[idle[0]] = (far + far * sign) / 2
        if np.abs(moved - centroids).max() < STILL:
            break
        centroids = moved
    return centroids
