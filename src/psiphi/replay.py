"""What an agent remembers: its own experience (flashbax) and the demonstrations, sampled per demonstrator."""

from typing import Any, TypeVar

import flashbax
import jax
import jax.numpy as jnp
from flashbax.buffers.trajectory_buffer import TrajectoryBuffer
from jax import Array
from jaxtyping import Int

from psiphi.types import NO_ACTION, Demonstration, Demos, EnvSpec, Transition

Step = TypeVar("Step", Demonstration, Transition)


def make_experience(*, num_envs: int, size: int, batch: int, n_step: int) -> TrajectoryBuffer:
    """A ring of the last `size` steps from which sequences of `n_step` transitions are drawn uniformly."""
    return flashbax.make_trajectory_buffer(
        add_batch_size=num_envs,
        sample_batch_size=batch,
        sample_sequence_length=n_step,
        period=1,
        min_length_time_axis=n_step,
        max_length_time_axis=max(size // num_envs, n_step + 1),
    )


def blank_transition(spec: EnvSpec) -> Transition:
    """One transition of the right shapes, which tells the ring what it will hold."""
    obs = jnp.zeros(spec.obs_shape, spec.obs_dtype)
    zero = jnp.zeros(())
    return Transition(obs, jnp.zeros((), jnp.int32), zero, zero, obs, jnp.zeros((), bool))


def remember(experience: TrajectoryBuffer, state: Any, rollout: Transition) -> Any:
    """Append a rollout ``[T, N]``."""
    return experience.add(state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rollout))


def n_step(sequence: Transition, gamma: float) -> Transition:
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


def sample_demonstrations(demos: Demos, key: Array, batch: int) -> Demonstration:
    """`batch` steps of each demonstrator, ``[K, batch]``, uniform over that demonstrator's own steps; everyone must have shown one."""
    agents = demos.count.shape[0]
    index = jax.random.randint(key, (agents, batch), 0, jnp.maximum(demos.count, 1)[:, None])
    return jax.tree.map(lambda x: x[jnp.arange(agents)[:, None], index], demos.steps)


def add_demonstrations(
    demos: Demos, agent: Int[Array, " n"], steps: Demonstration, seen: Int[Array, " K"]
) -> tuple[Demos, Int[Array, " K"]]:
    """Append `steps[i]` to demonstrator `agent[i]`'s ring (online demonstrations; `agent` -1 is nobody and is dropped).

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
