"""The Gymnasium loop: any agent on any vector of Gymnasium environments, with the compiled loop's keys, rows and checkpoints.

Environments are stepped by the host, everything else is compiled. An agent is shown the same transitions as in the compiled loop:
`next_obs` is the observation before a reset, a time limit keeps discount 1, and the step with which some vector environments reset
themselves (Gymnasium's "next step" mode) is none. Where the worlds draw no random numbers, both loops do the same, number for number.

Environments cannot be put down, so a checkpoint has the actions that led to where they are. What continues plays these again: the same seed
and the same actions lead to the same place, and where they do not, that is noticed and said.
"""

import contextlib
import dataclasses
import time
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from jax import Array

from psiphi.errors import UserError
from psiphi.loops import runs, scan
from psiphi.loops.scan import Carry, LoopConfig, Program, Result
from psiphi.progress import Silent, shown
from psiphi.types import Agent, Demonstration, Demos, Metrics, Transition

See = Callable[[Any], np.ndarray]
"""What the environments show, ``[N, ...]``, as the agent is to see it."""

HostPolicy = Callable[[np.ndarray, Array], Any]
"""``policy(obs[N], key) -> action[N]``"""


class Step(NamedTuple):
    """One step of all environments: the transitions ``[N]``, which of them truly happened, and what was said of others meanwhile."""

    transition: Transition
    real: np.ndarray
    info: dict[str, Any]


def _finite(what: str, array: Any) -> Any:
    """What an environment gave, if an agent can learn from it."""
    numbers = np.asarray(array)
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        raise UserError(f"The environment gave {what} of {numbers[~np.isfinite(numbers)][0]}, expected finite numbers.")
    return array


class Worlds:
    """A vector of Gymnasium environments as the loop sees it: where they are now, and whole transitions."""

    def __init__(self, envs: VectorEnv[Any, Any, Any], *, see: See = np.asarray, first_action: int = 0, watched: bool = False):
        """`first_action` is what the environment calls the agent's action 0. Where others are `watched`, the environments are told so by
        the option `watch` of their reset: some let demonstrators play only then."""
        self.envs, self.see, self.first_action = envs, see, first_action
        self._options = {"watch": True} if watched else None
        self.mode = AutoresetMode(envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self.num_envs = envs.num_envs
        self.obs = np.zeros(0)
        self._resets_next = np.zeros(self.num_envs, bool)

    def reset(self, seed: int | None = None) -> None:
        """A fresh episode everywhere."""
        with _theirs("reset"):
            raw, _ = self.envs.reset(seed=seed, options=self._options)
        self.obs = self.see(_finite("an observation", raw))
        self._resets_next = np.zeros(self.num_envs, bool)

    def step(self, action: np.ndarray) -> Step:
        """Act everywhere; episodes that end are followed by fresh ones."""
        obs, phantom = self.obs, self._resets_next
        with _theirs("step"):
            raw, reward, terminated, truncated, info = self.envs.step(self.first_action + action)
        last = np.logical_or(terminated, truncated)
        reached = self.see(_finite("an observation", raw))
        self.obs, self._resets_next = reached, np.zeros(self.num_envs, bool)
        if self.mode == AutoresetMode.NEXT_STEP:
            self._resets_next = last
        elif last.any() and self.mode == AutoresetMode.SAME_STEP:
            reached = np.array(reached)
            reached[last] = self.see(_finite("an observation", np.stack([info["final_obs"][i] for i in np.flatnonzero(last)])))
        elif last.any():
            self.obs = self.see(_finite("an observation", self.envs.reset(options={"reset_mask": last})[0]))
        discount = 1.0 - np.asarray(terminated, np.float32)
        paid = _finite("a reward", np.asarray(reward, np.float32))
        transition = Transition(obs, action, paid, discount, reached, last)  # pyright: ignore[reportArgumentType]
        return Step(transition, ~phantom, info)


@contextlib.contextmanager
def _theirs(method: str) -> Iterator[None]:
    """Code of a stranger's: what it raises is told in a sentence, with the line that raised it."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        where = f"{Path(frame.f_code.co_filename).name}, line {line}"
        raise UserError(f"The environment's {method} failed in {where}: {type(error).__name__}: {str(error).rstrip('.')}.") from error


class Moves(NamedTuple):
    """What led environments to where they are, since a reset with a known seed."""

    actions: Any
    """``[room, N]``, of which the first `played` rows count."""
    played: Any
    seen: Any
    """A checksum of all that was shown and paid on the way."""


class Collector:
    """Plays the worlds and hands out rollouts ``[T, N]`` of steps that truly happened.

    Where an environment spends a step on resetting itself, the others are ahead of it by one; their steps wait for their turn.
    With `watched`, it is told what others were seen to do, at every step.
    """

    def __init__(self, worlds: Worlds, watched: Callable[[np.ndarray, Demonstration], None] | None = None):
        self.worlds, self.watched = worlds, watched
        self._waiting: list[deque[tuple[Any, ...]]] = [deque() for _ in range(worlds.num_envs)]
        self._actions, self._seen = bytearray(), 0  # a bytearray grows in place

    def reset(self, seed: int | None = None) -> None:
        """A fresh episode everywhere; no step waits."""
        self.worlds.reset(seed)
        self._waiting = [deque() for _ in self._waiting]
        self._actions, self._seen = bytearray(), 0

    def collect(self, act: HostPolicy, key: Array, length: int) -> Transition:
        """Act until every environment has `length` steps to hand out."""
        # The keys that the compiled loop acts by.
        keys = jax.random.split(key, (length, 1 + 2 * self.worlds.num_envs))[:, 0]
        played = 0
        while min(map(len, self._waiting)) < length:
            act_key = keys[played] if played < length else jax.random.fold_in(key, played)
            self._play(np.asarray(act(self.worlds.obs, act_key), np.int32))
            played += 1
        steps = [[queue.popleft() for queue in self._waiting] for _ in range(length)]
        return Transition(*(np.stack([[step[i] for step in row] for row in steps]) for i in range(len(Transition._fields))))  # pyright: ignore[reportArgumentType]

    def moves(self, room: int) -> Moves:
        """All that was played since the reset, in an array of so many rows."""
        played = np.frombuffer(bytes(self._actions), np.int32).reshape(-1, self.worlds.num_envs)[:room]
        actions = np.zeros((room, self.worlds.num_envs), np.int32)
        actions[: len(played)] = played
        return Moves(actions, np.int64(len(played)), np.uint32(self._seen))

    def replay(self, moves: Moves, length: int) -> bool:
        """Play all of it again, unwatched, in rollouts of so many steps that are not handed out; tells whether all was as before."""
        watched, self.watched = self.watched, None
        for action in moves.actions[: int(moves.played)]:
            self._play(action)
            if min(map(len, self._waiting)) == length:
                for queue in self._waiting:
                    for _ in range(length):
                        queue.popleft()
        self.watched = watched
        return self._seen == int(moves.seen)

    def _play(self, action: np.ndarray) -> None:
        step = self.worlds.step(action)
        self._actions += action.tobytes()
        for given in (self.worlds.obs, step.transition.reward, step.transition.last):
            self._seen = zlib.crc32(np.ascontiguousarray(given).data, self._seen)
        for i in np.flatnonzero(step.real):
            self._waiting[i].append(tuple(column[i] for column in step.transition))
        if self.watched is not None:
            self.watched(*others_seen(step))


def others_seen(step: Step) -> tuple[np.ndarray, Demonstration]:
    """What a step's `info` says of others, from all environments: who was seen (-1: an empty slot), and what each of them did.

    Where an environment was reset in the same step, its last step's own info is what counts; a step that did not happen has empty slots.
    """
    found = [_info_of(step.info, i) for i in range(len(step.real))]
    if any("demonstrator" not in one or "demonstration" not in one for one in found):
        raise UserError('The environment shows no demonstrators, expected "demonstrator" and "demonstration" in the info of its steps.')
    who = np.stack([np.where(real, one["demonstrator"], -1) for one, real in zip(found, step.real, strict=True)])
    columns = [np.stack([one["demonstration"][name] for one in found]) for name in Demonstration._fields]
    return who.reshape(-1).astype(np.int32), Demonstration(*(x.reshape(-1, *x.shape[2:]) for x in columns))  # pyright: ignore[reportArgumentType]


def _info_of(info: dict[str, Any], i: int) -> dict[str, Any]:
    """The i-th environment's part of a vector's info, that of a finished episode where there is one."""
    if "final_info" in info and info.get("_final_info", np.zeros(i + 1, bool))[i]:
        return _part(info["final_info"], i)
    return _part(info, i)


def _part(info: Any, i: int) -> dict[str, Any]:
    if not isinstance(info, dict):  # one dictionary for each environment
        return info[i] or {}
    return {
        name: _part(x, i) if isinstance(x, dict) else x[i] for name, x in info.items() if not name.startswith("_") and name != "final_info"
    }


OTHER_DRAWS = 1_000_003
"""Added to the seed of environments in which a policy is judged: a learner of the same seed must not have begun in the same ones."""


def rollout_returns(
    worlds: Worlds, policy: HostPolicy, key: Array, num_episodes: int, max_steps: int | None = None, seed: int | None = None
) -> dict[str, np.ndarray]:
    """Equally many episodes in every environment, at least `num_episodes` in all: undiscounted `returns`, `lengths`, `finished`, and, if
    the steps' info has "features", their sums over each episode.

    The short ones do not crowd out the long ones, as they would if the first to finish were counted. After `max_steps` steps of an
    environment its episode is taken as it is.
    """
    worlds.reset(None if seed is None else seed + OTHER_DRAWS)
    wanted = -(-num_episodes // worlds.num_envs)
    done: list[list[tuple[Any, ...]]] = [[] for _ in range(worlds.num_envs)]
    total, length, played = np.zeros(worlds.num_envs), np.zeros(worlds.num_envs, int), 0
    features: Any = 0.0
    while min(map(len, done)) < wanted:
        step = worlds.step(np.asarray(policy(worlds.obs, jax.random.fold_in(key, played)), np.int32))
        played += 1
        total += np.asarray(step.transition.reward) * step.real
        length += step.real
        shown = features_of(step)
        features = features + (np.zeros((worlds.num_envs, 0)) if shown is None else shown * step.real[:, None])
        ended = np.asarray(step.transition.last) & step.real
        for i in np.flatnonzero(ended | (length == max_steps)):
            done[i].append((total[i], int(length[i]), bool(ended[i]), features[i].copy()))
            total[i], length[i], features[i] = 0.0, 0, 0.0
        if max_steps is not None and played >= wanted * (max_steps + 1):
            break
    episodes = [episode for mine in done for episode in mine[:wanted]]
    returns, lengths, finished, sums = map(np.array, zip(*episodes, strict=True))
    found = {"returns": returns, "lengths": lengths, "finished": finished}
    return found | {"features": sums} if sums.shape[1] else found


def features_of(step: Step) -> np.ndarray | None:
    """What each environment's info calls the "features" of the step, ``[N, f]``; None if it does not."""
    parts = [_info_of(step.info, i) for i in range(len(step.real))]  # the info of a reset, where every episode ended, has none
    return np.stack([part["features"] for part in parts]).astype(np.float64) if all("features" in part for part in parts) else None


def run(
    worlds: Worlds,
    agent: Agent,
    demos: Demos | None,
    config: LoopConfig,
    *,
    state: Any = None,
    out: Path | str | None = None,
    evaluate: Callable[[Any, Array], Metrics] | None = None,
    watch: scan.Watch | None = None,
    settings: dict[str, Any] | None = None,
    until: scan.Until | None = None,
    between: scan.Between | None = None,
    progress: bool = True,
    checkpoint_every_s: float = 30.0,
) -> Result:
    """Train to the end, as `scan.run` does, and give the last carry and all rows.

    `state` is an agent's state to go on from in place of a new one. `evaluate` is called by the host and need not be pure. A run that
    was interrupted first plays again what it had played, and so continues in the episodes that were interrupted; environments that do not
    repeat themselves begin fresh ones. With `watch`, the agent is shown what the info of each step has of others, `demonstrator` and
    `demonstration`.
    """
    if config.num_seeds != 1 or config.num_envs != worlds.num_envs:
        raise UserError(
            f"The Gymnasium loop runs one seed in the {worlds.num_envs} environments it is given, "
            f"but {config.num_seeds} seeds in {config.num_envs} environments are asked for."
        )
    host = _Host(worlds, agent, config, evaluate, watch)
    program = Program(partial(host.begin, state), host.chunk, host.study, host.judge, host.kept)  # pyright: ignore[reportArgumentType]
    keys = jax.random.key(config.seed)[None]
    scan.check_memory(host._empty, keys, demos)
    stage = partial(scan._Run, program, config, False)
    if out is None:
        with shown("iterations", done=0, total=config.iterations, enabled=progress) as display:
            alone = stage(None, checkpoint_every_s, lambda: None, display, time.monotonic(), until, between)
            return scan._train(alone, program.begin(keys, demos), [])
    directory = Path(out)
    with runs.opened(directory, {**(settings or {}), "loop": dataclasses.asdict(config)}), runs.stoppable() as stop:
        position = runs.rewind(directory)
        done, wall_s, rows = (position.step, position.wall_s, position.rows) if position else (0, 0.0, [])
        with shown("iterations", done=done, total=config.iterations, enabled=progress) as display:
            begun = time.monotonic() - wall_s
            there = stage(directory, checkpoint_every_s, stop, display, begun, until, between)
            if position is None:
                carry = program.begin(keys, demos)
            else:
                carry = host.resume(directory, keys, demos, display, complete=there.over(done, rows))
            return scan._train(there, carry, rows)._replace(earlier_s=wall_s)


class _Host:
    """The pieces of a run, on carries with the compiled loop's leading seed axis; `env` and `obs` of a carry are None here."""

    def __init__(
        self,
        worlds: Worlds,
        agent: Agent,
        config: LoopConfig,
        evaluate: Callable[[Any, Array], Metrics] | None,
        watch: scan.Watch | None = None,
    ):
        self.collector, self.config, self.evaluate = Collector(worlds, self._see if watch else None), config, evaluate
        self._seen: list[tuple[np.ndarray, Demonstration]] = []
        self._watch = jax.jit(partial(_watched, watch), donate_argnums=0) if watch else None
        self._empty = scan.compile_run(None, agent, config).begin
        self._iterate = jax.jit(scan._alone(partial(scan.iterate, None, agent, config)), donate_argnums=0)
        self._add = jax.jit(partial(jax.tree.map, jnp.add))
        self._act = jax.jit(lambda carry, obs, key: agent.act(_first(carry.agent), obs, key))
        self._observe = jax.jit(partial(_observed, agent), donate_argnums=0)
        self._collect_key = jax.jit(lambda carry: scan._keys(_first(carry), config).collect)
        # An environment that resets itself in a step of its own needs at most every other step for that.
        self._room = 2 * (config.prefill_rollouts + config.iterations) * config.rollout_length + 1

    def begin(self, state: Any, keys: Array, demos: Demos | None) -> Carry:
        """Agent made (or the state given), environments reset, replay filled."""
        carry = self._empty(keys, demos)
        if state is not None:
            carry = carry._replace(agent=jax.tree.map(lambda x: x[None], state))
        self.collector.reset(self.config.seed)
        prefill_key = jax.random.split(keys[0], 4)[2]  # as in scan.begin
        for i in range(self.config.prefill_rollouts):
            carry = self._gather(carry, jax.random.fold_in(prefill_key, i))
        return carry

    def kept(self, carry: Carry) -> Carry:
        return carry._replace(env=self.collector.moves(self._room))

    def resume(self, directory: Path, keys: Array, demos: Demos | None, display: Silent, *, complete: bool) -> Carry:
        """What was put down, with the environments where they then were; a `complete` run has no use for them."""
        empty = Moves(np.zeros((self._room, self.config.num_envs), np.int32), np.int64(0), np.uint32(0))
        found = runs.restore(directory, jax.eval_shape(self._empty, keys, demos)._replace(env=empty))
        carry, done = found._replace(env=None), int(found.iteration[0])
        if complete:
            display.say(f"{directory} holds this run, complete; nothing to do.")
            return carry
        self.collector.reset(self.config.seed)
        same = self.collector.replay(found.env, self.config.rollout_length)
        if not same:
            self.collector.reset(self.config.seed + done)
        how = "" if same else ", in fresh episodes, as the environment did not do again what it had done"
        display.say(f"Continuing {directory} at iteration {done} of {self.config.iterations}{how}.")
        return carry

    def chunk(self, carry: Carry, length: int) -> tuple[Carry, Metrics]:
        return self._iterations(carry, length, acts=True)

    def study(self, carry: Carry, length: int) -> tuple[Carry, Metrics]:
        return self._iterations(carry, length, acts=False)

    def _iterations(self, carry: Carry, length: int, *, acts: bool) -> tuple[Carry, Metrics]:
        total: Any = None
        for _ in range(length):
            carry = self._gather(carry, self._collect_key(carry)) if acts else carry
            carry, metrics = self._iterate(carry)
            total = metrics if total is None else self._add(total, metrics)
        return carry, jax.tree.map(lambda x: x / length, total)

    def judge(self, carry: Carry) -> Metrics:
        return {} if self.evaluate is None else scan.judged_by_host(self.evaluate, self.config, carry)

    def _gather(self, carry: Carry, key: Array) -> Carry:
        rollout = self.collector.collect(partial(self._act, carry), key, self.config.rollout_length)
        carry = self._observe(carry, rollout)
        if self._watch is not None:
            for who, steps in self._seen:
                carry = self._watch(carry, who, steps)
            self._seen.clear()
        return carry

    def _see(self, who: np.ndarray, steps: Demonstration) -> None:
        self._seen.append((who, steps))


def _first(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[0], tree)


def _watched(watch: scan.Watch, carry: Carry, who: Array, steps: Demonstration) -> Carry:
    return jax.tree.map(lambda x: x[None], runs.strong(_first(carry)._replace(agent=watch(_first(carry.agent), who, steps))))


def _observed(agent: Agent, carry: Carry, rollout: Transition) -> Carry:
    return jax.tree.map(lambda x: x[None], runs.strong(_first(carry)._replace(agent=agent.observe(_first(carry.agent), rollout))))
