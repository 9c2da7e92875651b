"""From a Minari dataset of mixed agents to an agent of your own: a tour of psiphi's public names, a few minutes on two cores.

    python examples/tutorial.py            # the tour
    python examples/tutorial.py --quick    # only see that everything runs: seconds, and poor numbers

It needs `pip install 'psiphi[data]'` and, for the third part, stable-baselines3; without it that part is left out and said to be.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np

import psiphi
from psiphi.envs import coingrid, coingrid_exact

WORLD = "psiphi/CoinGrid-v0"


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    episodes: int = 2000
    """Demonstrated, per agent."""
    updates: int = 3000
    """Of ITD."""
    width: int = 256
    """Of the networks' layers."""
    sb3_steps: int = 30_000
    learn_steps: int = 8_000
    study: int = 500
    """Updates before the first of these steps, on the demonstrations alone."""
    judged: int = 50
    """Episodes played where something is judged."""


QUICK = Size(episodes=20, updates=20, width=16, sb3_steps=200, learn_steps=256, study=4, judged=2)


# --- (a) A Minari dataset of mixed agents ---------------------------------------------------------------------------------


def make_dataset(directory: Path, episodes: int, seed: int = 0) -> Path:
    """Two strangers on CoinGrid: red collects red coins, green collects green ones. The dataset says who acted, and nothing of coins."""
    parts = []
    for i, (name, task) in enumerate({"red": "R", "green": "G"}.items()):
        key = jax.random.key(seed + i)
        recording = coingrid_exact.record(coingrid.CoinGridConfig(), [coingrid.task_weights(task)], episodes, 0.02, 0.9, key)
        parts.append(psiphi.Demonstrations.from_demos(recording.demos, recording.episode, [name], coingrid.NUM_ACTIONS))
    path = directory.absolute() / "coins" / "strangers-v0"
    parts[0].merge(*parts[1:]).write(path)
    return path


# --- (b) What do they want? -----------------------------------------------------------------------------------------------


def settings(size: Size) -> psiphi.ITDConfig:
    """The defaults, but for a torso that reads boards as the agent sees them, and the size of the tour."""
    layers = (size.width, size.width)
    return psiphi.ITDConfig(torso="egocentric", torso_hidden=layers, phi_hidden=layers, psi_hidden=layers[:1])


def infer(demos: psiphi.Demonstrations, size: Size) -> psiphi.ITD:
    """ITD, offline: from the logs alone."""
    train, test = demos.split(held_out=0.1, seed=0)
    itd = psiphi.ITD(settings(size), seed=0, updates=size.updates).fit(train)
    print(f"Held-out actions predicted: {itd.accuracy(test):.3f}")
    print(itd.preferences)
    print(itd.coverage)
    return itd


# --- (c) An agent of another library, paid what red is paid ---------------------------------------------------------------


def train_sb3(itd: psiphi.ITD, steps: int) -> Callable[[np.ndarray], int] | None:
    """Stable-Baselines3's DQN on the inferred reward; nothing tells it about coins but that."""
    try:
        from stable_baselines3 import DQN  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    env = itd.reward("red").wrap(gymnasium.make(WORLD, task="R"))
    agent = DQN(
        "MlpPolicy", env, learning_rate=1e-3, batch_size=64, gamma=0.9, learning_starts=min(1000, steps // 2), train_freq=4,
        target_update_interval=500, exploration_fraction=0.4, policy_kwargs={"net_arch": [256, 256]}, seed=0, device="cpu",
    )  # fmt: skip
    agent.learn(steps)
    return lambda obs: int(agent.predict(obs, deterministic=True)[0])


# --- (d) An agent of our own, and a new task after one episode ------------------------------------------------------------


def learn(demos: psiphi.Demonstrations, size: Size) -> psiphi.PsiPhi:
    """PsiPhi-learning of a task of one's own, red and green alike, beside the demonstrations."""
    config = psiphi.PsiPhiConfig(itd=settings(size))
    agent = psiphi.PsiPhi(lambda: gymnasium.make(WORLD, task="R+G"), demos, config, seed=0)
    return agent.learn(size.learn_steps, study=size.study)


def one_episode(task: str, policy: Callable[[np.ndarray], int], seed: int) -> list[tuple[np.ndarray, int, float]]:
    """Steps of one episode: what was seen, done and paid."""
    env, steps = gymnasium.make(WORLD, task=task), []
    obs, _ = env.reset(seed=seed)
    over = False
    while not over:
        action = policy(obs)
        reached, reward, terminated, truncated, _ = env.step(action)
        steps.append((obs, action, float(reward)))
        obs, over = reached, terminated or truncated
    return steps


def mean_return(task: str, policy: Callable[[np.ndarray], int], episodes: int) -> float:
    return float(np.mean([sum(reward for *_, reward in one_episode(task, policy, 1000 + i)) for i in range(episodes)]))


# --- The tour -------------------------------------------------------------------------------------------------------------


def tour(out: Path, size: Size) -> dict[str, Any]:
    """Everything in order; the figures it prints, by name."""
    found: dict[str, Any] = {}
    random = np.random.default_rng(0)

    dataset = make_dataset(out, size.episodes)
    demos = psiphi.Demonstrations.read(dataset)
    print(f"(a) {dataset.name}: {demos}, agents {', '.join(map(str, demos.agents))}")

    print("(b) What do they want?")
    itd = infer(demos, size)
    itd.save(out / "itd")
    found["red"] = mean_return("R", itd.policy("red"), size.judged)
    found["random"] = mean_return("R", lambda obs: int(random.integers(coingrid.NUM_ACTIONS)), size.judged)
    print(f"    Red coins per episode: red's imitation {found['red']:.2f}, a random walker {found['random']:.2f}")

    policy = train_sb3(psiphi.load(out / "itd"), size.sb3_steps)
    found["sb3"] = None if policy is None else mean_return("R", policy, size.judged)
    if found["sb3"] is None:
        print("(c) Left out: stable-baselines3 is not installed.")
    else:
        print(f"(c) Stable-Baselines3's DQN, paid what red is inferred to be paid: {found['sb3']:.2f} red coins per episode")

    agent = learn(demos, size)
    found["R+G"] = mean_return("R+G", agent.predict, size.judged)
    print(f"(d) PsiPhi-learning on R+G: return {found['R+G']:.2f}")
    found["R-G before"] = mean_return("R-G", agent.predict, size.judged)
    agent.adapt(one_episode("R-G", lambda obs: agent.predict(obs, deterministic=False), seed=7))
    found["R-G after"] = mean_return("R-G", agent.predict, size.judged)
    print(f"    On R-G: {found['R-G before']:.2f}; after one episode with its rewards {found['R-G after']:.2f}")
    print(agent.explain(one_episode("R-G", agent.predict, seed=8)[0][0]))
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/tutorial"))
    parser.add_argument("--quick", action="store_true", help="only see that everything runs")
    args = parser.parse_args(arguments)
    tour(args.out, QUICK if args.quick else Size())


if __name__ == "__main__":
    main()
