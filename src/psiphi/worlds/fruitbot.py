"""FruitBot: ProcGen's game from pixels, with scripted demonstrators of other tastes. It needs the extra `psiphi[fruitbot]`."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi.agents import psiphi as psiphi_agent
from psiphi.agents.bc import BCConfig
from psiphi.agents.dqn import DQNConfig
from psiphi.agents.gail import GAILConfig
from psiphi.agents.itd import ITDConfig
from psiphi.agents.ppo import PPOConfig
from psiphi.agents.psiphi import PsiPhiConfig
from psiphi.agents.sqil import SQILConfig
from psiphi.envs import fruitbot, fruitbot_gym
from psiphi.envs.fruitbot import GAME, LONGEST, Counts, FruitBotConfig
from psiphi.envs.fruitbot_gym import FruitBotEnv, FruitBotVector, Player
from psiphi.envs.fruitbot_scripts import TASTES
from psiphi.errors import UserError
from psiphi.types import Demonstration, Demos, Metrics, Symmetry
from psiphi.worlds.world import OWN, Recorded, SideBySide, World

MILD = GAME._replace(objects=-1.0)
"""The game with objects at -1, where those who collect objects still earn more than chance."""

# --- Tasks ---------------------------------------------------------------------------------------------------------------


def _task(config: FruitBotConfig, task: str) -> str:
    del config
    return fruitbot.task_name(GAME if task in (OWN, "own") else fruitbot.weights_of(task))


def _wants(config: FruitBotConfig, demonstrator: str) -> str:
    """A demonstrator's taste as a task; who acts at random wants nothing."""
    del config
    if demonstrator not in TASTES:
        raise UserError(f"{demonstrator!r} is not a demonstrator of FruitBot; expected one of {', '.join(TASTES)}.")
    taste = TASTES[demonstrator]
    return fruitbot.task_name(Counts(0.0, 0.0, 0.0) if taste is None else Counts(taste.fruit, taste.object, GAME.presents))


def _env(config: FruitBotConfig, task: str) -> SideBySide:
    return SideBySide(partial(FruitBotVector, config, fruitbot.weights_of(_task(config, task))), mirror(config), "picture")


def mirror(config: FruitBotConfig) -> Symmetry:
    """Left and right."""
    turned = fruitbot.MIRRORED if config.actions == "all" else fruitbot.DISTINCT_MIRRORED
    return Symmetry(obs=lambda obs: obs[:, ::-1], action=lambda action: jnp.asarray(turned)[action])


REFERENCES = {GAME: 25.9, MILD: 27.8}
"""What the script that plays the game as it pays earns on the easy levels, the mean of 64 episodes (results/fruitbot): returns are divided
by it where it is known."""


def _figures(config: FruitBotConfig, task: str, got: Mapping[str, Array]) -> Metrics:
    """The mean return, over the script's where that is known, and what was collected in an episode."""
    mean = jnp.mean(got["returns"])
    reference = REFERENCES.get(fruitbot.weights_of(_task(config, task))) if config.difficulty == "easy" else None
    sums = jnp.mean(got["features"], axis=0) if "features" in got else ()  # who adapts is asked for returns only
    counts = dict(zip(("fruits", "objects", "presents", "completion"), sums, strict="features" in got))
    return {"return": mean, **counts} if reference is None else {"normalised_return": mean / reference, "return": mean, **counts}


def _drawn(config: FruitBotConfig, task: str) -> FruitBotEnv:
    return FruitBotEnv(task, "rgb_array", **dataclasses.asdict(config))


# --- Demonstrations ------------------------------------------------------------------------------------------------------

SPLITS = {"train": 11, "test": 12}
"""Added to a seed, so that held-out demonstrations are of other levels."""


def played(config: FruitBotConfig, demonstrator: str, episodes: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Whole episodes of a demonstrator, each as columns: what `Player.step` says of its steps, and `frames`, one more than those."""
    num_envs = min(episodes, 64)
    player = Player(config, demonstrator, num_envs, seed)
    rows: list[list[dict[str, Any]]] = [[] for _ in range(num_envs)]
    done: list[dict[str, np.ndarray]] = []
    wanted = [len(range(i, episodes, num_envs)) for i in range(num_envs)]  # the short ones must not crowd out the long ones
    while any(wanted):
        step = player.step()
        for i in np.flatnonzero(step["real"] & (np.array(wanted) > 0)):
            rows[i].append({name: x[i].copy() for name, x in step.items() if name != "next_obs"})
            if step["last"][i]:
                columns = {name: np.stack([row[name] for row in rows[i]]) for name in rows[i][0]}
                columns["frames"] = np.concatenate([columns.pop("obs"), step["next_obs"][i : i + 1]])
                done.append(columns)
                rows[i], wanted[i] = [], wanted[i] - 1
    player.close()
    return done


def record(config: FruitBotConfig, demonstrators: tuple[str, ...], episodes: int, seed: int, split: str = "train") -> Recorded:
    """So many episodes of each demonstrator, each frame stored once."""
    shown = [played(config, name, episodes, _seed(seed, split, k)) for k, name in enumerate(demonstrators)]
    lengths = [np.array([len(one["action"]) for one in some]) for some in shown]
    number = [np.repeat(np.arange(len(some)), length) for some, length in zip(shown, lengths, strict=True)]
    place = [np.arange(len(mine), dtype=np.int32) + mine.astype(np.int32) for mine in number]  # every episode has a frame more than steps
    counts = [len(mine) for mine in number]
    room = max(counts)
    columns = {
        name: np.stack([_padded(np.concatenate([one[name] for one in some]), room, 0) for some in shown])
        for name in ("action", "discount", "next_action")
    }
    obs = np.stack([_padded(mine, room, 0) for mine in place])
    frames = np.zeros((len(shown), max(n + len(some) for n, some in zip(counts, shown, strict=True)), *config.obs_shape), np.uint8)
    for k, some in enumerate(shown):
        np.concatenate([one.pop("frames") for one in some], out=frames[k, : counts[k] + len(some)])
    steps = Demonstration(*map(jnp.asarray, (obs, columns["action"], columns["discount"], obs + 1, columns["next_action"])))
    demos = Demos(steps, jnp.array(counts, jnp.int32), frames=jnp.asarray(frames))
    return Recorded(demos, jnp.asarray(np.stack([_padded(mine, room, -1) for mine in number])))


def _seed(seed: int, split: str, k: int) -> int:
    return int(np.random.SeedSequence([seed, SPLITS[split], k]).generate_state(1)[0]) % 2**31


def _padded(x: np.ndarray, room: int, fill: int) -> np.ndarray:
    return np.concatenate([x, np.full((room - len(x), *x.shape[1:]), fill, x.dtype)])


def earned(config: FruitBotConfig, demonstrators: tuple[str, ...], episodes: int, seed: int) -> dict[str, float]:
    """What the scripts themselves earn by their own taste, in levels that were not shown."""
    found = {}
    for k, name in enumerate(demonstrators):
        sums = np.stack([one["features"].sum(axis=0)[:3] for one in played(config, name, episodes, _seed(seed, "test", k))])
        found[name] = float(fruitbot.paid(fruitbot.weights_of(_wants(config, name)), Counts(*sums.T)).mean())
    return found


# --- What suits it -------------------------------------------------------------------------------------------------------

HIDDEN = (256,)
"""Dense layers after the patches."""


def bc() -> BCConfig:
    return BCConfig(torso="patches", torso_hidden=HIDDEN, batch=128)


def ppo() -> PPOConfig:
    """As is customary on ProcGen, with shorter rollouts."""
    return PPOConfig(
        torso="patches", torso_hidden=HIDDEN, share_torso=True, gamma=0.99, rollout_length=64, epochs=3, minibatches=8,
        learning_rate=5e-4, entropy=0.01, temperature=1.0,
    )  # fmt: skip


def dqn() -> DQNConfig:
    return DQNConfig(
        torso="patches", torso_hidden=HIDDEN, head_hidden=(128,), gamma=0.99, n_step=3, learning_rate=5e-4, batch=128,
        replay_size=100_000, epsilon_end=0.05, epsilon_steps=5_000, ema=0.01, mirror=False,
    )  # fmt: skip


def sqil() -> SQILConfig:
    return SQILConfig(dqn=dataclasses.replace(dqn(), n_step=1, double=False, epsilon_start=0.0, epsilon_end=0.0), temperature=0.1)


def gail() -> GAILConfig:
    return GAILConfig(ppo=ppo(), torso="patches", torso_hidden=HIDDEN)


def itd() -> ITDConfig:
    """Levels are long, and most steps bring nothing."""
    return ITDConfig(
        num_cumulants=8, gamma=0.97, torso="patches", torso_hidden=HIDDEN, phi_hidden=(128, 64), psi_hidden=(128,), learning_rate=1e-3,
        batch=64, cross_batch=128, bc_weight=1.0, sparsity=0.1, replay_size=50_000,
    )  # fmt: skip


def psiphi() -> PsiPhiConfig:
    """Many of the ego's own steps in each update, and little weight on the demonstrators': its values are what it lacks. Its reward has an
    axis of its own: inferred preferences stay near 0 here, and then nothing is learned. A discount of 0.99 and twenty steps of reward let
    walls and the end of a level count. Clones with torsos of their own, which the ego's losses do not reach, say how likely the
    demonstrators do something; that costs the ego what would surprise them, less and less until half of the run. Now and then it follows
    one."""
    inner = dataclasses.replace(
        itd(), gamma=0.99, torso="patches-half", batch=48, share_torso=True, bc_weight=0.05, itd_weight=0.1, cross_policy=0.2, anchor=0.0,
        sparsity=0.0,
    )  # fmt: skip
    return PsiPhiConfig(
        itd=inner, n_step=20, batch=256, reward_weight=1.0, q_weight=1.0, td_psi_weight=1.0, epsilon=0.05, temperature=0.0, mirror_ego=True,
        ego_axis=True, guide="patches-half", trust=0.1, trusted=0.5, follow=0.3, followed=0.6, follow_on=0.1, stretch=100,
        task_memory=0.999,
    )  # fmt: skip


RECORDED: dict[str, Any] = {"demos": "recorded", "episodes": 72, "num_envs": 64, "evaluate_episodes": 32}
"""Seventy-two episodes are thirty thousand steps of a demonstrator who completes them."""
ACTING: dict[str, Any] = RECORDED | {"steps": 1_000_000, "evaluate_every": 100_000}
BY_REPLAY: dict[str, Any] = ACTING | {"rollout_length": 2, "prefill_steps": 2_000}
"""An update for every 128 steps."""

PRESETS: dict[str, Callable[[], dict[str, Any]]] = {
    "psiphi": lambda: BY_REPLAY | {"agent": psiphi(), "updates_per_rollout": 2, "study": 500, "prefill_steps": 8_000},
    "itd": lambda: RECORDED | {"agent": itd(), "updates": 4_000, "num_envs": 16, "prefill_steps": 8_000},
    "bc": lambda: RECORDED | {"agent": bc(), "updates": 4_000},
    "dqn": lambda: BY_REPLAY | {"agent": dqn()},
    "sqil": lambda: BY_REPLAY | {"agent": sqil()},
    "gail": lambda: ACTING | {"agent": gail()},
    "ppo": lambda: ACTING | {"agent": ppo()},
}
"""What suits a CPU. Tried by hand on seeds 2000 and above; PsiPhi-learning on seed 2001 (results/fruitbot/trials.jsonl)."""


def paper_psiphi() -> dict[str, Any]:
    """The paper's losses and its column for FruitBot, on the raw frames with backgrounds, demonstrators playing beside the ego."""
    printed = psiphi_agent.paper()
    inner = dataclasses.replace(
        printed.itd, num_cumulants=64, gamma=0.999, torso="impala-deep", learning_rate=5e-5, batch=32, target_period=2_500,
        replay_size=100_000,
    )  # fmt: skip
    agent = dataclasses.replace(printed, itd=inner, n_step=128, batch=32)
    world = FruitBotConfig(view="paper", actions="all", backgrounds=True)
    return ACTING | {"agent": agent, "demos": "online", "num_envs": 16, "prefill_steps": 4_000, "world": world}


FRUITBOT = World(
    name="fruitbot",
    words="FruitBot (ProcGen) from pixels, where the demonstrators collect what the game punishes; needs psiphi[fruitbot]",
    config=FruitBotConfig(),
    env=_env,
    tasks=lambda config: (fruitbot.task_name(GAME), fruitbot.task_name(MILD)),
    task=_task,
    demonstrators=fruitbot_gym.demonstrators,
    wants=_wants,
    record=record,
    earned=earned,
    watched=fruitbot_gym.demonstrators,
    figures=_figures,
    longest=lambda config: LONGEST,
    presets=PRESETS,
    paper={"psiphi": paper_psiphi},
    drawn=_drawn,
)
