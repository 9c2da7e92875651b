"""psiphi as the benchmark uses it: the one place that knows its API."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import psiphi
from psiphi import Demonstrations


class Steps(NamedTuple):
    """B steps to be paid for."""

    obs: np.ndarray
    """[B, n]."""
    action: np.ndarray
    """int[B]."""
    next_obs: np.ndarray
    """[B, n]."""
    terminated: np.ndarray
    """bool[B]."""


class Learned(NamedTuple):
    """What a fit says."""

    reward: Callable[[str, float | None, Steps], np.ndarray]
    """float64[B]: an agent's reward, with so much caution; None is what is handed out to who does not ask."""
    values: Callable[[str, np.ndarray], np.ndarray]
    """[B, A]: of observations ``[B, n]``, the values of which an agent's imitation takes the best."""
    doubtful: tuple[str, ...]
    """The agents of whom it warns."""
    findings: tuple[tuple[str | None, str], ...]
    """What it found, and about whom; about the whole log if None."""


def learned(demos: Demonstrations, background: Demonstrations | None, seed: int) -> Learned:
    """Fit psiphi's default to a log."""
    made: Any = psiphi.ITD(seed=seed)
    itd = made.fit(demos, background=background, progress=False)

    def reward(agent: str, caution: float | None, steps: Steps) -> np.ndarray:
        paid = itd.reward(agent) if caution is None else itd.reward(agent, caution=caution)
        return np.asarray(paid(*steps), np.float64)

    def values(agent: str, obs: np.ndarray) -> np.ndarray:
        return np.asarray(itd.policy(agent).values(obs))

    findings = tuple((finding.agent, finding.name) for finding in itd.verdict.findings)
    return Learned(reward, values, tuple(itd.verdict.doubtful), findings)
