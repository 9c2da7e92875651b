"""The demonstrations that both sides of the imitation benchmark learn from: made once, stored as arrays, never made anew by a run.

    python benchmarks/peers/demonstrations.py [--out benchmarks/peers/demos]

- cartpole.npz: a linear balancer of CartPole-v1 whose pushes are a little random; every episode reaches the time limit, return 500.
- coingrid-R.npz, coingrid-G.npz: CoinGrid's exactly planned soft-optimal demonstrators of red and of green coins, who leave when they
  have what they came for.

A file holds whole episodes one after the other: `action` (its steps), `obs` (one more per episode: where it ended), `length` (steps
per episode), `terminal` (whether it truly ended, or was cut by a time limit) and `returns` (never shown to a learner).
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).parent

CARTPOLE_EPISODES = 10
CARTPOLE_GAINS = (0.05, 0.1, 1.0, 0.5)
"""Of position, velocity, angle and angular velocity: push right where the weighted sum is positive."""
CARTPOLE_TEMPERATURE = 0.02
"""The push is drawn from the logistic function of the sum over this; 0 would be deterministic."""

COINGRID_EPISODES = 1_000
COINGRID_TEMPERATURE, COINGRID_GAMMA = 0.02, 0.9
"""Of the demonstrators' Boltzmann policies and of their planning, as in the library's own experiments."""

SEED = 0


class Episodes(NamedTuple):
    """Whole episodes, one after the other; the last two fields are one number per episode."""

    obs: np.ndarray
    action: np.ndarray
    length: np.ndarray
    terminal: np.ndarray
    returns: np.ndarray


class Steps(NamedTuple):
    """The same, step by step; `next_action` is -1 where an episode ends."""

    obs: np.ndarray
    action: np.ndarray
    discount: np.ndarray
    next_obs: np.ndarray
    next_action: np.ndarray


def load(path: Path) -> Episodes:
    with np.load(path, allow_pickle=False) as file:
        return Episodes(*(file[name] for name in Episodes._fields))


def save(path: Path, episodes: Episodes) -> None:
    np.savez_compressed(path, **episodes._asdict())
    steps, mean = len(episodes.action), episodes.returns.mean()
    print(f"{path.name}: {len(episodes.length)} episodes, {steps} steps, mean return {mean:.3f}, {path.stat().st_size:,} bytes")


def split(episodes: Episodes) -> list[tuple[np.ndarray, np.ndarray, bool]]:
    """Observations ``[T + 1]``, actions ``[T]`` and whether it truly ended, of each episode."""
    ends = np.cumsum(episodes.length)
    actions = np.split(episodes.action, ends[:-1])
    observations = np.split(episodes.obs, (ends + np.arange(1, len(ends) + 1))[:-1])
    return list(zip(observations, actions, episodes.terminal.tolist(), strict=True))


def steps(episodes: Episodes) -> Steps:
    """All steps of all episodes."""

    def of_one(obs: np.ndarray, action: np.ndarray, terminal: bool) -> Steps:
        discount = np.ones(len(action), np.float32)
        discount[-1] = 1.0 - terminal
        return Steps(obs[:-1], action, discount, obs[1:], np.append(action[1:], -1).astype(action.dtype))

    return Steps(*(np.concatenate(x) for x in zip(*(of_one(*episode) for episode in split(episodes)), strict=True)))


# --- Making them ---------------------------------------------------------------------------------------------------------


def cartpole(rng: np.random.Generator) -> Episodes:
    """Episodes of the balancer in Gymnasium's own CartPole-v1."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    observations, actions, lengths, terminals = [], [], [], []
    for _ in range(CARTPOLE_EPISODES):
        obs, _ = env.reset(seed=int(rng.integers(2**31)))
        observations.append(obs)
        for length in range(1, 501):
            right = 1 / (1 + np.exp(-np.dot(CARTPOLE_GAINS, obs) / CARTPOLE_TEMPERATURE))
            actions.append(int(rng.random() < right))
            obs, _, terminated, truncated, _ = env.step(actions[-1])
            observations.append(obs)
            if terminated or truncated:
                lengths.append(length)
                terminals.append(terminated)
                break
    length = np.array(lengths, np.int32)
    return Episodes(np.stack(observations), np.array(actions, np.int32), length, np.array(terminals), length.astype(np.float32))


def coingrid() -> dict[str, Episodes]:
    """Episodes of the demonstrators of red and of green."""
    import jax

    from psiphi.envs import coingrid, coingrid_exact

    weights = {name: coingrid.task_weights(name) for name in ("R", "G")}
    config = coingrid.CoinGridConfig()
    recording = coingrid_exact.record(
        config, list(weights.values()), COINGRID_EPISODES, COINGRID_TEMPERATURE, COINGRID_GAMMA, jax.random.key(SEED)
    )
    return {name: _episodes(jax.tree.map(np.asarray, recording), k, np.array(w)) for k, (name, w) in enumerate(weights.items())}


def _episodes(recording, k: int, weights: np.ndarray) -> Episodes:
    real = recording.episode[k] >= 0
    first = np.flatnonzero(np.diff(recording.episode[k][real], prepend=-1))
    last = np.append(first[1:], real.sum()) - 1
    obs, action, discount, next_obs, _ = (x[k][real] for x in recording.demos.steps)
    # Where an episode ends, what it reached comes before the next one's start.
    seen = np.insert(obs, last + 1, next_obs[last], axis=0)
    rewards = recording.features[k][real] @ weights
    return Episodes(
        seen, action.astype(np.int32), (last - first + 1).astype(np.int32), discount[last] == 0, np.add.reduceat(rewards, first)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "demos", help="directory to write to")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    save(args.out / "cartpole.npz", cartpole(np.random.default_rng(SEED)))
    for name, episodes in coingrid().items():
        save(args.out / f"coingrid-{name}.npz", episodes)


if __name__ == "__main__":
    main()
