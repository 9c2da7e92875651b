"""imitation's BC, SQIL or GAIL on one world from one seed, from the stored demonstrations: train, judge greedily, print one line of JSON.

    OMP_NUM_THREADS=1 python benchmarks/peers/imitation_peers.py bc CartPole-v1 --seed 0 [--scale 0.1]

Runs in an environment of its own (see run.py). imitation needs Gymnasium 0.29, older than psiphi's own requirement; CoinGrid runs
there all the same, with psiphi's source on PYTHONPATH.
"""
# pyright: reportMissingImports=false

import argparse
import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import demonstrations
import numpy as np
import sb3
import settings
import torch
from imitation.algorithms.adversarial.gail import GAIL
from imitation.algorithms.bc import BC
from imitation.algorithms.sqil import SQIL
from imitation.data.types import Trajectory
from imitation.data.wrappers import RolloutInfoWrapper
from imitation.rewards.reward_nets import BasicRewardNet
from imitation.util import logger
from imitation.util.networks import RunningNorm
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

DEMOS = Path(__file__).parent / "demos"


def trajectories(name: str) -> list[Trajectory]:
    episodes = demonstrations.split(demonstrations.load(DEMOS / settings.DEMONSTRATIONS[name]))
    return [Trajectory(obs, action.astype(np.int64), None, terminal) for obs, action, terminal in episodes]


def vector(name: str, task: str, count: int) -> VecEnv:
    """GAIL's bookkeeping wants each environment to report its whole episodes."""
    return DummyVecEnv([lambda: RolloutInfoWrapper(sb3.world(name, task)())] * count)


def quiet() -> Any:
    return logger.configure(format_strs=())


def train_bc(name: str, task: str, s: settings.Settings, seed: int) -> tuple[Any, int]:
    env = sb3.world(name, task)()
    policy = ActorCriticPolicy(env.observation_space, env.action_space, lambda _: torch.finfo(torch.float32).max, list(s["hidden"]))
    agent = BC(
        observation_space=env.observation_space, action_space=env.action_space, rng=np.random.default_rng(seed), policy=policy,
        demonstrations=trajectories(name), batch_size=s["batch"], optimizer_kwargs={"lr": s["learning_rate"]}, device="cpu",
        custom_logger=quiet(),
    )  # fmt: skip
    agent.train(n_batches=s["updates"], progress_bar=False)
    return agent.policy, 0


def train_sqil(name: str, task: str, s: settings.Settings, seed: int) -> tuple[Any, int]:
    agent = SQIL(
        venv=sb3.vector(name, task, 1), demonstrations=trajectories(name), policy="MlpPolicy", custom_logger=quiet(),
        rl_kwargs={**sb3.dqn_arguments(s), "seed": seed, "device": "cpu"},
    )  # fmt: skip
    agent.train(total_timesteps=s["steps"])
    return agent.policy, agent.rl_algo.num_timesteps


def train_gail(name: str, task: str, s: settings.Settings, seed: int) -> tuple[Any, int]:
    env, d = vector(name, task, s["num_envs"]), s["discriminator"]
    env.seed(seed)
    net = BasicRewardNet(env.observation_space, env.action_space, hid_sizes=d["hidden"], normalize_input_layer=RunningNorm)
    generator = PPO("MlpPolicy", env, seed=seed, device="cpu", **sb3.ppo_arguments(s | {"decay": "constant"}))
    if s["decay"] == "linear":
        # GAIL calls `learn` anew in every round, at whose end a schedule of stable-baselines3's reads 0: it would never learn anything.
        generator.lr_schedule = lambda _: (
            s["learning_rate"] * max(0.0, 1 - (generator.num_timesteps - s["num_envs"] * s["rollout"]) / s["steps"])
        )
    agent = GAIL(
        demonstrations=trajectories(name), demo_batch_size=d["batch"], n_disc_updates_per_round=d["updates"], venv=env, gen_algo=generator,
        reward_net=net, disc_opt_kwargs={"lr": d["learning_rate"]}, allow_variable_horizon=True, custom_logger=quiet(),
    )  # fmt: skip
    # It trains in whole rounds only, and refuses less than one.
    rounds = -(-s["steps"] // (s["num_envs"] * s["rollout"]))
    agent.train(rounds * s["num_envs"] * s["rollout"])
    return agent.policy, generator.num_timesteps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=("bc", "sqil", "gail"))
    parser.add_argument("world", choices=("CartPole-v1", "CoinGrid"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the budget, to try things out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    s, task = settings.settings(args.method, args.world, args.scale), settings.task(args.method, args.world)
    train = {"bc": train_bc, "sqil": train_sqil, "gail": train_gail}[args.method]
    wall, cpu = time.perf_counter(), time.process_time()
    policy, steps = train(args.world, task, s, args.seed)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    result = sb3.report(s, sb3.judge(policy, args.world, task, args.seed), steps, wall, cpu)
    result["versions"]["imitation"] = version("imitation")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
