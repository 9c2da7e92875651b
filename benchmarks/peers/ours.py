"""psiphi's agent on one world from one seed with the peers' settings: train, judge, print one line of JSON.

    python benchmarks/peers/ours.py dqn CartPole-v1 --seed 0 [--scale 0.1]

The same network sizes, batches, numbers of steps and updates as the peer's; what our agents could do beyond that on CoinGrid (the
egocentric torso, the mirror) is switched off. PPO, BC and GAIL have the peers' tanh and orthogonal layers. Where we
differ: PPO normalises neither observations nor rewards and its clip ratio does not decay; BC has a falling rate and a moving average;
SQIL's backup is soft, with our defaults; GAIL's discriminator sees observations as they are, imitation's normalises them.
Compiling is timed apart from training.
"""

import argparse
import json
import math
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ["NPROC"] = "1"  # the peers have one thread, so we have one; before JAX is imported
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import demonstrations
import jax
import jax.numpy as jnp
import numpy as np
import settings

from psiphi.agents import bc, dqn, gail, ppo, sqil
from psiphi.envs import classic, coingrid
from psiphi.experiments import cells
from psiphi.loops import scan
from psiphi.loops.evaluate import rollout_returns
from psiphi.loops.scan import LoopConfig
from psiphi.types import Agent, Demonstration, Demos, Env, Pace

DEMOS = Path(__file__).parent / "demos"


class Cell(NamedTuple):
    """What is trained: an agent (in `env`; `offline` ones only meet it to be judged) by a loop, on demonstrations if it needs any."""

    env: Env
    agent: Agent
    loop: LoopConfig
    demos: Demos | None
    config: Any
    offline: bool = False


def world(name: str, task: str) -> Env:
    if name == "CoinGrid":
        return coingrid.make(coingrid.CoinGridConfig(), coingrid.task_weights(task))
    return {"CartPole-v1": classic.cartpole, "Acrobot-v1": classic.acrobot}[name]()


def demos(name: str) -> Demos:
    """The world's demonstrations, of one demonstrator."""
    steps = demonstrations.steps(demonstrations.load(DEMOS / settings.DEMONSTRATIONS[name]))
    return Demos(Demonstration(*(jnp.asarray(x)[None] for x in steps)), jnp.array([len(steps.action)], jnp.int32))


# --- The settings in our words -------------------------------------------------------------------------------------------


def dqn_config(s: settings.Settings) -> dqn.DQNConfig:
    per_step = s["updates_per_rollout"] / s["rollout"]
    return dqn.DQNConfig(
        torso="mlp", torso_hidden=s["hidden"], head_hidden=(), gamma=s["gamma"], n_step=1, double=False, huber=1.0,
        learning_rate=s["learning_rate"], clip=10.0, batch=s["batch"], replay_size=s["replay"],
        epsilon_start=1.0, epsilon_end=s["epsilon_end"], epsilon_steps=round(s["epsilon_fraction"] * s["steps"]),
        # The peer copies between its blocks of updates, never within one.
        ema=0.0, target_period=max(s["updates_per_rollout"], round(s["target_steps"] * per_step)), mirror=False,
    )  # fmt: skip


def dqn_loop(s: settings.Settings, seed: int) -> LoopConfig:
    blank = LoopConfig(rollout_length=s["rollout"], num_envs=1, prefill_steps=s["warmup"])
    iterations = max(1, s["steps"] // s["rollout"] - blank.prefill_rollouts)
    return replace(blank, iterations=iterations, chunk=iterations, updates_per_rollout=s["updates_per_rollout"], seed=seed)


def ppo_config(s: settings.Settings) -> ppo.PPOConfig:
    size = s["num_envs"] * s["rollout"]
    config = ppo.PPOConfig(
        torso="tanh", torso_hidden=s["hidden"], head_hidden=(), share_torso=False, gamma=s["gamma"], lambda_=s["lambda"],
        rollout_length=s["rollout"], epochs=s["epochs"], minibatches=size // s["minibatch"],
        clip_ratio=s["clip_ratio"], learning_rate=s["learning_rate"], decay=s["decay"], clip=0.5,
        entropy=s["entropy"], value_weight=0.5, mirror=False,
    )  # fmt: skip
    return replace(config, **s.get("ours", {}))


def ppo_loop(s: settings.Settings, seed: int) -> LoopConfig:
    iterations = math.ceil(s["steps"] / (s["num_envs"] * s["rollout"]))
    return LoopConfig(iterations=iterations, chunk=iterations, num_envs=s["num_envs"], rollout_length=s["rollout"], seed=seed)


def bc_config(s: settings.Settings) -> bc.BCConfig:
    return bc.BCConfig(torso="tanh", torso_hidden=s["hidden"], learning_rate=s["learning_rate"], batch=s["batch"], mirror=False)


def sqil_config(s: settings.Settings) -> sqil.SQILConfig:
    """The softmax alone explores, unless `ours`, the settings of our side alone, say otherwise."""
    own = sqil.default_dqn()
    changes = {"epsilon_start": own.epsilon_start, "epsilon_end": own.epsilon_end} | s["ours"]
    return sqil.SQILConfig(dqn=replace(dqn_config(s), **changes), demonstrator=0, greedy=True)


def gail_config(s: settings.Settings) -> gail.GAILConfig:
    d = s["discriminator"]
    return gail.GAILConfig(
        ppo=ppo_config(s), demonstrator=0, torso="mlp", torso_hidden=d["hidden"][:1], head_hidden=d["hidden"][1:],
        learning_rate=d["learning_rate"], steps=d["updates"], batch=d["batch"], mirror=False,
    )  # fmt: skip


def pace(loop: LoopConfig) -> Pace:
    return Pace(loop.num_envs, loop.iterations * loop.updates_per_rollout)


def cell(method: str, name: str, s: settings.Settings, seed: int) -> Cell:
    env = world(name, settings.task(method, name))
    if method == "dqn":
        config, loop = dqn_config(s), dqn_loop(s, seed)
        return Cell(env, dqn.make(config, env.spec, 0, pace(loop)), loop, None, config)
    if method == "ppo":
        config, loop = ppo_config(s), ppo_loop(s, seed)
        return Cell(env, ppo.make(config, env.spec, 0, pace(loop)), loop, None, config)
    if method == "sqil":
        config, loop = sqil_config(s), dqn_loop(s, seed)
        return Cell(env, sqil.make(config, env.spec, 1, pace(loop)), loop, demos(name), config)
    if method == "gail":
        config, loop = gail_config(s), ppo_loop(s, seed)
        return Cell(env, gail.make(config, env.spec, 1, pace(loop)), loop, demos(name), config)
    config, loop = bc_config(s), LoopConfig(iterations=s["updates"], chunk=s["updates"], seed=seed)
    return Cell(env, bc.make(config, env.spec, 1, pace(loop)), loop, demos(name), config, offline=True)


# --- A run ---------------------------------------------------------------------------------------------------------------


class Trained(NamedTuple):
    """The agent's state in the end and what it took; compiling is not part of `wall_s` and `cpu_s`."""

    state: Any
    wall_s: float
    cpu_s: float
    compile_s: float


def train(what: Cell) -> Trained:
    """The loop's own programs, compiled before the clock starts."""
    program: Any = scan.compile_run(None if what.offline else what.env, what.agent, what.loop)
    keys = jnp.stack([jax.random.key(seed) for seed in what.loop.seeds])
    begun = time.perf_counter()
    begin = program.begin.lower(keys, what.demos).compile()
    chunk = program.chunk.lower(jax.eval_shape(program.begin, keys, what.demos), what.loop.iterations).compile()
    compiled, cpu = time.perf_counter(), time.process_time()
    carry, _ = chunk(begin(keys, what.demos), what.loop.iterations)
    jax.block_until_ready(carry)
    done = time.perf_counter()
    state = jax.tree.map(lambda x: x[0], carry.agent)
    return Trained(state, done - compiled, time.process_time() - cpu, compiled - begun)


def judge(what: Cell, state: Any, seed: int) -> list[float]:
    """Returns of whole episodes of the policy that is to be judged."""

    def play(state: Any, key: jax.Array) -> jax.Array:
        policy = lambda obs, key: what.agent.policy(state, obs, key)  # noqa: E731
        return rollout_returns(what.env, policy, key, settings.EVALUATION_EPISODES, classic.MAX_STEPS)["returns"]

    return np.asarray(jax.jit(play)(state, jax.random.fold_in(jax.random.key(seed), 1))).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=tuple(settings.METHODS))
    parser.add_argument("world", choices=("CartPole-v1", "Acrobot-v1", "CoinGrid"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the budget, to try things out")
    args = parser.parse_args()
    s = settings.settings(args.method, args.world, args.scale)
    what = cell(args.method, args.world, s, args.seed)
    trained = train(what)
    returns = judge(what, trained.state, args.seed)
    steps = 0 if what.offline else what.loop.env_steps(what.loop.iterations)
    result = {
        "return": float(np.mean(returns)), "returns": returns, "steps": steps, "wall_s": round(trained.wall_s, 3),
        "cpu_s": round(trained.cpu_s, 3), "compile_s": round(trained.compile_s, 3), "versions": cells.versions(), "settings": s,
        "agent": asdict(what.config),
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
