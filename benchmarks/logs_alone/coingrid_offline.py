"""CoinGrid from logs alone, no step of one's own: what a planner earns on what is inferred, its STARC distance, and few-shot transfer.

    python benchmarks/logs_alone/coingrid_offline.py --seeds 0 --out results/logs-alone

Two demonstrators, who want red and green coins, as in the paper; boards are new in every episode. OUT/coingrid.json and OUT/coingrid.md are
written.

- *before*: what was handed out before version 0.2, a learned phi(s, a) times w.
- *behaviour*: the same model's behaviour, as a reward: what is handed out where cumulants are learned.
- *default*: what `psiphi.ITD().fit(logs).reward(agent)` hands out for boards: linear in counts of what is on them.
- *given*: the user says that coins can matter: `features` count how many of each colour a step takes from the board.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import run

import psiphi
from psiphi import Demonstrations
from psiphi.agents.itd import ITDConfig
from psiphi.api.itd import LEARNED, OFFLINE
from psiphi.envs import coingrid, coingrid_exact
from psiphi.experiments.measures import transfer
from psiphi.loops.few_shot import FewShotConfig
from psiphi.worlds import Recorded
from psiphi.worlds.coingrid import record, weights_of

AGENTS, WANTS = ("red", "green"), ("R", "G")
GAMMA = 0.9


def as_logs(recording: Recorded) -> Demonstrations:
    """The recording as somebody would log it: observations, actions, who."""
    obs, actions, who, ended = [], [], [], []
    steps = jax.tree.map(np.asarray, recording.demos.steps)
    for k, agent in enumerate(AGENTS):
        episode = np.asarray(recording.episode)[k]
        for e in range(episode.max() + 1):
            rows = np.flatnonzero(episode == e)
            obs.append(np.concatenate([steps.obs[k, rows], steps.next_obs[k, rows[-1:]]]))
            actions.append(steps.action[k, rows])
            ended.append(bool(steps.discount[k, rows[-1]] == 0))
            who.append(agent)
    truncated = [not end for end in ended]
    return Demonstrations.from_lists(obs, actions, who, terminated=ended, truncated=truncated, num_actions=coingrid_exact.NUM_ACTIONS)


def coins_taken(obs: Any, action: Any, next_obs: Any, terminated: Any) -> Any:
    """How many coins of each colour a step takes from the board, whether it ends the task, and a constant."""
    taken = (obs[..., :3].astype("float32") - next_obs[..., :3].astype("float32")).sum(axis=(1, 2))
    end = terminated.astype("float32")[:, None]
    return jnp.concatenate([jnp.asarray(taken), jnp.asarray(end), jnp.ones_like(jnp.asarray(end))], axis=1)


def table(world: coingrid.CoinGridConfig, reward: Any, cells: Any) -> np.ndarray:
    """[masks, poses, 3]: a reward of every action in every state of a board."""
    seen = np.asarray(coingrid_exact.all_observations(world, cells))
    moved = jax.tree.map(np.asarray, coingrid_exact.moves(world, cells))
    shape = moved.mask.shape
    here = np.broadcast_to(seen[:, :, None], (*shape, *seen.shape[2:])).reshape(-1, *seen.shape[2:])
    there = seen[moved.mask, moved.pose].reshape(here.shape)
    action = np.broadcast_to(np.arange(shape[2]), shape).ravel()
    return np.asarray(reward(here, action, there, moved.discount.ravel() == 0), np.float32).reshape(shape)


def canonical(world: coingrid.CoinGridConfig, cells: Any, reward: np.ndarray) -> np.ndarray:
    """Value-adjusted levelling under the uniform policy, in states that can occur; see `measures.starc`."""
    uniform = jnp.full(reward.shape, 1 / reward.shape[-1])
    q = np.asarray(coingrid_exact.evaluate_table(world, cells, uniform, jnp.asarray(reward)[..., None], GAMMA))[..., 0]
    level = q - q.mean(axis=-1, keepdims=True)
    return level[np.asarray(coingrid_exact.reachable(world, cells))]


def measured(world: coingrid.CoinGridConfig, rewards: dict[str, Any], seed: int, boards: int) -> dict[str, dict[str, float]]:
    """Of each agent's reward: its planner's true return over the optimum, and STARC, means over boards that no log shows."""
    starts = jax.vmap(lambda key: coingrid.reset(world, key))(jax.random.split(jax.random.key(9_000 + seed), boards))
    found: dict[str, dict[str, float]] = {}
    for k, agent in enumerate(AGENTS):
        w = jnp.asarray(weights_of(WANTS[k]))
        earned, best, inferred, true = 0.0, 0.0, [], []
        for b in range(boards):
            start = jax.tree.map(lambda x, b=b: x[b], starts)
            truth = np.asarray(coingrid_exact.reward_table(world, start.cells, w))
            guess = table(world, rewards[agent], start.cells)
            for reward, add in ((guess, "earned"), (truth, "best")):
                plan = coingrid_exact.plan(world, start.cells, jnp.asarray(reward), GAMMA)
                got = float(coingrid_exact.evaluate_policy(world, start, jnp.argmax(plan, axis=-1)) @ w)
                earned, best = (earned + got, best) if add == "earned" else (earned, best + got)
            inferred.append(canonical(world, start.cells, guess))
            true.append(canonical(world, start.cells, truth))
        one, other = np.concatenate(inferred), np.concatenate(true)
        distance = float(np.linalg.norm(one / np.linalg.norm(one) - other / np.linalg.norm(other)) / 2)
        found[agent] = {"planner": earned / best, "starc": distance}
    return found


def fitted(
    logs: Demonstrations, seed: int, config: ITDConfig | None, features: Any = None, updates: int | None = None
) -> tuple[psiphi.ITD, float]:
    """A model, and what it took; no config is the default."""
    began = time.process_time()
    return psiphi.ITD(config, seed=seed, features=features, updates=updates).fit(logs, progress=False), time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=run.seeds_of, default="0")
    parser.add_argument("--episodes", type=int, default=500, help="of each demonstrator")
    parser.add_argument("--updates", type=int, default=None, help="of each fit; the defaults unless told")
    parser.add_argument("--boards", type=int, default=32)
    parser.add_argument("--repetitions", type=int, default=64, help="of each few-shot task")
    parser.add_argument("--out", type=Path, default=Path("results/logs-alone"))
    args = parser.parse_args()
    cells = []
    for seed in args.seeds:
        world = coingrid.CoinGridConfig()
        logs = as_logs(record(world, WANTS, args.episodes, seed))
        learned, learned_s = fitted(logs, seed, LEARNED, updates=args.updates)
        default, default_s = fitted(logs, seed, None, updates=args.updates)
        given, given_s = fitted(logs, seed, dataclasses.replace(OFFLINE, cumulants="given"), coins_taken, args.updates)
        asked = {
            "before: learned phi(s, a).w": (learned, learned_s, lambda agent, m=learned: m.reward(agent, "wants", 0.0)),
            "behaviour": (learned, learned_s, lambda agent, m=learned: m.reward(agent)),
            "default: counts, plain": (default, default_s, lambda agent, m=default: m.reward(agent, "wants", 0.0)),
            "default: counts, as handed out": (default, default_s, lambda agent, m=default: m.reward(agent)),
            "given coins, plain": (given, given_s, lambda agent, m=given: m.reward(agent, "wants", 0.0)),
            "given coins, as handed out": (given, given_s, lambda agent, m=given: m.reward(agent)),
        }
        test = as_logs(record(world, WANTS, 100, seed, "test"))
        for name, (model, seconds, reward_of) in asked.items():
            figures = measured(world, {agent: reward_of(agent) for agent in AGENTS}, seed, args.boards)
            key = jax.random.key(seed)
            few = transfer(world, model._trained().model, FewShotConfig(), key, shots=5, repetitions=args.repetitions)
            row = {"seed": seed, "reward": name, "figures": figures, "few_shot": few, "accuracy": model.accuracy(test)}
            row["handed out"] = {agent: f"{reward_of(agent).form}, caution {reward_of(agent).caution:g}" for agent in AGENTS}
            cells.append(row | {"seconds": round(seconds, 1), "steps": len(logs)} | run.origin_of([]))
            print(json.dumps(cells[-1], default=str)[:400], flush=True)
            write(args, cells)


def write(args: argparse.Namespace, cells: list[dict[str, Any]]) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "coingrid.json").write_text(json.dumps(cells, indent=1, default=str) + "\n", encoding="utf-8")
    (args.out / "coingrid.md").write_text(page(args, cells), encoding="utf-8")


def page(args: argparse.Namespace, cells: list[dict[str, Any]]) -> str:
    heading = ["reward", *(f"planner, {a}" for a in AGENTS), *(f"STARC, {a}" for a in AGENTS), "few-shot: first", "after 5", "accuracy"]
    lines = [
        "# CoinGrid from logs alone",
        "",
        f"Two demonstrators, {args.episodes} episodes each, no steps of one's own; seeds {sorted({cell['seed'] for cell in cells})},",
        f"means over them. *planner*: true return of an exact planner on the reward over the optimum, {args.boards} boards that no log",
        "shows. *few-shot*:",
        "normalised return, mean of the four tasks of table 2, in the first episode and after five. *accuracy*: of held-out actions.",
        "Command: `python benchmarks/logs_alone/coingrid_offline.py`; "
        f"commit {cells[0]['commit']}; every number: [`coingrid.json`](coingrid.json).",
        "",
        f"| {' | '.join(heading)} |",
        f"| --- |{' ---: |' * (len(heading) - 1)}",
    ]
    for name in dict.fromkeys(cell["reward"] for cell in cells):
        some = [cell for cell in cells if cell["reward"] == name]
        mean = lambda read, some=some: f"{np.mean([read(cell) for cell in some]):.2f}"  # noqa: E731
        row = [mean(lambda c, a=a, f=f: c["figures"][a][f]) for f in ("planner", "starc") for a in AGENTS]
        row += [mean(lambda c, when=when: np.mean(list(c["few_shot"][when].values()))) for when in ("first", "after")]
        lines.append(f"| {' | '.join([name, *row, mean(lambda c: c['accuracy'])])} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
