"""Preferences in a basis that means something: the few directions that all agents' rewards share, turned to the simplest structure.

Cumulants are known only up to a transformation, and w says little where each agent has a cumulant of its own. Rewards are the same in
every basis. So the rewards of everybody on the same steps are taken apart into a few directions (principal components), and these are
rotated (varimax) until each agent wants as few of them as can be. A direction's sign is chosen so that it is wanted more than avoided.
"""

from typing import NamedTuple

import numpy as np

KEPT = 0.95
"""Share of the rewards' variance that the directions explain together."""
MOST = 8
"""Directions, at most."""
SWEEPS = 200


class Factors(NamedTuple):
    """What agents want, in shared directions."""

    loading: np.ndarray
    """``[K, F]``: how much of each direction each agent wants; squares of a row add up to what is kept of its reward's variance."""
    score: np.ndarray
    """``[N, F]``: how much of each direction there is in each step, in standard deviations."""
    kept: float
    """Share of the rewards' variance that is kept."""


def factors(rewards: np.ndarray) -> Factors:
    """Directions of the rewards ``[N, K]`` that K agents would be paid for N steps."""
    centred = rewards - rewards.mean(axis=0)
    spread = centred.std(axis=0)
    standard = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-12 * max(np.abs(rewards).max(initial=0.0), 1e-300))
    left, size, right = np.linalg.svd(standard, full_matrices=False)
    power = size**2
    total = max(power.sum(), 1e-300)
    count = max(min(int(np.searchsorted(np.cumsum(power) / total, KEPT - 1e-9)) + 1, MOST, len(size)), 1)
    turn = varimax(right[:count].T * size[:count] / np.sqrt(len(rewards)))
    loading = (right[:count].T * size[:count] / np.sqrt(len(rewards))) @ turn
    score = np.sqrt(len(rewards)) * left[:, :count] @ turn
    sign = np.where((loading**3).sum(axis=0) < 0, -1.0, 1.0)
    order = np.argsort(-(loading**2).sum(axis=0), kind="stable")
    return Factors((loading * sign)[:, order], (score * sign)[:, order], float(power[:count].sum() / total))


def varimax(loading: np.ndarray) -> np.ndarray:
    """``[F, F]``: the rotation with which squares of loadings vary most (Kaiser 1958)."""
    rows, columns = loading.shape
    turn = np.eye(columns)
    reached = 0.0
    for _ in range(SWEEPS):
        turned = loading @ turn
        left, size, right = np.linalg.svd(loading.T @ (turned**3 - turned * (turned**2).mean(axis=0)))
        turn = left @ right
        if size.sum() <= reached * (1 + 1e-10):
            break
        reached = size.sum()
    return turn
