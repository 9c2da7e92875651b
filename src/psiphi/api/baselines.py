"""`psiphi.BC`, `DQN`, `SQIL`, `GAIL` and `PPO`: the baselines, in the manner of `psiphi.ITD` and `psiphi.PsiPhi`.

>>> agent = psiphi.DQN("CartPole-v1", seed=0).learn(50_000)
>>> agent.predict(obs)
>>> agent.save("my-dqn"); psiphi.load("my-dqn")
>>> psiphi.BC(seed=0).fit(demos).predict(obs, agent="ann")
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from psiphi import configs, doors, training, worlds
from psiphi import lens as lenses
from psiphi.agents import ALGORITHMS, bc
from psiphi.api import files, trained
from psiphi.api.answers import as_batch, position
from psiphi.api.files import Policies
from psiphi.configs import Count
from psiphi.demos import Demonstrations
from psiphi.errors import UserError
from psiphi.training import Run, Trained
from psiphi.worlds import World
from psiphi.worlds.gym import never_entered, world_of


def world_for(env: Any) -> World:
    """The world of whatever a user calls an environment: a name, an id, a thing, or a function that makes one."""
    if isinstance(env, str):
        return worlds.find(env)
    if isinstance(env, World):
        return env
    return world_of(env)


@partial(jax.jit, static_argnames=("k",))
def _values(net: Any, obs: Any, k: int | None) -> jax.Array:
    return (net if k is None else bc.of_demonstrator(net, k))(jnp.asarray(obs))


class PolicyOf:
    """What trained policies do: shared by everything that learned no successor features."""

    algorithm: ClassVar[str] = ""
    seed: int = 0
    config: Any = None
    steps: int = 0
    """Environment steps so far."""
    run_dir: Path | None = None
    """Where the last training left its rows and checkpoints."""
    _policies: Policies | None = None
    _run: dict[str, Any] | None = None

    def _trained(self) -> Policies:
        if self._policies is None:
            raise UserError(f"This {type(self).__name__} has learned nothing yet; call learn or fit first.")
        return self._policies

    @property
    def agents(self) -> tuple[Any, ...]:
        """The demonstrators, by id; () where there is one policy."""
        return self._trained().agents if ALGORITHMS[self.algorithm].tells_apart else ()

    def values(self, obs: Any, agent: Any = None) -> np.ndarray:
        """What the network says of every action, ``[A]`` or ``[B, A]``: values or logits, the larger the better."""
        known = self._trained()
        batch, alone = as_batch(obs, known.spec)
        values = np.asarray(_values(known.net, self._look(batch), self._whose(agent)))
        return values[0] if alone else values

    def _look(self, batch: np.ndarray) -> np.ndarray:
        glass = self._trained().lens
        return batch if glass is None else lenses.look(batch, glass.mean, glass.scale, glass.layout, glass.standardise)

    def _whose(self, agent: Any) -> int | None:
        known = self._trained()
        if not ALGORITHMS[self.algorithm].tells_apart:
            return None
        if agent is None and len(known.agents) == 1:
            return 0
        if agent is None:
            raise UserError(f"There is a policy for each of {', '.join(map(repr, known.agents[:20]))}, expected predict(obs, agent=...).")
        return position(known.agents, agent)

    def predict(self, obs: Any, deterministic: bool = True, *, agent: Any = None) -> Any:
        """The action, one for an observation, an array for a batch; `agent` is whose policy it is, where there are several."""
        known = self._trained()
        _, alone = as_batch(obs, known.spec)
        values = np.atleast_2d(self.values(obs, agent))
        if not deterministic:
            temperature = ALGORITHMS[self.algorithm].judged_at(self.config) or 1.0
            values = values / temperature + self._random().gumbel(size=values.shape)
        action = known.first_action + values.argmax(axis=-1)
        return int(action[0]) if alone else action

    def _random(self) -> np.random.Generator:
        if not hasattr(self, "_generator"):
            self._generator = np.random.default_rng(self.seed)
        return self._generator

    def accuracies(self, demos: Demonstrations) -> dict[Any, float]:
        """The share of each agent's demonstrated actions that its policy predicts."""
        known = self._trained()
        demos = doors.demonstrations(demos, Demonstrations)
        training.check_fits(demos, known.spec)
        mine = {agent: demos.agent_index == k for k, agent in enumerate(demos.agents)}
        whose = {agent: agent if ALGORITHMS[self.algorithm].tells_apart else None for agent in mine}
        return {
            agent: float(np.mean(self.predict(demos.obs[steps], agent=whose[agent]) - known.first_action == demos.action[steps]))
            for agent, steps in mine.items()
            if steps.any()
        }

    def save(self, path: str | Path) -> None:
        """Write the policy to a directory, in place of one that is there; `psiphi.load` reads it."""
        files.save_policy(doors.path(path), self.algorithm, self._trained(), self.config, self.seed, self._run)

    def _keep(self, result: Trained, out: Path | None) -> None:
        self._policies, self.run_dir, self.config = trained.policies_of(result), out, result.run.agent
        self.steps += result.env_steps
        self._run = trained.run_of(result.run)
        if out is not None:
            trained.save(out / files.DIRECTORY, result)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'untrained' if self._policies is None else f'{self.steps} steps'})"


Learner = TypeVar("Learner", bound="Acting")


class Acting(PolicyOf):
    """A learner that acts in an environment.

    `env` is the name of a world of psiphi, a Gymnasium id, a Gymnasium environment, a vector environment, a function that makes an
    environment, or a JAX environment (`psiphi.types.Env`). `demos` are demonstrations, for those who learn from them.
    """

    def __init__(
        self,
        env: Any,
        demos: Demonstrations | None = None,
        config: Any = None,
        seed: int = 0,
        *,
        task: str = "",
        num_envs: int | None = None,
    ):
        known = ALGORITHMS[self.algorithm]
        self.seed, self.config = doors.seed(seed), doors.config(config, known.config)
        self.world: World | None = world_for(env)
        self.demos = None if demos is None else doors.demonstrations(demos, Demonstrations)
        self.task, self.num_envs = task, None if num_envs is None else configs.fit(Count, num_envs, "num_envs")
        self._state: Any = None
        self._checked()

    def _checked(self) -> Run:
        """The run as it stands, which refuses what cannot be."""
        assert self.world is not None
        run = training.default_run(self.algorithm, self.world.name, world=self.world, task=self.task, seed=self.seed)
        changes: dict[str, Any] = {} if self.config is None else {"agent": self.config}
        changes |= {} if self.num_envs is None else {"num_envs": self.num_envs}
        if self.demos is not None:
            changes["demos"] = "none"  # they are given as a thing, not by a name
        run = training.completed(dataclasses.replace(run, **changes), self.world)
        if ALGORITHMS[self.algorithm].watches_always and self.demos is None and run.demos == training.NONE:
            raise UserError(f"{self.algorithm} learns from demonstrations, expected demos beside the environment.")
        return run

    def learn(
        self: Learner,
        total_timesteps: int,
        *,
        out: str | Path | None = None,
        evaluate: Callable[[Any, Any], Any] | None = None,
        progress: bool = True,
    ) -> Learner:
        """Act and learn for so many environment steps; a further call goes on from what was learned, with schedules that begin anew.

        With `out`, rows and checkpoints go to that directory and an interrupted call continues there. `evaluate(state, key)` is called
        between chunks and gives figures by name.
        """
        if self.world is None:
            raise UserError(
                f"This {type(self).__name__} was loaded and its file names no world; set agent.world = psiphi.worlds.find(...) first."
            )
        total = configs.fit(Count, total_timesteps, "total_timesteps")
        run = dataclasses.replace(self._checked(), steps=total, updates=0, study=0)
        run = dataclasses.replace(run, prefill_steps=min(run.prefill_steps, total // 4) if self._state is None else 0)
        directory = None if out is None else doors.path(out)
        net = None if self._policies is None or self._state is not None else self._policies.net
        result = training.train(
            run, out=directory, demos=self.demos, world=self.world, net=net, state=self._state, evaluate=evaluate, progress=progress
        )
        self._state = result.state
        self._keep(result, directory)
        return self


class DQN(Acting):
    """Deep Q-learning; with ``DQNConfig(bc_weight=...)`` and `demos`, DQN+BC-aux."""

    algorithm = "dqn"


class PPO(Acting):
    """Proximal policy optimisation; with ``PPOConfig(bc_weight=...)`` and `demos`, PPO+BC-aux."""

    algorithm = "ppo"


class SQIL(Acting):
    """Soft Q imitation learning of one demonstrator (``SQILConfig(demonstrator=0)``) or of all as one."""

    algorithm = "sqil"


class GAIL(Acting):
    """Generative adversarial imitation learning of one demonstrator or of all as one."""

    algorithm = "gail"


class BC(PolicyOf):
    """Behaviour cloning: one policy per demonstrator, offline."""

    algorithm = "bc"

    def __init__(self, config: Any = None, seed: int = 0):
        self.seed, self.config = doors.seed(seed), doors.config(config, ALGORITHMS["bc"].config)

    def fit(self, demos: Demonstrations, updates: int = 4_000, *, out: str | Path | None = None, progress: bool = True) -> "BC":
        """Clone every agent of the demonstrations, anew."""
        demos = doors.demonstrations(demos, Demonstrations)
        world = never_entered(demos.spec)
        updates = configs.fit(Count, updates, "updates")
        changes: dict[str, Any] = {} if self.config is None else {"agent": self.config}
        run = training.default_run(
            "bc", world.name, world=world, seed=self.seed, **{"steps": 0, "updates": updates, "evaluate_every": 0, **changes}
        )
        directory = None if out is None else doors.path(out)
        self._keep(training.train(run, out=directory, demos=demos, world=world, progress=progress), directory)
        return self


CLASSES: dict[str, type[PolicyOf]] = {kind.algorithm: kind for kind in (BC, DQN, SQIL, GAIL, PPO)}


def remembered_world(found: files.Loaded) -> World | None:
    """The world that a file names, if it can be had without running code of a stranger's."""
    name = str((found.run or {}).get("env", ""))
    try:
        world = worlds.find(name, trusted=False)
        config = (found.run or {}).get("world")
        known = world.config is not None and config is not None
        return dataclasses.replace(world, config=configs.from_json(type(world.config), config, "The model's world")) if known else world
    except UserError:
        return None


def loaded(found: files.Loaded) -> PolicyOf:
    """A policy out of a model directory, which predicts as it did."""
    kind = CLASSES.get(found.algorithm) or type("Policies", (PolicyOf,), {"algorithm": found.algorithm})
    policy = kind.__new__(kind)
    policy.seed, policy.config, policy._policies, policy._run = found.seed, found.config, found.policies, found.run
    policy.steps = int((found.run or {}).get("steps") or 0)
    if isinstance(policy, Acting):
        run = found.run or {}
        policy.world, policy.demos, policy._state = remembered_world(found), None, None
        policy.task, policy.num_envs = str(run.get("task", "")), configs.fit(Count | None, run.get("num_envs"), "num_envs")
    return policy
