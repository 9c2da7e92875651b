"""What is in demonstrations, in numbers: who, how much, which actions, how much of the world, and what is there twice."""

from typing import Any

import numpy as np

from psiphi.demos.demonstrations import Demonstrations, flattened, unnamed_actions

CHUNK = 65_536
MOST_COLUMNS = 64
"""Observations with more entries than this are pictures: their entries are not listed."""


def summary(demos: Demonstrations) -> dict[str, Any]:
    """Everything that `psiphi demos inspect` shows, ready for JSON."""
    prints = fingerprints(demos.obs)
    original = twins(demos, prints)
    return {
        "agents": len(demos.agents),
        "episodes": demos.num_episodes,
        "steps": len(demos),
        "obs_shape": list(demos.obs.shape[1:]),
        "obs_dtype": demos.obs.dtype.name,
        "num_actions": demos.num_actions,
        "action_names": None if demos.action_names == unnamed_actions(demos.num_actions) else list(demos.action_names),
        "groups": len(demos.groups),
        "length": _spread(demos.lengths),
        "terminated": int(demos.episodes.terminated.sum()),
        "truncated": int((demos.episodes.truncated & ~demos.episodes.terminated).sum()),
        "distinct_observations": len(np.unique(prints)),
        "copied_episodes": int((original != np.arange(len(original))).sum()),
        "by_agent": _by_agent(demos, prints),
        "columns": _columns(demos),
        "notes": list(demos.notes),
    }


def _by_agent(demos: Demonstrations, prints: np.ndarray) -> list[dict[str, Any]]:
    who, K = demos.agent_index, len(demos.agents)
    _, inverse = np.unique(prints, return_inverse=True)
    visits = np.unique(inverse * K + who)  # who has seen which observation
    shared = np.bincount(visits // K) > 1
    distinct = np.bincount(visits % K, minlength=K)
    rows = []
    for k, agent in enumerate(demos.agents):
        mine, episodes = who == k, demos.episodes.agent == k
        rows.append(
            {
                "agent": agent,
                "episodes": int(episodes.sum()),
                "steps": int(mine.sum()),
                "length": _spread(demos.lengths[episodes]),
                "terminated": int(demos.episodes.terminated[episodes].sum()),
                "actions": np.bincount(demos.action[mine], minlength=demos.num_actions).tolist(),
                "distinct_observations": int(distinct[k]),
                # How much of what this agent saw some other agent saw too: where it is little, it is not known what another would do there.
                "shared_with_others": float(shared[inverse[mine]].mean()) if mine.any() else 0.0,
            }
        )
    return rows


def _columns(demos: Demonstrations) -> list[dict[str, Any]]:
    flat = flattened(demos.obs)
    if flat.shape[1] > MOST_COLUMNS or not len(flat):
        return []
    low, high, total = flat.min(0), flat.max(0), flat.mean(0, dtype=np.float64)
    rows = zip(demos.names, low.tolist(), high.tolist(), total.tolist(), strict=True)
    return [{"name": name, "min": least, "max": most, "mean": mean} for name, least, most, mean in rows]


def _spread(lengths: np.ndarray) -> dict[str, float]:
    if not len(lengths):
        return {"min": 0, "median": 0, "max": 0}
    return {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())}


# --- The same again? -----------------------------------------------------------------------------------------------------


def fingerprints(obs: np.ndarray) -> np.ndarray:
    """uint64[M]: equal for equal observations, and for different ones different but for one chance in 2^64."""
    flat = flattened(obs)
    bytes_each = flat.shape[1] * flat.dtype.itemsize
    multipliers = np.random.default_rng(0).integers(2**63, size=-(-bytes_each // 8), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    result = np.empty(len(flat), np.uint64)
    for first in range(0, len(flat), CHUNK):
        part = np.ascontiguousarray(flat[first : first + CHUNK])
        padded = np.zeros((len(part), len(multipliers) * 8), np.uint8)
        padded[:, :bytes_each] = part.view(np.uint8).reshape(len(part), bytes_each)
        result[first : first + CHUNK] = _mixed(np.ascontiguousarray(padded.view(np.uint64).T), multipliers)
    return result


def _mixed(words: np.ndarray, multipliers: np.ndarray) -> np.ndarray:
    """One number out of the words ``[W, n]`` of each column. Bits are folded down between products, as floats differ in high bits only."""
    total = np.zeros(words.shape[1], np.uint64)
    for word, multiplier in zip(words, multipliers, strict=True):
        total = (total ^ word ^ (word >> np.uint64(32))) * multiplier
        total ^= total >> np.uint64(29)
    return total


def first_in_episode(demos: Demonstrations, prints: np.ndarray) -> np.ndarray:
    """bool[M]: whether an observation is new in its episode."""
    episode = np.repeat(np.arange(demos.num_episodes, dtype=np.uint64), demos.lengths)
    keys = _mixed(np.stack([prints, episode]), np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64))
    new = np.zeros(len(demos), bool)
    new[np.unique(keys, return_index=True)[1]] = True
    return new


def twins(demos: Demonstrations, prints: np.ndarray) -> np.ndarray:
    """int64[E]: for each episode, the first one with the same observations and actions (itself, if it is the first)."""
    place = demos.t.astype(np.uint64)
    keys = _mixed(
        np.stack([prints, demos.action.astype(np.uint64), place]),
        np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64),
    )
    whole = np.add.reduceat(keys, demos.episodes.start[:-1]) if len(demos) else np.zeros(0, np.uint64)
    _, first, inverse = np.unique(whole, return_index=True, return_inverse=True)
    return first[inverse]
