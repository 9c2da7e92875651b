"""stable-baselines3's DQN or PPO on one world from one seed: train, judge greedily, print one line of JSON.

    OMP_NUM_THREADS=1 python benchmarks/peers/sb3.py dqn CartPole-v1 --seed 0 [--scale 0.1]

Runs in an environment of its own (see run.py), with stable-baselines3 and, for CoinGrid, psiphi as any of its users would have it.
"""
# pyright: reportMissingImports=false

import argparse
import json
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import settings
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, VecNormalize

EVALUATION_SEED = 1_000_000


def world(name: str, task: str) -> Callable[[], gymnasium.Env]:
    if name != "CoinGrid":
        return lambda: gymnasium.make(name)
    import psiphi  # noqa: F401 - registers CoinGrid

    return lambda: gymnasium.make("psiphi/CoinGrid-v0", task=task)


def vector(name: str, task: str, count: int) -> VecEnv:
    return VecMonitor(DummyVecEnv([world(name, task)] * count))


def dqn_arguments(s: settings.Settings) -> dict[str, Any]:
    """Our words in stable-baselines3's DQN."""
    return {
        "learning_rate": s["learning_rate"],
        "batch_size": s["batch"],
        "buffer_size": s["replay"],
        "learning_starts": s["warmup"],
        "gamma": s["gamma"],
        "target_update_interval": s["target_steps"],
        "train_freq": s["rollout"],
        "gradient_steps": s["updates_per_rollout"],
        "exploration_fraction": s["epsilon_fraction"],
        "exploration_final_eps": s["epsilon_end"],
        "policy_kwargs": {"net_arch": list(s["hidden"])},
    }


def ppo_arguments(s: settings.Settings) -> dict[str, Any]:
    """Our words in stable-baselines3's PPO. Its activation stays tanh, its default, for which the zoo's values were tuned."""

    def falling(x: float) -> Callable[[float], float]:
        return lambda left: left * x

    return {
        "learning_rate": falling(s["learning_rate"]) if s["decay"] == "linear" else s["learning_rate"],
        "n_steps": s["rollout"],
        "batch_size": s["minibatch"],
        "n_epochs": s["epochs"],
        "gamma": s["gamma"],
        "gae_lambda": s["lambda"],
        "clip_range": falling(s["clip_ratio"]) if s["clip_ratio_decays"] else s["clip_ratio"],
        "ent_coef": s["entropy"],
        "policy_kwargs": {"net_arch": list(s["hidden"])},
    }


def learner(method: str, name: str, task: str, s: settings.Settings, seed: int, network: dict[str, Any] | None = None) -> BaseAlgorithm:
    """The agent in its world; `network` are further arguments of its network."""
    arguments = dqn_arguments(s) if method == "dqn" else ppo_arguments(s)
    arguments["policy_kwargs"] |= network or {}
    if method == "dqn":
        return DQN("MlpPolicy", vector(name, task, 1), seed=seed, device="cpu", **arguments)
    env = vector(name, task, s["num_envs"])
    env = VecNormalize(env, gamma=s["gamma"]) if s["normalised"] else env
    return PPO("MlpPolicy", env, seed=seed, device="cpu", **arguments)


def judge(policy: Any, name: str, task: str, seed: int, normaliser: VecNormalize | None = None) -> list[float]:
    """Returns of whole episodes, greedily; what was learned of the observations' scale is used and not learned further."""
    env = vector(name, task, 1)
    env.seed(EVALUATION_SEED + seed)
    if normaliser is not None:
        statistics, env = normaliser.obs_rms, VecNormalize(env, training=False, norm_reward=False)
        env.obs_rms = statistics
    returns, _ = evaluate_policy(policy, env, settings.EVALUATION_EPISODES, deterministic=True, return_episode_rewards=True)
    return [float(x) for x in returns]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=("dqn", "ppo"))
    parser.add_argument("world", choices=("CartPole-v1", "Acrobot-v1", "CoinGrid"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the budget, to try things out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    s, task = settings.settings(args.method, args.world, args.scale), settings.task(args.method, args.world)
    agent = learner(args.method, args.world, task, s, args.seed)
    wall, cpu = time.perf_counter(), time.process_time()
    agent.learn(s["steps"])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    returns = judge(agent, args.world, task, args.seed, agent.get_vec_normalize_env())
    print(json.dumps(report(s, returns, agent.num_timesteps, wall, cpu)))


def report(s: settings.Settings, returns: list[float], steps: int, wall: float, cpu: float) -> dict[str, Any]:
    """What a script says of its run."""
    packages = ("stable-baselines3", "torch", "gymnasium", "numpy")
    versions = {name: version(name) for name in packages} | {"python": platform.python_version()}
    return {
        "return": float(np.mean(returns)), "returns": returns, "steps": steps, "wall_s": round(wall, 3), "cpu_s": round(cpu, 3),
        "versions": versions, "settings": s,
    }  # fmt: skip


if __name__ == "__main__":
    main()
