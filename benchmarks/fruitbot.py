"""FruitBot: how good its demonstrators are, how well they are imitated from pixels, and how fast it all is.

    python benchmarks/fruitbot.py demonstrators [--episodes 64] [--seed 0]
    python benchmarks/fruitbot.py imitation --method bc --episodes 24 [--seed 0]
    python benchmarks/fruitbot.py reward [--settings '{"sparsity": 0.6}'] [--episodes 72] [--seed 0]
    python benchmarks/fruitbot.py tastes --model RUN [--episodes 32]
    python benchmarks/fruitbot.py why --model RUN [--episodes 32]
    python benchmarks/fruitbot.py speed [--seconds 20]
    python benchmarks/fruitbot.py peer [--seconds 60]       # pip install torch==2.13.0 stable-baselines3==2.9.2

Each adds a line to a file under results/fruitbot, with its command, commit and versions. What is measured:

- *demonstrators*: fruits, objects, presents and completion of an episode, and the return by three tasks: the game's, the game's with
  objects at -1, and the demonstrator's own taste.
- *imitation*: the method clones two demonstrators (fruits-and-objects, objects-only) from so many recorded episodes of each, in the centred
  view without backgrounds, with the world's default settings. On 8 held-out episodes of each: the share of all actions predicted, and the
  share of *moves* predicted, of steps whose action is not to stay. Then 32 episodes of each clone, greedy: completion, fruits, objects and
  the return by the demonstrator's own taste.
- *reward*: ITD as in table 1's column, with its settings or changed ones: how the rewards that it infers go with the true ones, on levels
  that are in no demonstration, played by the two demonstrators, by the expert and at random: step by step, in windows of 20 steps, and by
  whole episodes; and what it pays on average for a step with a fruit, with an object, into a wall, to the end, and any other.
- *tastes*: a trained model of psiphi meets three tastes that it was not trained for, by rewards alone, without a gradient: fruits only,
  objects only, neither. What it collects in the episode in which it first meets them, after that one and after ten. Beside it stand
  the model that goes on as before, and each of its imitations, which no reward changes.
- *why*: what a trained model of psiphi earns on its task by GPI with more and less trust in the demonstrators, by its own head alone and by
  imitating each demonstrator; the share of steps in which GPI follows each head, the value it then expects, the discounted return that
  came, and the correlation of the two. Also w_ego. Clones that guided the ego are not in a model, so GPI is without them.
- *speed*: steps and updates per second of PPO and PsiPhi-learning, and the share of the time that goes into the environments, acting and
  learning. Compilation is left out.
- *peer*: all of PPO's training beside that of stable-baselines3, steps per second: the same games, network, rollouts, epochs and
  minibatches, one thread each. They take turns. What stable-baselines3 takes for steps includes those on which a game begins anew.
"""
# pyright: reportMissingImports=false

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path(__file__).parents[1] / "results" / "fruitbot"
SHOWN = ("fruits-and-objects", "objects-only")
HELD_OUT, PLAYED = 8, 32
"""Held-out episodes of each demonstrator, and episodes of each clone."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("demonstrators", "imitation", "reward", "tastes", "why", "speed", "peer"))
    parser.add_argument("--model", type=Path, help="a run of psiphi train psiphi --env fruitbot")
    parser.add_argument("--method", default="bc", choices=("bc", "itd"))
    parser.add_argument("--settings", type=json.loads, default={}, help="of reward: changes of ITD's settings, as JSON")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--updates", type=int, help="updates of the training; the world's own number without")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args()


# --- Demonstrators -------------------------------------------------------------------------------------------------------


def demonstrators(options: argparse.Namespace) -> dict[str, Any]:
    from psiphi.envs.fruitbot import GAME, Counts, FruitBotConfig, paid, weights_of
    from psiphi.envs.fruitbot_scripts import TASTES
    from psiphi.worlds import WORLDS
    from psiphi.worlds.fruitbot import MILD, played

    found = {}
    for k, name in enumerate(TASTES):
        episodes = played(FruitBotConfig(), name, options.episodes, options.seed + k)
        sums = np.stack([one["features"].sum(axis=0) for one in episodes])
        wants = WORLDS["fruitbot"].wants
        assert wants is not None
        tasks = {"game": GAME, "objects at -1": MILD, "own taste": weights_of(wants(FruitBotConfig(), name))}
        returns = {task: paid(weights, Counts(*sums[:, :3].T)) for task, weights in tasks.items()}
        found[name] = {
            **dict(zip(("fruits", "objects", "presents", "completion"), map(float, sums.mean(axis=0)), strict=True)),
            "steps": float(np.mean([len(one["action"]) for one in episodes])),
            "stays": float(np.mean(np.concatenate([one["action"] for one in episodes]) == FruitBotConfig().stay)),
            **{f"return, {task}": float(x.mean()) for task, x in returns.items()},
            **{f"return, {task}, sem": float(x.std(ddof=1) / len(x) ** 0.5) for task, x in returns.items()},
        }
    return {"episodes": options.episodes, "found": found}


# --- Imitation -----------------------------------------------------------------------------------------------------------


def imitation(options: argparse.Namespace) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    from psiphi import playing, replay, training
    from psiphi.agents import ALGORITHMS
    from psiphi.worlds import WORLDS

    world = WORLDS["fruitbot"]
    assert world.record is not None and world.wants is not None
    changes = {"demonstrators": SHOWN, "episodes": options.episodes, "seed": options.seed}
    changes |= {} if options.updates is None else {"updates": options.updates}
    run = training.default_run(options.method, "fruitbot", **changes)
    trained = training.train(run, progress=False)
    held = world.record(run.world, SHOWN, HELD_OUT, options.seed, "test").demos
    place = playing.Where(world, run.world, "", SHOWN)
    imitates = ALGORITHMS[run.algorithm].imitates
    assert imitates is not None and trained.demos is not None
    found = {}
    for k, name in enumerate(SHOWN):
        policy = jax.jit(imitates(run.agent, trained.state, k))
        count = int(held.count[k])
        steps = replay.steps_at(held, jnp.full(count, k), jnp.arange(count))
        said = np.concatenate([np.asarray(policy(steps.obs[i : i + 512], jax.random.key(0))) for i in range(0, count, 512)])
        did = np.asarray(steps.action)
        found[name] = {
            "demonstrated": int(trained.demos.count[k]),
            "accuracy": float(np.mean(said == did)),
            "accuracy on moves": float(np.mean((said == did)[did != run.world.stay])),
            **playing.figures(place, policy, options.seed, PLAYED, world.wants(run.world, name)),
        }
    return {
        "method": options.method, "episodes": options.episodes, "updates": run.updates, "wall_s": round(trained.wall_s, 1), "found": found,
    }  # fmt: skip


# --- Inferred rewards ----------------------------------------------------------------------------------------------------

WINDOW = 20


def reward(options: argparse.Namespace) -> dict[str, Any]:
    import dataclasses

    import jax

    from psiphi import training
    from psiphi.agents import ALGORITHMS, itd
    from psiphi.envs.fruitbot import Counts, paid, weights_of
    from psiphi.worlds import WORLDS
    from psiphi.worlds.fruitbot import played

    run = training.default_run("itd", "fruitbot", demonstrators=SHOWN, episodes=options.episodes, seed=options.seed)
    agent = dataclasses.replace(run.agent, **{name: tuple(x) if isinstance(x, list) else x for name, x in options.settings.items()})
    run = dataclasses.replace(run, agent=agent, updates=options.updates or run.updates)
    trained = training.train(run, progress=False)
    net = ALGORITHMS["itd"].deployed(agent, trained.state)
    w, wants = np.asarray(itd.preferences(agent, net.w)), WORLDS["fruitbot"].wants
    assert wants is not None
    inferred = jax.jit(lambda *step: net.cumulants(*step))
    found: dict[str, dict[str, Any]] = {name: {} for name in SHOWN}
    episodes: list[tuple[Any, ...]] = []
    for k, player in enumerate((*SHOWN, "expert", "random")):
        for one in played(run.world, player, HELD_OUT, 10_000 + options.seed + k):
            frames, steps = one["frames"], len(one["action"])
            phi = np.asarray(_in_parts(inferred, frames[:-1], one["action"], frames[1:], one["discount"].astype(np.float32)))[:steps]
            episodes.append((phi, one["features"][:, :4], one["discount"] == 0))
    for k, name in enumerate(SHOWN):
        weights = weights_of(wants(run.world, name))
        rows = [(phi @ w[k], np.asarray(paid(weights, Counts(*counts[:, :3].T))), counts, ends) for phi, counts, ends in episodes]
        said, true, counts, ends = (np.concatenate(x) for x in zip(*rows, strict=True))
        kinds = {
            "fruit": counts[:, 0] > 0, "object": counts[:, 1] > 0, "end": counts[:, 3] > 0, "wall": ends & (counts[:, 3] == 0),
        }  # fmt: skip
        kinds["other"] = ~np.logical_or.reduce(list(kinds.values()))
        found[name] = {
            "correlation of steps": _correlation(said, true),
            "correlation of windows": _correlation(*(np.concatenate([_windows(row[i]) for row in rows]) for i in (0, 1))),
            "correlation of episodes": _correlation(*(np.array([row[i].sum() for row in rows]) for i in (0, 1))),
            "spread": float(said.std()),
            **{f"pays, {kind}": float(said[which].mean()) if which.any() else None for kind, which in kinds.items()},
        }
    return {
        "settings": options.settings, "episodes": options.episodes, "updates": run.updates, "wall_s": round(trained.wall_s, 1),
        "found": found,
    }  # fmt: skip


def _in_parts(function: Any, *columns: np.ndarray) -> np.ndarray:
    """Of all steps, in parts of one length, so that one program does."""
    length, count = 256, len(columns[0])
    short = -count % length
    padded = [np.concatenate([x, np.repeat(x[-1:], short, axis=0)]) for x in columns]
    return np.concatenate([np.asarray(function(*(x[i : i + length] for x in padded))) for i in range(0, count, length)])


def _windows(x: np.ndarray) -> np.ndarray:
    return x[: len(x) // WINDOW * WINDOW].reshape(-1, WINDOW).sum(axis=1)


def _correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    return float(np.corrcoef(x, y)[0, 1]) if x.std() > 0 and y.std() > 0 else None


# --- Other tastes --------------------------------------------------------------------------------------------------------

NEW_TASTES = {
    "fruits only": "fruit=1,object=-1,finish=10", "objects only": "fruit=-1,object=1,finish=10", "neither": "fruit=-1,object=-1,finish=10",
}  # fmt: skip


def tastes(options: argparse.Namespace) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    from psiphi import playing

    if options.model is None:
        raise SystemExit("tastes needs --model, the directory of a trained model.")
    loaded = playing.read(options.model)
    assert loaded.known is not None
    known = loaded.known
    alone = {f"imitating {name}": partial(_imitation, known, known.model.w[-1], k) for k, name in enumerate(known.agents)}
    everyone = jnp.zeros(len(known.agents) + 1)
    alone["as before"] = partial(_gpi, known, known.model.w[-1], 0.0, everyone)
    names = (*map(str, known.agents), "ego")
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, task in NEW_TASTES.items():
        place = playing.where(loaded, "fruitbot", task)
        few = playing.few_shot_of(loaded)
        one, ten = (playing.adapted(loaded, place, few, options.seed, shots=shots, repetitions=options.episodes) for shots in (1, 10))
        assert one.features is not None and ten.features is not None
        met = {
            "first episode": (one.first, one.features[0]),
            "after one": (one.after, one.features[1]),
            "after ten": (ten.after, ten.features[1]),
        }
        found[name] = {
            when: {
                "return": float(np.mean(returns)),
                "sem": float(np.std(returns, ddof=1) / len(returns) ** 0.5),
                **dict(zip(("fruits", "objects", "presents", "completion"), map(float, np.mean(counts, axis=0)), strict=True)),
            }
            for when, (returns, counts) in met.items()
        }
        found[name] |= {way: _followed(place, jax.jit(act), options, known.gamma, names) for way, act in alone.items()}
    return {"episodes": options.episodes, "found": found}


# --- Why -----------------------------------------------------------------------------------------------------------------

TRUSTS = (0.0, 0.05, 0.1, 0.2, 0.5, 2.0)


def why(options: argparse.Namespace) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    from psiphi import playing

    if options.model is None:
        raise SystemExit("why needs --model, the directory of a trained model.")
    loaded = playing.read(options.model)
    assert loaded.known is not None
    known, agents = loaded.known, len(loaded.known.agents)
    place, w = playing.where(loaded), known.model.w[-1]
    gpi, imitation = partial(_gpi, known, w), partial(_imitation, known, w)
    everyone, mine = jnp.zeros(agents + 1), jnp.full(agents + 1, -jnp.inf).at[-1].set(0.0)
    ways = {f"GPI, trust {trust}": partial(gpi, trust, everyone) for trust in (TRUSTS if agents else (0.0,))}
    ways |= {"its own head": partial(gpi, 0.0, mine)}
    ways |= {f"imitating {name}": partial(imitation, k) for k, name in enumerate(known.agents)}
    names = (*map(str, known.agents), "ego")
    return {
        "episodes": options.episodes,
        "w_ego": np.asarray(w).round(4).tolist(),
        "found": {name: _followed(place, jax.jit(way), options, known.gamma, names) for name, way in ways.items()},
    }


def _gpi(known: Any, w: Any, trust: float, heads: Any, obs: Any) -> Any:
    """Action, head and its value of each state; `heads` are those that may be followed."""
    import jax
    import jax.numpy as jnp

    from psiphi import model as models
    from psiphi.gpi import Trust

    model = known.model._replace(trust=Trust(trust, known.beta)) if known.agents else known.model  # without others there is no one to trust

    def one(psi: Any) -> Any:
        scores = models.policy_values(model, psi, lambda p: p @ w) + heads[:, None]
        head, action = jnp.unravel_index(jnp.argmax(scores), scores.shape)
        return action, head, jnp.min(psi[head, :, action] @ w)

    return jax.vmap(one)(models.psi(known.model, obs))


def _imitation(known: Any, w: Any, k: int, obs: Any) -> Any:
    """What demonstrator `k` would do, that head, and what it is worth by the preferences `w`."""
    import jax
    import jax.numpy as jnp

    from psiphi import model as models

    def one(psi: Any) -> Any:
        action = jnp.argmax(jnp.mean(psi[k] @ known.model.w[k], axis=0))
        return action, k, jnp.min(psi[k, :, action] @ w)

    return jax.vmap(one)(models.psi(known.model, obs))


def _followed(place: Any, way: Any, options: argparse.Namespace, gamma: float, names: tuple[str, ...]) -> dict[str, float]:
    """One episode in each of some games, and what was expected and came in it."""
    from psiphi.loops import gym
    from psiphi.training import place_of

    stage = place_of(place.world.env(place.config, place.task), options.episodes)
    assert stage.vector is not None
    worlds = gym.Worlds(stage.vector)
    worlds.reset(options.seed + gym.OTHER_DRAWS)
    going, rows = np.ones(options.episodes, bool), []
    while going.any():
        action, head, value = map(np.asarray, way(worlds.obs))
        step = worlds.step(action.astype(np.int32))
        counts, features = going & step.real, gym.features_of(step)
        assert features is not None
        rows.append((counts, head, value, np.asarray(step.transition.reward) * counts, features * counts[:, None]))
        going = going & ~(counts & np.asarray(step.transition.last))
    stage.vector.close()
    counts, head, value, reward, features = map(np.stack, zip(*rows, strict=True))
    came, later = np.zeros_like(reward), np.zeros(options.episodes)
    for t in reversed(range(len(reward))):
        came[t] = later = reward[t] + gamma * later
    shares = np.bincount(head[counts], minlength=len(names)) / counts.sum()
    return {
        "return": float(reward.sum(axis=0).mean()),
        "sem": float(reward.sum(axis=0).std(ddof=1) / options.episodes**0.5),
        **dict(zip(("fruits", "objects", "presents", "completion"), map(float, features.sum(axis=0).mean(axis=0)), strict=True)),
        **{f"follows {name}": float(share) for name, share in zip(names, shares, strict=True)},
        "value expected": float(value[counts].mean()),
        "value that came": float(came[counts].mean()),
        "correlation": float(np.corrcoef(value[counts], came[counts])[0, 1]),
    }


# --- Speed ---------------------------------------------------------------------------------------------------------------


def speed(options: argparse.Namespace) -> dict[str, Any]:
    return {"seconds": options.seconds, "found": {name: timed(name, options.seconds) for name in ("ppo", "psiphi")}}


def begun(algorithm: str) -> Any:
    """The Gymnasium loop's host of a run with the world's own settings and few demonstrations, the state it begins with, and the run."""
    import jax

    from psiphi import training
    from psiphi.agents import ALGORITHMS
    from psiphi.loops import gym
    from psiphi.types import Pace
    from psiphi.worlds import WORLDS

    world = WORLDS["fruitbot"]
    run = training.completed(training.default_run(algorithm, "fruitbot", episodes=2, demonstrators=SHOWN, prefill_steps=1_024, study=0))
    place = training.place_of(world.env(run.world, run.task), run.num_envs)
    assert place.vector is not None and world.record is not None
    watches = ALGORITHMS[algorithm].watches(run.agent)
    demos = world.record(run.world, SHOWN, run.episodes, run.seed, "train").demos if watches else None
    loop = training.loop_of(run)
    agent = ALGORITHMS[algorithm].make(run.agent, place.spec, len(SHOWN) if watches else 0, Pace(run.num_envs, 1_000))
    host = gym._Host(gym.Worlds(place.vector), agent, loop, None)
    return host, host.begin(None, jax.random.key(run.seed)[None], demos), run, loop


def timed(algorithm: str, seconds: float) -> dict[str, float]:
    """The Gymnasium loop's own pieces, called as it calls them, each waited for."""
    import jax

    host, carry, run, loop = begun(algorithm)
    spent: dict[str, float] = dict.fromkeys(("environment", "acting", "learning", "remembering"), 0.0)
    step, act, observe, iterate = host.collector.worlds.step, host._act, host._observe, host._iterate

    def clocked(name: str, function: Any, *given: Any) -> Any:
        started = time.perf_counter()
        got = jax.block_until_ready(function(*given))
        spent[name] += time.perf_counter() - started
        return got

    host.collector.worlds.step = partial(clocked, "environment", step)  # pyright: ignore[reportAttributeAccessIssue]
    for name, attribute, function in (("acting", "_act", act), ("remembering", "_observe", observe), ("learning", "_iterate", iterate)):
        setattr(host, attribute, partial(clocked, name, function))
    carry, _ = host.chunk(carry, 2)  # compiles
    for name in spent:
        spent[name] = 0.0
    started, iterations = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        carry, _ = host.chunk(carry, 1)
        iterations += 1
    wall = time.perf_counter() - started
    steps = iterations * loop.rollout_length * loop.num_envs
    gradient_steps = run.agent.epochs * run.agent.minibatches if algorithm == "ppo" else loop.updates_per_rollout
    rates = {"steps/s": steps / wall, "updates/s": iterations * gradient_steps / wall}
    shares = {f"share {name}": x / wall for name, x in spent.items()}
    return {name: round(x, 4) for name, x in (rates | shares | {"share rest": 1 - sum(spent.values()) / wall}).items()}


def peer(options: argparse.Namespace) -> dict[str, Any]:
    import stable_baselines3
    import torch
    import turns

    torch.set_num_threads(1)
    host, carry, run, loop = begun("ppo")
    steps = loop.num_envs * loop.rollout_length
    theirs = peers_ppo(run)

    def ours_learns() -> int:
        nonlocal carry
        carry = host.chunk(carry, 1)[0]
        return steps

    def theirs_learns() -> int:
        theirs.learn(steps, reset_num_timesteps=False)
        return steps

    found = turns.measure({"psiphi": ours_learns, "stable-baselines3": theirs_learns}, options.seconds)
    ratio = found["psiphi"]["steps_per_cpu_s"] / found["stable-baselines3"]["steps_per_cpu_s"]
    return {"found": {**found, "ratio of steps per CPU second": ratio}, "peer": [stable_baselines3.__version__, torch.__version__]}


def peers_ppo(run: Any) -> Any:
    """stable-baselines3's PPO as our run is set: its games, its torso as a convolution whose stride is its width, its numbers."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import VecEnv

    from psiphi import training
    from psiphi.nets import Patches
    from psiphi.worlds import WORLDS

    envs = training.place_of(WORLDS["fruitbot"].env(run.world, run.task), run.num_envs).vector
    assert envs is not None

    class Torso(BaseFeaturesExtractor):
        def __init__(self, space: Any, width: int):
            super().__init__(space, width)
            colours, rows, columns = space.shape  # stable-baselines3 turns pictures round
            each = torch.nn.Conv2d(colours, Patches.FEATURES, Patches.SIDE, Patches.SIDE)
            dense = torch.nn.Linear(rows * columns // Patches.SIDE**2 * Patches.FEATURES, width)
            self.layers = torch.nn.Sequential(each, torch.nn.ReLU(), torch.nn.Flatten(), dense, torch.nn.ReLU())

        def forward(self, obs: Any) -> Any:
            return self.layers(obs / 255.0)

    class Games(VecEnv):
        """Our vector of games with the methods that stable-baselines3 calls."""

        def __init__(self):
            super().__init__(run.num_envs, envs.single_observation_space, envs.single_action_space)

        def reset(self) -> Any:
            return envs.reset(seed=run.seed)[0]

        def step_async(self, actions: Any) -> None:
            self.actions = actions

        def step_wait(self) -> Any:
            obs, reward, terminated, truncated, _ = envs.step(self.actions)
            return obs, reward, terminated | truncated, [{} for _ in range(run.num_envs)]

        def close(self) -> None: ...
        def get_attr(self, attr_name: str, indices: Any = None) -> Any:
            return [None] * run.num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...
        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any: ...
        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> Any:
            return [False] * run.num_envs

    agent = run.agent
    shape = {"features_extractor_class": Torso, "features_extractor_kwargs": {"width": agent.torso_hidden[-1]}, "net_arch": []}
    shape |= {"normalize_images": False, "share_features_extractor": agent.share_torso}
    return PPO(
        "CnnPolicy", Games(), policy_kwargs=shape, learning_rate=agent.learning_rate, n_steps=agent.rollout_length,
        batch_size=run.num_envs * agent.rollout_length // agent.minibatches, n_epochs=agent.epochs, gamma=agent.gamma,
        gae_lambda=agent.lambda_, clip_range=agent.clip_ratio, ent_coef=agent.entropy, vf_coef=agent.value_weight,
        max_grad_norm=agent.clip, device="cpu", seed=run.seed,
    )  # fmt: skip


def main() -> None:
    options = arguments()
    from psiphi.experiments import cells

    row = {"what": options.what, "seed": options.seed, **globals()[options.what](options)}
    row |= {"command": cells.command(), "commit": cells.commit(), "versions": cells.versions()}
    options.out.mkdir(parents=True, exist_ok=True)
    with open(options.out / f"{options.what}.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row["found"], indent=1))


if __name__ == "__main__":
    main()
