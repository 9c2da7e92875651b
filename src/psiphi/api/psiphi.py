"""`psiphi.PsiPhi`: learn a task of one's own in an environment, faster, by what others were seen to do there."""

import dataclasses
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from psiphi import configs, cumulants, doors
from psiphi.agents import itd, psiphi
from psiphi.agents.psiphi import PsiPhiConfig
from psiphi.api import files, newcomers
from psiphi.api.itd import CHUNK, MOST_OWN_CUMULANTS, cumulants_for, initial, trained_model
from psiphi.api.known import Known, Learned, check_fits, known_from
from psiphi.api.lens import lens_for
from psiphi.configs import Count, Few, Number
from psiphi.demos import Demonstrations
from psiphi.errors import UserError
from psiphi.loops import divergence, gym, scan
from psiphi.progress import shown
from psiphi.types import Agent, Demos, Env, EnvSpec, Pace

World = Env | gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any] | Callable[[], gymnasium.Env[Any, Any]] | str
"""A JAX environment, or a Gymnasium environment, a vector of them, a function that makes one, or the id of one."""

ONLINE = PsiPhiConfig()
"""PsiPhi-learning's own default."""

STEPS_PER_UPDATE = 8
"""Environment steps, summed over the environments, between two updates."""

PREFILL = 2_048
"""Random steps before the first update; of a short run, a quarter."""

NEWCOMER_UPDATES = 6_000
"""Updates in which a further demonstrator is got to know."""

PICTURE_REPLAY = 10_000
"""Steps that are remembered where observations are pictures and the config says nothing."""


class Place(NamedTuple):
    """An environment as the learner needs it."""

    jax_env: Env | None
    worlds: gym.Worlds | None
    shape: tuple[int, ...]
    dtype: Any
    num_actions: int
    first_action: int
    num_envs: int


def place_of(world: World, num_envs: int) -> Place:
    """What an environment shows and allows; Gymnasium's are made a vector of `num_envs`, or of one if one is given."""
    if isinstance(world, Env):
        spec = world.spec
        return Place(world, None, spec.obs_shape, spec.obs_dtype, spec.num_actions, 0, num_envs)
    envs = _vector(world, num_envs)
    seen, done = envs.single_observation_space, envs.single_action_space
    if not isinstance(done, gymnasium.spaces.Discrete):
        raise UserError(f"The environment's actions are {done}, but expected were discrete ones.")
    if not isinstance(seen, gymnasium.spaces.Box | gymnasium.spaces.MultiBinary) or not seen.shape:
        raise UserError(
            f"The environment's observations are {seen}, but expected were arrays; gymnasium.wrappers.FlattenObservation makes some."
        )
    first = int(done.start)
    return Place(None, gym.Worlds(envs, first_action=first), seen.shape, seen.dtype, int(done.n), first, envs.num_envs)


def _vector(world: Any, num_envs: int) -> VectorEnv[Any, Any, Any]:
    if isinstance(world, VectorEnv):
        return world
    if isinstance(world, gymnasium.Env):
        return SyncVectorEnv([lambda: world], autoreset_mode=AutoresetMode.SAME_STEP)
    maker: Any = partial(gymnasium.make, world) if isinstance(world, str) else world
    if not callable(world) and not isinstance(world, str):
        raise UserError(
            f"The environment is a {type(world).__name__}, but expected was an environment, a function that makes one, or its id."
        )

    def factory() -> gymnasium.Env[Any, Any]:
        made = maker()
        if not isinstance(made, gymnasium.Env):
            raise UserError(f"What should make an environment made {doors.called(made)}, expected a gymnasium.Env.")
        return made

    try:
        return SyncVectorEnv([factory] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    except (gymnasium.error.Error, ImportError) as error:
        raise UserError(f"The environment {world!r} cannot be made: {str(error).rstrip('.')}.") from error


def online(config: PsiPhiConfig | None, agents: int, shape: tuple[int, ...]) -> PsiPhiConfig:
    """The config; the default has a cumulant per agent and remembers fewer pictures."""
    if config is not None:
        return config
    inner = ONLINE.itd
    size = PICTURE_REPLAY if len(shape) == 3 and shape[0] > 16 else inner.replay_size
    cumulants = max(inner.num_cumulants, min(agents, MOST_OWN_CUMULANTS))
    return dataclasses.replace(ONLINE, itd=dataclasses.replace(inner, num_cumulants=cumulants, replay_size=size))


class PsiPhi(Learned):
    """PsiPhi-learning in any environment with discrete actions: its own task from rewards, the rest from what others were seen to do.

    >>> agent = psiphi.PsiPhi("CartPole-v1", demos, seed=0).learn(100_000)
    >>> action = agent.predict(obs)
    >>> print(agent.explain(obs))                  # whom it follows, and why
    >>> agent.adapt((obs, actions, rewards))       # another task, in milliseconds
    >>> agent.save("my-agent")

    `env` is a Gymnasium environment, a vector environment, a function that makes an environment, the id of one, or a JAX environment
    (`psiphi.types.Env`). Of functions and ids, `num_envs` environments are made.
    """

    def __init__(
        self,
        env: World,
        demos: Demonstrations,
        config: PsiPhiConfig | None = None,
        seed: int = 0,
        *,
        num_envs: int = 8,
        features: Any = None,
    ):
        self.seed = doors.seed(seed)
        config = doors.config(config, PsiPhiConfig)
        demos = doors.demonstrations(demos, Demonstrations)
        self.place: Place | None = place_of(env, configs.fit(Few, num_envs, "num_envs"))
        check_fits(demos, self.place.shape, self.place.num_actions)
        self.config = online(config, len(demos.agents), self.place.shape)
        self._lens = lens_for(demos.obs, self.place.shape, self.place.dtype)
        self._agents = demos.agents
        self._given = cumulants_for(self.config.itd, demos, features)
        self._names = () if self._given is None else cumulants.names(self._given, demos.names)
        self._demos: Demos | None = demos.to_demos()
        self._state: Any = None
        self.steps = 0
        """Environment steps so far."""

    def learn(self, total_timesteps: int, *, study: int | None = None, progress: bool = True) -> "PsiPhi":
        """Act and learn for so many environment steps; a further call goes on, with a learning rate that starts anew.

        `study` updates are made before the first step is acted upon, on demonstrations (and some random steps) alone; None: 500 in the
        first call.
        """
        total_timesteps = configs.fit(Count, total_timesteps, "total_timesteps")
        study = configs.fit(Number | None, study, "study")
        place, demos = self._open()
        loop = loop_of(place, total_timesteps, study, self.seed, first=self._state is None)
        config, pace = self.config, Pace(place.num_envs, loop.iterations * loop.updates_per_rollout)
        symmetry = place.jax_env.spec.symmetry if place.jax_env else None
        spec = EnvSpec(place.shape, place.dtype, place.num_actions, symmetry)
        agent = psiphi.make(config, spec, len(self._agents), pace, initial(config.itd, self._lens, place.num_actions, self._given))
        self._state = self._run(agent, loop, demos, progress)
        self.steps += loop.env_steps(loop.iterations)
        net, agents = itd.deployed(config.itd, self._state), len(self._agents)
        model = trained_model(config.itd, net, demos, agents, self._state.net.w[agents:])
        self._task = None
        if not np.any(model.w[-1]):
            print(f"psiphi: no reward but 0 was met in {self.steps} steps, so there is no task to act on yet.", file=sys.stderr)
        self._known = known_from(
            model, self._lens, demos, self._agents,
            beta=config.itd.beta or 1.0, temperature=config.temperature, first_action=place.first_action, gamma=config.itd.gamma,
            lapse=() if net.lapse is None else tuple(np.asarray(jax.nn.sigmoid(net.lapse[:agents])).tolist()), names=self._names,
        )  # fmt: skip
        return self

    def _run(self, agent: Agent, loop: scan.LoopConfig, demos: Demos, progress: bool) -> Any:
        """The agent's state after the loop; what an earlier call learned is kept, its optimiser and schedules are not."""
        place, _ = self._open()
        state = self._state
        if state is not None:
            fresh = jax.jit(agent.init)(jax.random.key(self.seed), demos)
            state = state._replace(optimiser=fresh.optimiser, ramp=fresh.ramp)
        if place.worlds is not None:
            return gym.run(place.worlds, agent, demos, loop, state=state, progress=progress).agent()
        assert place.jax_env is not None
        return _compiled(place.jax_env, agent, demos, loop, state, progress)

    def _open(self) -> tuple[Place, Demos]:
        if self.place is None or self._demos is None:
            raise UserError("A loaded PsiPhi has no environment and no demonstrations to learn from; make a new one to learn more.")
        if self._known is not None and self._known.agents != self._agents:
            raise UserError("This PsiPhi has got to know further demonstrators since it learned; make a new one with all demonstrations.")
        return self.place, self._demos

    def fit_new_demonstrator(self, demos: Demonstrations, *, progress: bool = True) -> "PsiPhi":
        """Get to know further agents: phi stays as it is, and so do all other policies, to the last bit. GPI then has more to follow."""
        self._known = newcomers.joined(self._trained(), self.config.itd, demos, updates=NEWCOMER_UPDATES, seed=self.seed, progress=progress)
        return self

    def save(self, path: str | Path) -> None:
        """Write the model to a directory, in place of a model that is there; `psiphi.load` reads it. Experience is not kept."""
        files.save(doors.path(path), "psiphi", self._trained(), self.config, self.seed, self._task)

    def _trained(self) -> Known:
        if self._known is None:
            raise UserError("This PsiPhi has learned nothing yet; call learn with a number of steps first.")
        return self._known

    def __repr__(self) -> str:
        return f"PsiPhi({len(self._agents)} demonstrators, {self.steps} steps)"


def loop_of(place: Place, steps: int, study: int | None, seed: int, *, first: bool) -> scan.LoopConfig:
    """One update for every few steps, however many environments there are."""
    length = max(1, round(STEPS_PER_UPDATE / place.num_envs))
    rollout = length * place.num_envs
    prefill = max(min(PREFILL, steps // 4), rollout * 2) if first else 0
    studies = (500 if first else 0) if study is None else study
    iterations = studies + max(1, -(-(steps - prefill) // rollout))
    return scan.LoopConfig(
        iterations=iterations,
        chunk=min(CHUNK, iterations),
        num_envs=place.num_envs,
        rollout_length=length,
        updates_per_rollout=max(1, round(rollout / STEPS_PER_UPDATE)),
        prefill_steps=prefill,
        study=studies,
        seed=seed,
    )


def _compiled(env: Env, agent: Agent, demos: Demos, loop: scan.LoopConfig, state: Any, progress: bool) -> Any:
    """The compiled loop, which may begin with a state that is given."""
    if state is None:
        return scan.run(env, agent, demos, loop, progress=progress).agent()
    program = scan.compile_run(env, agent, loop)
    carry = program.begin(jax.random.key(loop.seed)[None], demos)._replace(agent=jax.tree.map(lambda x: x[None], state))
    done = 0
    with shown("iterations", done=0, total=loop.iterations, enabled=progress) as display:
        while done < loop.iterations:
            studies = done < loop.study
            length = min(loop.chunk, (loop.study if studies else loop.iterations) - done)
            carry, metrics = (program.study if studies else program.chunk)(carry, length)
            done += length
            divergence.check(done, metrics, carry.agent)
            display.advance(done, {})
    return jax.tree.map(lambda x: x[0], carry.agent)


def load(path: str | Path, *, features: Any = None) -> Any:
    """Read what `save` wrote: a `psiphi.ITD` or a `psiphi.PsiPhi` that answers as it did. Nothing in the files is executed.

    A function that gave a model its cumulants is not in the files: hand it over as `features`, or do without rewards.
    """
    from psiphi.api.itd import ITD

    got = files.read(doors.path(path, "The model"), features)
    learner: Any = ITD(got.config, got.seed) if got.algorithm == "itd" else PsiPhi.__new__(PsiPhi)
    if isinstance(learner, PsiPhi):
        learner.seed, learner.config, learner.place, learner.steps = got.seed, got.config, None, 0
        learner._lens, learner._agents, learner._demos, learner._state = got.known.lens, got.known.agents, None, None
    learner._known, learner._task = got.known, got.task
    return learner
