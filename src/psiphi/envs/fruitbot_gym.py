"""FruitBot for Gymnasium: one game, ``psiphi/FruitBot-v0``, and many side by side, as training wants them."""

import dataclasses
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from psiphi.envs import fruitbot
from psiphi.envs.fruitbot import GAME, Counts, FruitBotConfig
from psiphi.envs.fruitbot_scripts import PAPER, Script
from psiphi.errors import UserError

WATCH = "watch"
"""The option of `reset` with which demonstrators play beside the environments."""


class Games:
    """N games, their frames as they are to be seen, and what happened in each step.

    A game that ended spends its next step on beginning anew; that step did not happen.
    """

    def __init__(self, config: FruitBotConfig, num_envs: int, seed: int):
        self.config, self._pool = config, fruitbot.pool(config, num_envs, seed)
        self.frames, _ = self._pool.reset()
        self.fresh = np.ones(num_envs, bool)
        """Games that have just begun."""
        self.over = np.zeros(num_envs, bool)
        """Games that have just ended."""

    @property
    def obs(self) -> np.ndarray:
        return fruitbot.seen(self.config, self.frames)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, Counts, np.ndarray]:
        """Which games ended by themselves, which by the limit, what was collected, and which levels were completed."""
        self.frames, reward, terminated, truncated, info = self._pool.step(np.asarray(self.config.played(action), np.int32))
        completed = np.asarray(terminated & (info["prev_level_complete"] > 0) & ~self.over)
        counts = fruitbot.decoded(np.where(self.over, 0.0, reward), completed)
        self.fresh, self.over = self.over, np.asarray(terminated | truncated)
        return np.asarray(terminated), np.asarray(truncated), counts, completed

    def close(self) -> None:
        self._pool.close()


def happened(counts: Counts, completed: np.ndarray) -> dict[str, np.ndarray]:
    """What `info` says of a step: each count by its name, and all of them as `features`."""
    named = {**counts._asdict(), "completion": completed.astype(np.int32)}
    return {**named, "features": np.stack([*named.values()], axis=-1).astype(np.float32)}


class FruitBotVector(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Many games side by side, paid by a task. After ``reset(options={"watch": True})`` demonstrators play beside them, and
    ``info["demonstrator"]`` and ``info["demonstration"]`` say who did what, as in Highway's."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}

    def __init__(self, config: FruitBotConfig, weights: Counts, num_envs: int):
        self.config, self.weights, self.num_envs = config, weights, num_envs
        self.single_observation_space = gymnasium.spaces.Box(0, 255, config.obs_shape, np.uint8)
        self.single_action_space = gymnasium.spaces.Discrete(config.num_actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._games: Games | None = None
        self._others: Companions | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Fresh games; the same seed gives the same ones."""
        super().reset(seed=seed)
        self.close()
        self._games = Games(self.config, self.num_envs, int(self.np_random.integers(2**31)))
        if (options or {}).get(WATCH):
            self._others = Companions(self.config, self.num_envs, int(self.np_random.integers(2**31)))
        return self._games.obs, {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of all games."""
        if self._games is None:
            raise gymnasium.error.ResetNeeded("Cannot call FruitBot's step() before reset().")
        terminated, truncated, counts, completed = self._games.step(actions)
        info = happened(counts, completed)
        if self._others is not None:
            info |= self._others.step()
        return self._games.obs, fruitbot.paid(self.weights, counts), terminated, truncated, info

    def close(self, **kwargs: Any) -> None:
        for games in (self._games, self._others):
            if games is not None:
                games.close()
        self._games = self._others = None


class Companions:
    """Demonstrators who play beside a learner: `config.companions` of each kind beside each environment."""

    def __init__(self, config: FruitBotConfig, num_envs: int, seed: int):
        self.num_envs = num_envs
        self._players = [
            Player(config, name, num_envs * config.companions, (seed + i) % 2**31) for i, name in enumerate(demonstrators(config))
        ]

    def step(self) -> dict[str, Any]:
        """Who did what, ``[N, those beside each]``; -1 where a game has just begun anew and no step happened."""
        shown = [player.step() for player in self._players]
        who = np.concatenate([np.where(step["real"], k, -1).reshape(self.num_envs, -1) for k, step in enumerate(shown)], axis=1)
        columns = {
            name: np.concatenate([step[name].reshape(self.num_envs, -1, *step[name].shape[1:]) for step in shown], axis=1)
            for name in ("obs", "action", "discount", "next_obs", "next_action")
        }
        return {"demonstrator": who.astype(np.int32), "demonstration": columns}

    def close(self) -> None:
        for player in self._players:
            player.close()


def demonstrators(config: FruitBotConfig) -> tuple[str, ...]:
    """Those of the paper: they know what walls and things look like on the easy levels."""
    return PAPER if config.difficulty == "easy" else ()


class Player:
    """One demonstrator in N games of its own. It watches their twins without backgrounds, which are otherwise the same."""

    def __init__(self, config: FruitBotConfig, name: str, num_envs: int, seed: int):
        if config.difficulty != "easy":
            raise UserError(f"FruitBot's demonstrators know the easy levels, but the difficulty is {config.difficulty!r}.")
        self._script = Script(name, num_envs, seed)
        self.games = Games(config, num_envs, seed)
        self._twins = Games(dataclasses.replace(config, backgrounds=False), num_envs, seed) if config.backgrounds else self.games
        self._decide()

    def _decide(self) -> None:
        self.action = self.games.config.numbered(self._script.act(self._twins.frames, self._twins.fresh))

    def step(self) -> dict[str, Any]:
        """A step of each game: what was seen, done, then seen and is about to be done, what it brought, and whether it happened."""
        obs, action, over = self.games.obs, self.action, self.games.over
        terminated, truncated, counts, completed = self.games.step(action)
        if self._twins is not self.games:
            self._twins.step(action)
        self._decide()
        return {
            "obs": obs,
            "action": action,
            "discount": 1.0 - terminated.astype(np.float32),
            "next_obs": self.games.obs,
            "next_action": self.action,
            "last": terminated | truncated,
            "real": ~over,
            **happened(counts, completed),
        }

    def close(self) -> None:
        self.games.close()
        if self._twins is not self.games:
            self._twins.close()


class FruitBotEnv(gymnasium.Env[np.ndarray, np.int64 | int]):
    """FruitBot with the reward of one task, by default the game's own.

    ``info`` counts what the step brought: `fruits`, `objects`, `presents` and `completion`. `config` are the fields of `FruitBotConfig`.
    For many steps use the vector of games, `psiphi.envs.fruitbot_gym.FruitBotVector`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, task: str = fruitbot.task_name(GAME), render_mode: str | None = None, **config: Any):
        known = [field.name for field in dataclasses.fields(FruitBotConfig)]
        if unknown := sorted(set(config) - set(known)):
            raise UserError(f"FruitBot has no option {', '.join(unknown)}; expected task, render_mode, {', '.join(known)}.")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UserError(f"FruitBot's render_mode is {render_mode!r}, expected None or 'rgb_array'.")
        self.config, self.weights, self.render_mode = FruitBotConfig(**config), fruitbot.weights_of(task), render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, self.config.obs_shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(self.config.num_actions)
        self._games: Games | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """A new game; with a seed, always the same ones from here on."""
        super().reset(seed=seed, options=options)
        self.close()
        self._games = Games(self.config, 1, int(self.np_random.integers(2**31)))
        return self._games.obs[0], self._info(Counts(*np.zeros((3, 1), np.int32)), np.zeros(1, bool))

    def step(self, action: np.int64 | int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step."""
        if self._games is None or self._games.over.all():
            raise gymnasium.error.ResetNeeded("Cannot call FruitBot's step() before reset().")
        if not self.action_space.contains(action):
            raise UserError(f"FruitBot's action is {action!r}, expected a number from 0 to {self.config.num_actions - 1}.")
        terminated, truncated, counts, completed = self._games.step(np.array([action]))
        reward = float(fruitbot.paid(self.weights, counts)[0])
        return self._games.obs[0], reward, bool(terminated[0]), bool(truncated[0]), self._info(counts, completed)

    def _info(self, counts: Counts, completed: np.ndarray) -> dict[str, Any]:
        return {name: x[0] for name, x in happened(counts, completed).items()}

    def render(self) -> np.ndarray | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """ProcGen's own frame, whatever the view, six times as large."""
        if self.render_mode is None:
            gymnasium.logger.warn("FruitBot was made without a render mode; use render_mode='rgb_array'.")
            return None
        if self._games is None:
            raise gymnasium.error.ResetNeeded("Cannot call FruitBot's render() before reset().")
        return self._games.frames[0].repeat(6, axis=0).repeat(6, axis=1)

    def close(self) -> None:
        if self._games is not None:
            self._games.close()
        self._games = None
