"""The compiled loop: a whole stretch of training, environments, replay and updates together, is one call into XLA.

An iteration collects a rollout ``[T, N]``, lets the agent observe it and updates the agent. A chunk of iterations is compiled
once; between chunks the host evaluates, writes rows and checkpoints. Every random number comes from the carry's key and its
iteration counter, so a run that was interrupted and continued is the unbroken run, bit for bit.

Every array of a carry has a leading seed axis. Several seeds are vmapped. One seed is not: `lax.cond` stays a branch and a
replay's write stays an update in place. The same seed alone and among others draws the same random numbers, but XLA may sum
floating-point numbers in another order, so its results agree to rounding, not always to the bit.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi import configs, limits
from psiphi.configs import Count, Number, Seed
from psiphi.errors import UserError
from psiphi.loops import divergence, runs
from psiphi.loops.evaluate import Policy
from psiphi.progress import Silent, shown
from psiphi.types import Agent, Demonstration, Demos, Env, Metrics, TimeStep, Transition

Evaluate = Callable[[Any, Array], Metrics]
"""``evaluate(agent_state, key) -> metrics`` for one seed; pure, since the loop compiles it and vmaps it over seeds."""

Until = Callable[[list[runs.Row]], bool]
"""``until(rows) -> bool``: whether a run is over before its time. It depends on the rows alone, as what is continued asks it again."""

Between = Callable[["Carry", list[runs.Row]], "Carry"]
"""``between(carry, rows) -> carry``: what to go on from, asked before every chunk. It depends on the carry's iteration and the rows alone,
as what is continued asks it again. Whoever gives one also deals with seeds whose learning left the finite numbers."""

Watch = Callable[[Any, Array, Demonstration], Any]
"""``watch(agent_state, who[M], steps[M]) -> agent_state``: remember what others were seen to do; `who` -1 is an empty slot."""


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """How long, how wide and from which seeds to train."""

    iterations: Count = 1000
    """Iterations in all: each collects one rollout and then updates."""
    chunk: Count = 100
    """Iterations between two evaluations; the last chunk may be shorter."""
    num_envs: Count = 8
    """Environments side by side, N."""
    rollout_length: Count = 1
    """Steps of each environment per iteration, T."""
    updates_per_rollout: Count = 1
    """Updates of the agent per iteration."""
    prefill_steps: Number = 0
    """Environment steps, summed over the environments, to collect before the first update; rounded up to whole rollouts."""
    study: Number = 0
    """So many of the iterations, the first, only update: from demonstrations and the prefilled steps, before anything else is done."""
    seed: Seed = 0
    """The first seed."""
    num_seeds: Count = 1
    """Independent runs trained at once, with seeds `seed`, `seed` + 1, ..."""

    def __post_init__(self):
        configs.check(self)
        if self.study > self.iterations:
            raise UserError(f"study is {self.study}, but there are only {self.iterations} iterations.")

    @property
    def seeds(self) -> range:
        """The seeds of the runs, in the order of the carry's leading axis."""
        return range(self.seed, self.seed + self.num_seeds)

    @property
    def prefill_rollouts(self) -> int:
        """Rollouts collected before the first update."""
        return -(-self.prefill_steps // (self.num_envs * self.rollout_length))

    def env_steps(self, iteration: int) -> int:
        """Environment steps of one seed after so many iterations."""
        return (self.prefill_rollouts + max(iteration - self.study, 0)) * self.num_envs * self.rollout_length


class Carry(NamedTuple):
    """All that a run is, between two iterations. `env` and `obs` are None offline."""

    agent: Any
    env: Any
    obs: Any
    key: Array
    """Never replaced: iteration i draws from ``fold_in(key, i)``."""
    iteration: Array


class Result(NamedTuple):
    """A finished run: its last carry, with a leading seed axis, and the rows of metrics.jsonl."""

    carry: Carry
    rows: list[runs.Row]
    earlier_s: float = 0.0
    """Seconds that processes before this one spent on it, as far as they were put down."""

    def agent(self, index: int = 0) -> Any:
        """The agent state of the index-th seed."""
        return jax.tree.map(lambda x: x[index], self.carry.agent)


class Program(NamedTuple):
    """The compiled pieces of a run, each on arrays with a leading seed axis."""

    begin: Callable[[Array, Demos | None], Carry]
    """``begin(keys, demos) -> carry``"""
    chunk: Callable[[Carry, int], tuple[Carry, Metrics]]
    """``chunk(carry, length) -> carry, mean metrics``; the carry given is used up."""
    study: Callable[[Carry, int], tuple[Carry, Metrics]]
    """The same without acting."""
    evaluate: Callable[[Carry], Metrics]
    """``evaluate(carry) -> metrics``"""
    kept: Callable[[Carry], Carry] = lambda carry: carry
    """``kept(carry) -> carry`` as a checkpoint is to hold it."""


# --- What is compiled ----------------------------------------------------------------------------------------------------


def collect(env: Env, act: Policy, state: Any, obs: Array, key: Array, length: int) -> tuple[Any, Array, Transition]:
    """Act for `length` steps in all environments: where they now are, what they now show, and the rollout ``[T, N]``.

    The transition keeps the observation an episode ended on; only then is that environment reset.
    """
    return _collect(env, act, state, obs, key, length, lambda reached: ())[:3]


def _collect(
    env: Env, act: Policy, state: Any, obs: Array, key: Array, length: int, kept: Callable[[TimeStep], Any]
) -> tuple[Any, Array, Transition, Any]:
    """The same, with what is `kept` of each time step besides."""
    num_envs = obs.shape[0]

    def step(now: tuple[Any, Array], keys: Array) -> tuple[tuple[Any, Array], tuple[Transition, Any]]:
        state, obs = now
        act_key, world_keys, reset_keys = keys[0], keys[1 : 1 + num_envs], keys[1 + num_envs :]
        action = act(obs, act_key)
        state, reached = jax.vmap(env.step)(state, action, world_keys)
        transition = Transition(obs, action, reached.reward, reached.discount, reached.obs, reached.last)
        return _reset_where(env, reached.last, (state, reached.obs), reset_keys), (transition, kept(reached))

    # All of the rollout's keys in one split: each further split costs compile time.
    (state, obs), (rollout, more) = jax.lax.scan(step, (state, obs), jax.random.split(key, (length, 1 + 2 * num_envs)))
    return state, obs, rollout, more


def _reset_where(env: Env, last: Array, now: tuple[Any, Array], keys: Array) -> tuple[Any, Array]:
    """Fresh episodes where the old ones ended. Most steps end none, so the resets sit behind a branch (which vmap over seeds opens)."""

    def renew(now: tuple[Any, Array]) -> tuple[Any, Array]:
        fresh = jax.vmap(env.reset)(keys)
        return jax.tree.map(lambda new, old: jnp.where(last.reshape(last.shape + (1,) * (old.ndim - 1)), new, old), fresh, now)

    return jax.lax.cond(jnp.any(last), renew, lambda now: now, now)


def begin(env: Env | None, agent: Agent, config: LoopConfig, key: Array, demos: Demos | None, watch: Watch | None = None) -> Carry:
    """One seed's carry before the first iteration: agent made, environments reset, replay filled."""
    init_key, reset_key, prefill_key, loop_key = jax.random.split(key, 4)
    empty = Carry(agent.init(init_key, demos), None, None, loop_key, jnp.zeros((), jnp.int32))
    if env is None:
        return runs.strong(empty)
    env_state, obs = jax.vmap(env.reset)(jax.random.split(reset_key, config.num_envs))
    start = runs.strong(empty._replace(env=env_state, obs=obs))
    if not config.prefill_rollouts:
        return start

    def fill(i: Array, carry: Carry) -> Carry:
        return _gather(env, agent, config, carry, jax.random.fold_in(prefill_key, i), watch)

    return jax.lax.fori_loop(0, config.prefill_rollouts, fill, start)


def iterate(env: Env | None, agent: Agent, config: LoopConfig, carry: Carry, watch: Watch | None = None) -> tuple[Carry, Metrics]:
    """One iteration of one seed: collect (unless `env` is None), observe, update; metrics are the mean over the updates."""
    keys = _keys(carry, config)
    gathered = carry if env is None else _gather(env, agent, config, carry, keys.collect, watch)
    state, metrics = jax.lax.scan(agent.update, gathered.agent, keys.updates)
    mean = jax.tree.map(lambda x: jnp.mean(x, axis=0, dtype=jnp.float32), metrics)
    return runs.strong(gathered._replace(agent=state, iteration=carry.iteration + 1)), mean


def compile_run(env: Env | None, agent: Agent, config: LoopConfig, evaluate: Evaluate | None = None, watch: Watch | None = None) -> Program:
    """The run's pieces, jitted (each is compiled at its first call) and mapped over seeds."""
    over_seeds = jax.vmap if config.num_seeds > 1 else _alone

    def chunks(env: Env | None) -> Callable[[Carry, int], tuple[Carry, Metrics]]:
        # Jitted by itself so that it is traced once, although the chunk needs it twice: for its metrics' shapes and as its body.
        one_iteration = jax.jit(partial(iterate, env, agent, config, watch=watch))

        def chunk(carry: Carry, length: Array) -> tuple[Carry, Metrics]:
            def body(_: Array, so_far: tuple[Carry, Metrics]) -> tuple[Carry, Metrics]:
                carry, metrics = one_iteration(so_far[0])
                return carry, jax.tree.map(jnp.add, so_far[1], metrics)

            nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(one_iteration, carry)[1])
            end, total = jax.lax.fori_loop(0, length, body, (carry, nothing))
            return end, jax.tree.map(lambda x: x / length, total)

        return jax.jit(lambda carry, length: over_seeds(lambda carry: chunk(carry, length))(carry), donate_argnums=0)

    def judge(carry: Carry) -> Metrics:
        return {} if evaluate is None else evaluate(carry.agent, _keys(carry, config).evaluate)

    return Program(
        begin=jax.jit(lambda keys, demos: over_seeds(lambda key: begin(env, agent, config, key, demos, watch))(keys)),
        chunk=chunks(env),
        study=chunks(None),
        evaluate=jax.jit(over_seeds(judge)),
    )


class _Keys(NamedTuple):
    evaluate: Array
    collect: Array
    updates: Array


def _keys(carry: Carry, config: LoopConfig) -> _Keys:
    """The keys of the coming iteration and of an evaluation before it."""
    keys = jax.random.split(jax.random.fold_in(carry.key, carry.iteration), 2 + config.updates_per_rollout)
    return _Keys(keys[0], keys[1], keys[2:])


def _gather(env: Env, agent: Agent, config: LoopConfig, carry: Carry, key: Array, watch: Watch | None) -> Carry:
    act = partial(agent.act, carry.agent)
    if watch is None:
        state, obs, rollout = collect(env, act, carry.env, carry.obs, key, config.rollout_length)
        return runs.strong(carry._replace(agent=agent.observe(carry.agent, rollout), env=state, obs=obs))
    state, obs, rollout, shown = _collect(env, act, carry.env, carry.obs, key, config.rollout_length, _shown)
    who, steps = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), shown)  # [T, N, those in sight]
    return runs.strong(carry._replace(agent=watch(agent.observe(carry.agent, rollout), who, steps), env=state, obs=obs))


def _shown(reached: TimeStep) -> tuple[Array, Demonstration]:
    """What an environment with online demonstrations says of others: who was seen, and what each of them did."""
    return reached.extras["demonstrator"], reached.extras["demonstration"]  # pyright: ignore[reportReturnType]


def _alone(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`fn` on a leading axis of one, without vmap's price; adding and dropping the axis moves no data."""
    return lambda x: jax.tree.map(lambda y: y[None], fn(jax.tree.map(lambda y: y.reshape(y.shape[1:]), x)))


# --- What the host does between chunks -----------------------------------------------------------------------------------


class _Run(NamedTuple):
    """A run as the host sees it: the programs, where to write, and when it (re)started."""

    program: Program
    config: LoopConfig
    offline: bool
    out: Path | None
    checkpoint_every_s: float
    stop: Callable[[], int | None]
    display: Silent
    started: float
    """The moment on the monotonic clock at which an unbroken run would have begun."""
    until: Until | None = None
    between: Between | None = None

    def over(self, done: int, rows: list[runs.Row]) -> bool:
        return done >= self.config.iterations or (self.until is not None and self.until(rows))


def run(
    env: Env | None,
    agent: Agent,
    demos: Demos | None,
    config: LoopConfig,
    *,
    out: Path | str | None = None,
    evaluate: Evaluate | None = None,
    watch: Watch | None = None,
    state: Any = None,
    settings: dict[str, Any] | None = None,
    until: Until | None = None,
    between: Between | None = None,
    hosted: bool = False,
    progress: bool = True,
    checkpoint_every_s: float = 30.0,
) -> Result:
    """Train to the end and give the last carry and all rows; `env` None is offline: updates only.

    With `out`, rows and checkpoints go to that directory, and a run it already holds is continued, or returned if complete.
    `settings` is whatever else defines the run (JSON values), kept in config.json: a directory continues only the run it was made
    for. `state` is an agent's state to go on from in place of a new one. With `watch`, the agent is shown what the environment's `extras`
    have of others, `demonstrator` and `demonstration`, at every step.
    `until(rows)` may end a run before its time, after any chunk, and `between(carry, rows)` may change what the next one goes on from.
    `evaluate` is compiled unless it is `hosted`: then the host calls it, of one seed.
    Checkpoints are at least `checkpoint_every_s` apart, besides one at the end and one at an interruption, after which
    `runs.Interrupted` is raised.
    """
    program = _from(state, compile_run(env, agent, config, None if hosted else evaluate, watch))
    if hosted and evaluate is not None:
        program = program._replace(evaluate=partial(judged_by_host, evaluate, config))
    keys = jnp.stack([jax.random.key(seed) for seed in config.seeds])
    check_memory(program.begin, keys, demos)
    if out is None:
        with shown("iterations", done=0, total=config.iterations, enabled=progress) as display:
            stage = _Run(program, config, env is None, None, checkpoint_every_s, lambda: None, display, time.monotonic(), until, between)
            return _train(stage, program.begin(keys, demos), [])
    directory = Path(out)
    with runs.opened(directory, {**(settings or {}), "loop": dataclasses.asdict(config)}), runs.stoppable() as stop:
        position = runs.rewind(directory)
        done, wall_s, rows = (position.step, position.wall_s, position.rows) if position else (0, 0.0, [])
        with shown("iterations", done=done, total=config.iterations, enabled=progress) as display:
            begun = time.monotonic() - wall_s
            stage = _Run(program, config, env is None, directory, checkpoint_every_s, stop, display, begun, until, between)
            carry = _restored(stage, directory, position, keys, demos) if position else program.begin(keys, demos)
            return _train(stage, carry, rows)._replace(earlier_s=wall_s)


def judged_by_host(evaluate: Evaluate, config: LoopConfig, carry: Carry) -> Metrics:
    """An evaluation that is not compiled, of the only seed."""
    key = _keys(Carry(None, None, None, carry.key[0], carry.iteration[0]), config).evaluate
    judged = evaluate(jax.tree.map(lent, carry.agent), key)
    return jax.tree.map(lambda x: jnp.asarray(x)[None], judged)


LENT = 2**24
"""Bytes from which on an array is too large to be copied to be looked at."""


def lent(x: Array) -> Any:
    """The only seed's part of an array; a large one in the host's memory is not copied."""
    large = x.nbytes >= LENT and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key) and x.devices() == {jax.devices("cpu")[0]}
    return np.asarray(x)[0] if large else x[0]


def _from(state: Any, program: Program) -> Program:
    """The run's pieces, beginning with an agent's state that is given; `begin` stays something that can be traced."""
    if state is None:
        return program

    def begin(keys: Array, demos: Demos | None) -> Carry:
        return program.begin(keys, demos)._replace(agent=jax.tree.map(lambda x: jnp.asarray(x)[None], state))

    return program._replace(begin=begin)


def check_memory(begin: Callable[..., Carry], keys: Array, demos: Demos | None) -> None:
    """Refuse a run whose replay, networks and demonstrations will not fit, before any of it is made; tracing `begin` tells."""
    shapes = jax.tree.leaves(jax.eval_shape(begin, keys, demos))
    limits.check_memory("This run", sum(math.prod(x.shape) * getattr(x.dtype, "itemsize", 8) for x in shapes))


def _restored(stage: _Run, out: Path, position: runs.Position, keys: Array, demos: Demos | None) -> Carry:
    """The checkpoint's carry; shapes come from tracing `begin`, not from running it."""
    if stage.over(position.step, position.rows):
        stage.display.say(f"{out} holds this run, complete; nothing to do.")
    else:
        stage.display.say(f"Continuing {out} at iteration {position.step} of {stage.config.iterations}.")
    now = runs.made_with()
    changed = [f"{name} {old} then, {now.get(name)} now" for name, old in position.made_with.items() if now.get(name) != old]
    if changed:
        stage.display.say(f"This run was begun with another setup ({'; '.join(changed)}); it may differ from the unbroken run in rounding.")
    return runs.restore(out, jax.eval_shape(stage.program.begin, keys, demos))


def _train(stage: _Run, carry: Carry, rows: list[runs.Row]) -> Result:
    """Chunk after chunk from wherever the carry is; each leaves its rows and, when it is time, a checkpoint."""
    total, study = stage.config.iterations, stage.config.study
    done = int(carry.iteration[0])
    saved, pause = time.monotonic(), 0.0
    if stage.between is None:
        divergence.check(done, {}, carry.agent, stage.config.seeds)
    if done == 0:
        _record(stage, rows, 0, {}, stage.program.evaluate(carry))
    over = stage.over(done, rows)
    while not over:
        if stage.between is not None:
            carry = stage.between(carry, rows)
            done = int(carry.iteration[0])
        length = min(stage.config.chunk, (study if done < study else total) - done)
        carry, metrics = (stage.program.study if done < study else stage.program.chunk)(carry, length)
        done += length
        _wait(stage, carry)
        if stage.between is None:
            divergence.check(done, metrics, carry.agent, stage.config.seeds)
        _record(stage, rows, done, metrics, stage.program.evaluate(carry))
        over, stopped, now = stage.over(done, rows), stage.stop() is not None, time.monotonic()
        if stage.out and (stopped or over or now - saved >= max(stage.checkpoint_every_s, pause)):
            runs.save(stage.out, stage.program.kept(carry), step=done, wall_s=now - stage.started)
            saved, took = time.monotonic(), time.monotonic() - now
            pause = runs.pause_after(took)
        _raise_if(stage)
    return Result(carry, rows)


def _wait(stage: _Run, carry: Carry) -> None:
    """Until the chunk is computed, in short naps: Python answers signals only between its own steps."""
    told = False
    while not carry.iteration.is_ready():  # pyright: ignore[reportAttributeAccessIssue]
        if stage.stop() is not None and not told:
            stage.display.say("Finishing this chunk before stopping; once more stops at once.")
            told = True
        time.sleep(0.002)


def _raise_if(stage: _Run) -> None:
    signum = stage.stop()
    if signum is not None:
        raise runs.Interrupted(signum)


def _record(stage: _Run, rows: list[runs.Row], done: int, metrics: Metrics, judged: Metrics) -> None:
    """One row per seed, to the list and the file; a run without evaluation has none for iteration 0."""
    named = {f"train/{name}": x for name, x in metrics.items()} | {f"eval/{name}": x for name, x in judged.items()}
    if not named and done == 0:
        return
    arrays = jax.device_get(named)
    wall_s = round(time.monotonic() - stage.started, 3)
    env_steps = 0 if stage.offline else stage.config.env_steps(done)
    new = [
        {"step": done, "env_steps": env_steps, "seed": seed, "wall_s": wall_s, **runs.figures({name: x[i] for name, x in arrays.items()})}
        for i, seed in enumerate(stage.config.seeds)
    ]
    rows.extend(new)
    if stage.out:
        runs.append_rows(stage.out, new)
    stage.display.advance(done, _headline(arrays))


def _headline(arrays: dict[str, Any]) -> dict[str, float]:
    """The few scalars worth watching, averaged over seeds: evaluations first, then losses."""
    scalars = {name: float(x.mean()) for name, x in arrays.items() if x.ndim == 1}
    judged = [name for name in scalars if name.startswith("eval/")]
    losses = [name for name in scalars if name.startswith("train/") and "loss" in name]
    return {name: scalars[name] for name in (judged + losses or list(scalars))[:4]}
