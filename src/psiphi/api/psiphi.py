"""`psiphi.PsiPhi`: learn a task of one's own in an environment, faster, by what others were seen to do there."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from psiphi import configs, doors, replay, training, worlds
from psiphi.agents.psiphi import PsiPhiConfig
from psiphi.api import baselines, files, newcomers, trained
from psiphi.api.baselines import world_for
from psiphi.api.itd import CHUNK, MOST_OWN_CUMULANTS, feature_function
from psiphi.api.known import Known
from psiphi.api.shown import Shown
from psiphi.configs import Count, Number
from psiphi.demos import Demonstrations
from psiphi.errors import UserError
from psiphi.training import Run
from psiphi.types import Env, EnvSpec
from psiphi.worlds import World as Place

World = Env | gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any] | Callable[[], gymnasium.Env[Any, Any]] | Place | str
"""A JAX environment, or a Gymnasium environment, a vector of them, a function that makes one, the id of one, or a world of psiphi's."""

ONLINE = PsiPhiConfig()
"""PsiPhi-learning's own default."""

STEPS_PER_UPDATE = 8
"""Environment steps, summed over the environments, between two updates."""

PREFILL = 2_048
"""Random steps before the first update; of a short run, a quarter."""

STUDY = 500
"""Rounds of updates on demonstrations and those steps alone, before the first step is acted upon."""

NEWCOMER_UPDATES = 6_000
"""Updates of a policy that joins later."""

LARGE_REPLAY = 10_000
"""Steps that are remembered where observations are large, as pictures are, and the config says nothing."""


def online(config: PsiPhiConfig | None, agents: int, spec: EnvSpec) -> PsiPhiConfig:
    """The config; the default has a cumulant per agent and remembers fewer large observations."""
    if config is not None:
        return config
    inner = ONLINE.itd
    size = LARGE_REPLAY if replay.is_large(spec.obs_shape, spec.obs_dtype) else inner.replay_size
    cumulants = max(inner.num_cumulants, min(agents, MOST_OWN_CUMULANTS))
    return dataclasses.replace(ONLINE, itd=dataclasses.replace(inner, num_cumulants=cumulants, replay_size=size))


class PsiPhi(Shown):
    """PsiPhi-learning in any environment with discrete actions: its own task from rewards, the rest from what others were seen to do.

    >>> agent = psiphi.PsiPhi("CartPole-v1", demos, seed=0).learn(100_000)
    >>> action = agent.predict(obs)
    >>> print(agent.explain(obs))                  # whom it follows, and why
    >>> agent.adapt((obs, actions, rewards))       # another task, in milliseconds
    >>> agent.save("my-agent")

    `env` is the name of a world of psiphi, a Gymnasium id, a Gymnasium environment, a vector environment, a function that makes an
    environment, or a JAX environment (`psiphi.types.Env`). Of functions and ids, `num_envs` environments are made. Without `demos`, a world
    of psiphi shows its own demonstrators, and elsewhere no demonstrator is watched.
    """

    def __init__(
        self,
        env: World,
        demos: Demonstrations | None = None,
        config: PsiPhiConfig | None = None,
        seed: int = 0,
        *,
        features: Any = None,
        num_envs: int = 8,
        task: str = "",
    ):
        self.seed, given = doors.seed(seed), doors.config(config, PsiPhiConfig)
        self.demos = None if demos is None else doors.demonstrations(demos, Demonstrations)
        self.world: Place | None = world_for(env)
        self.num_envs = _width(env, configs.fit(Count, num_envs, "num_envs"))
        self.task, self.features = task, features
        place = training.place_of(
            self.world.env(self.world.config, self.world.task(self.world.config, task or self.world.own)), self.num_envs
        )
        if self.demos is not None:
            training.check_numbered(self.demos, place.spec)
            training.check_fits(self.demos, place.spec)
        agents = 0 if self.demos is None else len(self.demos.agents)
        self.config = online(self._tuned() if given is None else given, agents, place.spec)
        self._state: Any = None
        self.steps = 0
        """Environment steps so far."""
        self.run_dir: Path | None = None
        """Where the last training left its rows and checkpoints."""

    def _tuned(self) -> PsiPhiConfig | None:
        """What suits a world of psiphi's own, unless other demonstrations than its own are given."""
        tuned = self.world is not None and self.world.name in worlds.WORLDS and self.demos is None
        return training.default_run("psiphi", self.world.name).agent if tuned and self.world else None

    def learn(
        self,
        total_timesteps: int,
        *,
        study: int | None = None,
        out: str | Path | None = None,
        evaluate: Callable[[Any, Any], Any] | None = None,
        progress: bool = True,
    ) -> "PsiPhi":
        """Act and learn for so many environment steps; a further call goes on, with schedules that begin anew.

        `study` rounds of updates are made before the first step is acted upon, on demonstrations (and some random steps) alone; None: 500
        in the first call. With `out`, rows and checkpoints go to that directory, and an interrupted call continues there.
        `evaluate(state, key)` is called between chunks and gives figures by name.
        """
        steps = configs.fit(Count, total_timesteps, "total_timesteps")
        world = self._open()
        run = self._run(world, steps, configs.fit(Number | None, study, "study"))
        features = self.features
        if features is not None and not callable(features):
            assert self.demos is not None
            features = feature_function(features, self.demos)
        directory = None if out is None else doors.path(out)
        net = None if self._known is None or self._state is not None else _begun(self._known)
        result = training.train(
            run,
            out=directory,
            demos=self.demos,
            world=world,
            net=net,
            state=self._state,
            features=features,
            evaluate=evaluate,
            progress=progress,
        )
        self._state, self.run_dir = result.state, directory
        self.steps += result.env_steps
        self._task, self._known = None, trained.known_of(result)
        self._remembered = trained.run_of(result.run)
        if not np.any(self._known.model.w[-1]):
            print(f"psiphi: no reward but 0 was met in {self.steps} steps, so there is no task to act on yet.", file=sys.stderr)
        if directory is not None:
            trained.save(directory / files.DIRECTORY, result)
        return self

    def _run(self, world: Place, steps: int, study: int | None) -> Run:
        """One update for every few steps, however many environments there are."""
        first = self._state is None and self._known is None
        length = max(1, round(STEPS_PER_UPDATE / self.num_envs))
        rollout = length * self.num_envs
        pace = {
            "steps": steps,
            "updates": 0,
            "num_envs": self.num_envs,
            "rollout_length": length,
            "updates_per_rollout": max(1, round(rollout / STEPS_PER_UPDATE)),
            "prefill_steps": max(min(PREFILL, steps // 4), rollout * 2) if first else 0,
            "study": (STUDY if first else 0) if study is None else study,
            "evaluate_every": CHUNK * rollout,
        }
        run = training.default_run("psiphi", world.name, world=world, task=self.task, seed=self.seed, agent=self.config)
        shown = {"demos": training.NONE} if self.demos is not None or run.demos == training.NONE else {}
        return dataclasses.replace(run, **pace, **shown)

    _remembered: dict[str, Any] | None = None

    def _open(self) -> Place:
        if self.world is None:
            raise UserError("This PsiPhi was loaded and its file names no world: set agent.world = psiphi.worlds.find(...) to learn more.")
        if self._known is not None and self.demos is not None and self._known.agents != self.demos.agents:
            raise UserError("This PsiPhi has got to know further demonstrators since it learned; make a new one with all demonstrations.")
        return self.world

    def fit_new_demonstrator(self, demos: Demonstrations, *, progress: bool = True) -> "PsiPhi":
        """Get to know further agents: phi stays as it is, and so do all other policies, to the last bit. GPI then has more to follow."""
        known, inner = self._trained(), self.config.itd
        self._known = newcomers.joined(known, inner, demos, updates=NEWCOMER_UPDATES, seed=self.seed, progress=progress)
        return self

    def save(self, path: str | Path) -> None:
        """Write the model to a directory, in place of a model that is there; `psiphi.load` reads it. Experience is not kept."""
        files.save(doors.path(path), "psiphi", self._trained(), self.config, self.seed, self._task, run=self._remembered)

    def _trained(self) -> Known:
        if self._known is None:
            raise UserError("This PsiPhi has learned nothing yet; call learn with a number of steps first.")
        return self._known

    def __repr__(self) -> str:
        agents = self._known.agents if self._known else self.demos.agents if self.demos else ()
        return f"PsiPhi({len(agents)} demonstrators, {self.steps} steps)"


def _width(env: Any, num_envs: int) -> int:
    """How many environments there will be."""
    return env.num_envs if isinstance(env, VectorEnv) else 1 if isinstance(env, gymnasium.Env) else num_envs


def _begun(known: Known) -> Any:
    """The network of a loaded agent, with the preferences that it acts by."""
    return eqx.tree_at(lambda net: net.w, known.model.net, known.model.w)


def load(path: str | Path, *, features: Any = None) -> Any:
    """Read a model directory, or the one inside a run directory, whatever trained it: a `psiphi.ITD`, `PsiPhi`, `BC`, `DQN`, `SQIL`, `GAIL`
    or `PPO` that answers as it did. Nothing in the files is executed.

    A function that gave a model its cumulants is not in the files: hand it over as `features`, or do without rewards.
    """
    from psiphi.api.itd import ITD

    got = files.read(doors.path(path, "The model"), features)
    if got.known is None or got.policies is not None:
        return baselines.loaded(got)
    learner: Any = ITD(got.config, got.seed) if got.algorithm == "itd" else PsiPhi.__new__(PsiPhi)
    if isinstance(learner, PsiPhi):
        learner.seed, learner.config, learner.demos, learner.features = got.seed, got.config, None, features
        learner.num_envs, learner.task, learner.steps, learner.run_dir, learner._state = 8, "", 0, None, None
        learner.world, learner._remembered = baselines.remembered_world(got), got.run
        if got.run is not None:
            learner.num_envs, learner.task = configs.fit(Count, got.run.get("num_envs", 8), "num_envs"), str(got.run.get("task", ""))
    learner._known, learner._task = got.known, got.task
    return learner
