"""What an agent remembers: its own experience (flashbax) and the demonstrations, sampled per demonstrator."""

import math
from typing import Any, NamedTuple, TypeVar

import flashbax
import jax
import jax.numpy as jnp
import numpy as np
from flashbax.buffers.trajectory_buffer import TrajectoryBuffer
from jax import Array
from jaxtyping import Bool, Int, Shaped

from psiphi.errors import UserError
from psiphi.types import NO_ACTION, Demonstration, Demos, EnvSpec, Transition

Step = TypeVar("Step", Demonstration, Transition)


LARGE = 4_096
"""Bytes of an observation from which on each is stored once, not as the one before and the one after a step."""


def is_large(shape: tuple[int, ...], dtype: Any) -> bool:
    """Whether an observation is a picture, or as large as one."""
    return math.prod(shape) * np.dtype(dtype).itemsize >= LARGE


def make_experience(*, num_envs: int, size: int, batch: int, n_step: int, spec: EnvSpec | None = None) -> "Experience":
    """A ring of the last `size` steps from which sequences of `n_step` transitions are drawn uniformly.

    Of a `spec` with large observations, sequences have the *places* of observations, which `look_up` exchanges for what is there: so
    only those are read that are needed.
    """
    length = max(size // num_envs, n_step + 1)
    if spec is not None and is_large(spec.obs_shape, spec.obs_dtype):
        return Once(num_envs, length, batch, n_step)
    return flashbax.make_trajectory_buffer(
        add_batch_size=num_envs,
        sample_batch_size=batch,
        sample_sequence_length=n_step,
        period=1,
        min_length_time_axis=n_step,
        max_length_time_axis=length,
    )


class OnceState(NamedTuple):
    """What `Once` remembers. Frames are numbered from 0 for each environment; number f is at f modulo the room for frames."""

    frames: Shaped[Array, "N F *obs"]
    steps: Transition
    """``[N, L]``: `obs` and `next_obs` are numbers of frames."""
    added: Int[Array, ""]
    """Steps ever added of each environment."""
    oldest: Int[Array, ""]
    """The first of them whose frames are all still there."""
    written: Int[Array, " N"]
    """Where the next step's first frame goes; unless an episode ended there, it was written as the last step's second one."""


class Sampled(NamedTuple):
    """Sequences of transitions, as flashbax hands them out."""

    experience: Transition


class Once:
    """A ring in which each frame is stored once: what a step leads to is the following frame. An episode's last frame has a place too.

    There is room for an end in each `ENDS` steps; with more of them, fewer steps are remembered, never wrong ones.
    """

    ENDS = 16

    def __init__(self, num_envs: int, length: int, batch: int, n_step: int):
        self.num_envs, self.length, self.batch, self.n_step = num_envs, length, batch, n_step
        self.room = length + length // self.ENDS + 2

    def init(self, blank: Transition) -> OnceState:
        rows, zero = (self.num_envs, self.length), jnp.zeros((), jnp.int32)
        numbers = blank._replace(obs=zero, next_obs=zero)
        frames = jnp.zeros((self.num_envs, self.room, *blank.obs.shape), blank.obs.dtype)
        steps = jax.tree.map(lambda x: jnp.zeros((*rows, *jnp.shape(x)), jnp.asarray(x).dtype), numbers)
        return OnceState(frames, steps, zero, zero, jnp.zeros(self.num_envs, jnp.int32))

    def add(self, state: OnceState, rollout: Transition) -> OnceState:
        """Append a rollout ``[N, T]``."""
        env = jnp.arange(self.num_envs)

        def one(state: OnceState, step: Transition) -> tuple[OnceState, None]:
            first, slot = state.written, state.added % self.length
            frames = state.frames.at[env, first % self.room].set(step.obs)
            frames = frames.at[env, (first + 1) % self.room].set(step.next_obs)
            numbered = step._replace(obs=first, next_obs=first + 1)
            steps = jax.tree.map(lambda ring, new: ring.at[:, slot].set(new), state.steps, numbered)
            written = first + 1 + step.last.astype(jnp.int32)
            added = state.added + 1
            # Every environment moves on by at most two frames, so at most two steps lose theirs.
            oldest = jnp.maximum(state.oldest, added - self.length)
            for _ in range(2):
                gone = jnp.any(steps.obs[:, oldest % self.length] <= written - self.room)
                oldest = oldest + (gone & (oldest < added))
            return OnceState(frames, steps, added, oldest, written), None

        return jax.lax.scan(one, state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rollout))[0]

    def sample(self, state: OnceState, key: Array) -> Sampled:
        """Sequences ``[batch, n_step]`` of successive steps, with the places of their observations."""
        env_key, start_key = jax.random.split(key)
        env = jax.random.randint(env_key, (self.batch, 1), 0, self.num_envs)
        starts = jnp.maximum(state.added - state.oldest - self.n_step + 1, 1)
        start = state.oldest + jax.random.randint(start_key, (self.batch, 1), 0, starts)
        steps = jax.tree.map(lambda x: x[env, (start + jnp.arange(self.n_step)) % self.length], state.steps)
        place = lambda number: env * self.room + number % self.room  # noqa: E731
        return Sampled(steps._replace(obs=place(steps.obs), next_obs=place(steps.next_obs)))


Experience = TrajectoryBuffer | Once
"""A ring of steps: `init(blank)`, `add(state, rollout)`, `sample(state, key).experience`, then `look_up`."""


def look_up(state: Any, batch: Transition) -> Transition:
    """Transitions with their observations, where they have the places of them."""
    if not isinstance(state, OnceState):
        return batch
    rooms = state.frames.shape[1]
    at = lambda place: state.frames[place // rooms, place % rooms]  # noqa: E731
    return batch._replace(obs=at(batch.obs), next_obs=at(batch.next_obs))


def blank_transition(spec: EnvSpec) -> Transition:
    """One transition of the right shapes, which tells the ring what it will hold."""
    obs = jnp.zeros(spec.obs_shape, jax.dtypes.canonicalize_dtype(spec.obs_dtype))  # float64 becomes what JAX computes with
    zero = jnp.zeros(())
    return Transition(obs, jnp.zeros((), jnp.int32), zero, zero, obs, jnp.zeros((), bool))


def remember(experience: "Experience", state: Any, rollout: Transition) -> Any:
    """Append a rollout ``[T, N]``."""
    return experience.add(state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rollout))


def n_step(sequence: Transition, gamma: float | Array) -> Transition:
    """Fold sequences ``[B, n]`` into n-step transitions ``[B]``: `reward` is the n-step return, `discount` what multiplies the
    bootstrap, `next_obs` where it bootstraps. A sequence stops at an episode's end; a time limit still bootstraps, a termination does not.
    """

    def fold(carry: Transition, step: Transition) -> tuple[Transition, None]:
        going = ~carry.last
        merged = Transition(
            obs=carry.obs,
            action=carry.action,
            reward=carry.reward + carry.discount * step.reward,
            discount=carry.discount * gamma * step.discount,
            next_obs=step.next_obs,
            last=step.last,
        )
        return jax.tree.map(
            lambda new, old: jnp.where(jnp.reshape(going, going.shape + (1,) * (new.ndim - 1)), new, old), merged, carry
        ), None

    by_time = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), sequence)
    first = jax.tree.map(lambda x: x[0], by_time)
    rest = jax.tree.map(lambda x: x[1:], by_time)
    return jax.lax.scan(fold, first._replace(discount=gamma * first.discount), rest)[0]


def no_demonstrations(spec: EnvSpec, agents: int, room: int) -> Demos:
    """Empty rings of `room` steps for so many demonstrators, to be filled by `add_demonstrations`."""
    obs, action = jnp.zeros((agents, room, *spec.obs_shape), spec.obs_dtype), jnp.zeros((agents, room), jnp.int32)
    return Demos(Demonstration(obs, action, jnp.zeros((agents, room)), obs, action), jnp.zeros(agents, jnp.int32))


def sample_demonstrations(demos: Demos, key: Array, batch: int, agents: Int[Array, " n"] | None = None) -> Demonstration:
    """`batch` steps of each demonstrator (or of these `agents`), ``[K, batch]``, uniform over that demonstrator's own steps.

    Of one who has shown none these are padding: weigh what is made of them by `has_shown`.
    """
    whose = jnp.arange(demos.count.shape[0]) if agents is None else agents
    index = jax.random.randint(key, (whose.shape[0], batch), 0, jnp.maximum(demos.count[whose], 1)[:, None])
    return steps_at(demos, whose[:, None], index)


def steps_at(demos: Demos, agent: Array, index: Array) -> Demonstration:
    """Some steps of some demonstrators, with what they saw."""
    steps = jax.tree.map(lambda x: x[agent, index], demos.steps)
    if demos.frames is None:
        return steps
    return steps._replace(obs=demos.frames[agent, steps.obs], next_obs=demos.frames[agent, steps.next_obs])


def spread(demos: Demos, most: int = 4_096) -> Demos:
    """Demonstrations with their observations in the steps; of those whose frames are stored once, at most so many steps of each, evenly."""
    if demos.frames is None:
        return demos
    agents, room = demos.steps.action.shape
    kept = min(most, room)
    count = jnp.minimum(demos.count, kept)
    index = (jnp.arange(kept) * jnp.maximum(demos.count, 1)[:, None]) // jnp.maximum(count, 1)[:, None]
    index = jnp.minimum(index, jnp.maximum(demos.count - 1, 0)[:, None])
    return Demos(steps_at(demos, jnp.arange(agents)[:, None], index), count)


def has_shown(demos: Demos) -> Bool[Array, " K"]:
    """Whether each demonstrator has shown any step yet; online, some have not."""
    return demos.count > 0


def sample_pool(demos: Demos, key: Array, batch: int) -> Demonstration:
    """`batch` steps, uniform over all steps of all demonstrators; at least one step must have been shown."""
    ends = jnp.cumsum(demos.count)
    index = jax.random.randint(key, (batch,), 0, jnp.maximum(ends[-1], 1))
    agent = jnp.minimum(jnp.searchsorted(ends, index, side="right"), ends.shape[0] - 1)
    step = index - (ends - demos.count)[agent]
    return steps_at(demos, agent, step)


def only(demos: Demos, demonstrator: int | None) -> Demos:
    """The demonstrations of one demonstrator, still with an axis for it; of all if None."""
    return demos if demonstrator is None else jax.tree.map(lambda x: x[demonstrator : demonstrator + 1], demos)


def check_shapes(demos: Demos | None, spec: EnvSpec, demonstrator: int | None = None, num_demonstrators: int | None = None) -> Demos:
    """The demonstrations, if there are any and they have the right shapes; nothing else is looked at, so JAX may be tracing."""
    if demos is None:
        raise UserError("There are no demonstrations, but this agent learns from them.")
    agents = demos.count.shape[0]
    if demonstrator is not None and not 0 <= demonstrator < agents:
        raise UserError(f"Demonstrator {demonstrator} is unknown: there are {agents}, counted from 0.")
    if num_demonstrators is not None and num_demonstrators != agents:
        raise UserError(f"There are demonstrations of {agents} demonstrators, expected those of {num_demonstrators}.")
    stored = (demos.steps.obs, demos.steps.next_obs) if demos.frames is None else (demos.frames, demos.frames)
    for name, shape in zip(("obs", "next_obs"), (x.shape[2:] for x in stored), strict=True):
        if shape != spec.obs_shape:
            raise UserError(
                f"The demonstrations' {name} has shape {shape}, but the environment's observations have shape {spec.obs_shape}."
            )
    return demos


def check_demos(demos: Demos | None, spec: EnvSpec, demonstrator: int | None = None, num_demonstrators: int | None = None) -> Demos:
    """The door: refuse demonstrations from which no agent in this environment could learn, those of all or those of one demonstrator.

    It reads the values, so call it before training, not inside of a compiled function. Online, where demonstrators start with nothing,
    `check_shapes` is all that can be asked.
    """
    checked = check_shapes(demos, spec, demonstrator, num_demonstrators)
    for k in range(checked.count.shape[0]) if demonstrator is None else [demonstrator]:
        _check_demonstrator(checked, k, spec.num_actions)
    return checked


def _check_demonstrator(demos: Demos, k: int, num_actions: int) -> None:
    count, room = int(demos.count[k]), demos.steps.action.shape[1]
    if not 0 < count <= room:
        raise UserError(f"Demonstrator {k} has shown {count} steps, expected 1 to {room}, the number of steps that are stored.")
    action, next_action = (np.asarray(x[k, :count]) for x in (demos.steps.action, demos.steps.next_action))
    for name, taken, least in (("action", action, 0), ("next action", next_action, NO_ACTION)):
        strange = taken[(taken < least) | (taken >= num_actions)]
        if strange.size:
            raise UserError(f"Demonstrator {k} took {name} {strange[0]}, but the environment's actions are 0 to {num_actions - 1}.")
    discount = np.asarray(demos.steps.discount[k, :count])
    if not np.all((discount >= 0) & (discount <= 1)):
        raise UserError(f"Demonstrator {k} has discounts outside of 0 (the task ended there) to 1.")


def sample_anybody(demos: Demos, key: Array, batch: int) -> Transition:
    """Steps of all demonstrators, without reward; with a background, about half of them are of that."""
    logged_key, background_key, which_key = jax.random.split(key, 3)
    steps = sample_pool(demos, logged_key, batch)
    if demos.background is not None:
        other = jax.random.randint(background_key, (batch,), 0, demos.background.action.shape[0])
        logged = jax.random.bernoulli(which_key, shape=(batch,))
        steps = jax.tree.map(lambda x, y: jnp.where(logged.reshape(-1, *[1] * (x.ndim - 1)), x, y[other]), steps, demos.background)
    blank = jnp.zeros(batch)
    return Transition(steps.obs, steps.action, blank, steps.discount, steps.next_obs, blank.astype(bool))


def add_demonstrations(
    demos: Demos, agent: Int[Array, " n"], steps: Demonstration, seen: Int[Array, " K"]
) -> tuple[Demos, Int[Array, " K"]]:
    """Append `steps[i]` to demonstrator `agent[i]`'s ring (online demonstrations; `agent` -1 is an empty slot and is dropped).

    `seen[k]` counts all steps of k ever added, so that the ring overwrites its oldest. One call may bring at most as many steps of one
    demonstrator as its ring holds.
    """
    agents, room = demos.steps.action.shape[:2]
    mine = agent[:, None] == jnp.arange(agents)
    rank = jnp.sum(jnp.where(mine, jnp.cumsum(mine, axis=0) - 1, 0), axis=1)
    slot = (seen[agent] + rank) % room
    row = jnp.where(agent < 0, agents, agent)  # out of range: dropped by the scatter
    data = jax.tree.map(lambda ring, new: ring.at[row, slot].set(new, mode="drop"), demos.steps, steps)
    total = seen + jnp.sum(mine, axis=0)
    return Demos(data, jnp.minimum(total, room).astype(demos.count.dtype)), total


def mirror(spec: EnvSpec, batch: Step, key: Array) -> Step:
    """Show a random half of a batch ``[B]`` through the environment's symmetry, observations and actions alike."""
    symmetry = spec.symmetry
    if symmetry is None:
        return batch
    flip = jax.random.bernoulli(key, shape=batch.action.shape)

    def turn(name: str, x: Array) -> Array:
        if name.endswith("obs"):
            return jnp.where(flip.reshape(-1, *[1] * (x.ndim - 1)), jax.vmap(symmetry.obs)(x), x)
        if name.endswith("action"):
            return jnp.where(flip & (x != NO_ACTION), symmetry.action(x), x)
        return x

    return type(batch)(**{name: turn(name, x) for name, x in batch._asdict().items()})  # pyright: ignore[reportReturnType]


def mirror_demonstrations(spec: EnvSpec, demo: Demonstration, key: Array) -> Demonstration:
    """`mirror` on a batch of demonstrations ``[K, B]``."""
    turned = mirror(spec, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), demo), key)
    return jax.tree.map(lambda x, like: x.reshape(like.shape), turned, demo)
