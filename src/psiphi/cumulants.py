"""Cumulants that are not learned: what changes in a step, or whatever the user says can matter.

A learned phi(s, a) is right on logged steps and extrapolation elsewhere, and a planner lives elsewhere. Cumulants of the whole transition
that are simple leave nothing to extrapolate: rewards are then linear in them. Both kinds here are maps
``(obs, action, next_obs, discount) -> [B, d]`` whose numbers no optimiser touches; `discount` is 0 where the task truly ended.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from psiphi.errors import UserError

CumulantKind = Literal["learned(s,a)", "learned(s')", "changes", "given"]
"""Where phi comes from: a network of the state and the action (paper), a network of the state that a step leads to, what changes in the
step, or features that the user supplies."""

Ends = Literal["state", "flag"]
"""What a true end shows: the state in which it came ("state": to plan on), or only that it came ("flag": to read)."""

FeatureFunction = Callable[[Any, Any, Any, Any], Any]
"""``features(obs[B], action[B], next_obs[B], terminated[B]) -> [B, d]``, written with NumPy or JAX."""

FARTHEST = 10.0
"""Standardised numbers are kept within this distance of 0: a column that hardly varied in the logs may vary elsewhere."""

RATES = 0.05, 20.0
"""A cumulant that is rare, or frequent, is weighed as if it were at most so much rarer or more frequent than the average one."""


MOST_COLUMNS = 64
"""Observations with more numbers than this have too many changes to weigh one by one: boards are counted, else cumulants are learned."""

Kind = tuple[int, int]
"""Something on a board: a channel, and its value in a cell."""

Counted = tuple[tuple[Kind, ...], ...]
"""What is counted on a board: the cells with one kind of thing, or with two at once."""

MOVING = 0.5
"""Boards on which the number of some things changes in more steps than this are views that move: what comes into sight is not gained."""

BRIGHTEST = 31
"""No number of a board is larger; bytes of pictures are."""

MOST_VALUES, MOST_KINDS, MOST_COUNTS = 12, 24, 64
"""A channel of a board has at most so many values, a board so many kinds of things, and so many counts of them are observed."""


class Changes(eqx.Module):
    """What changes in a step: differences of all observed numbers, levels of some, ends, the state at an end, and a constant.

    Numbers are standardised by the logs' mean and spread. Nothing changes in a step that ends the task: what it led to is not a state
    any agent acts in. Of a board, the numbers are how many cells have a kind of thing, or two kinds at once.
    """

    mean: Float[Array, " n"]
    scale: Float[Array, " n"]
    rate: Float[Array, " d"]
    """How often, and how far, each cumulant is from 0 in the logs, relative to the average one; 0 for the constant."""
    levels: tuple[int, ...] = eqx.field(static=True)
    ends: Ends | None = eqx.field(static=True)
    """None: no logged step truly ends, so nothing is said of ends."""
    counted: Counted = eqx.field(static=True, default=())
    """What is counted on boards; () where observations are rows of numbers."""

    @property
    def size(self) -> int:
        return self.rate.shape[0]

    def __call__(self, obs: Array, action: Array, next_obs: Array, discount: Array) -> Float[Array, "B d"]:
        before, after = self._standard(obs), self._standard(next_obs)
        goes_on = jnp.asarray(discount, jnp.float32)[:, None]
        end = 1.0 - goes_on
        parts = [goes_on * (after - before), goes_on * after[:, jnp.array(self.levels, jnp.int32)]]
        parts += [end] if self.ends else []
        parts += [end * before] if self.ends == "state" else []
        return jnp.concatenate([*parts, jnp.ones_like(end)], axis=1)

    def _standard(self, obs: Array) -> Float[Array, "B n"]:
        rows = counts(jnp.asarray(obs), self.counted) if self.counted else obs.reshape(obs.shape[0], math.prod(obs.shape[1:]))
        return jnp.clip((jnp.asarray(rows).astype(jnp.float32) - self.mean) / self.scale, -FARTHEST, FARTHEST)


def counts(boards: Any, counted: Counted) -> Any:
    """``[B, n]``: in how many cells of each board ``[B, H, W, C]`` all of these kinds are."""
    library = jnp if isinstance(boards, Array) else np
    there = {kind: boards[..., kind[0]] == kind[1] for kinds in counted for kind in kinds}
    both = [functools.reduce(operator.and_, (there[kind] for kind in kinds)) for kinds in counted]
    return library.stack([cells.sum(axis=(1, 2)) for cells in both], axis=1)


def countable(boards: np.ndarray) -> Counted:
    """What varies on boards ``[B, H, W, C]``, in the order in which they were seen, and can be counted.

    () if they are no boards but pictures, rows of numbers, or views that move.
    """
    if boards.ndim != 4 or not len(boards) or not np.issubdtype(boards.dtype, np.integer):
        return ()
    if boards.min() < -MOST_VALUES or boards.max() > BRIGHTEST:
        return ()
    values = [np.unique(boards[..., channel]) for channel in range(boards.shape[-1])]
    kinds = tuple((channel, int(v)) for channel, some in enumerate(values) for v in some if v != 0 or len(some) == 1)
    if max(map(len, values)) > MOST_VALUES or len(kinds) > MOST_KINDS:
        return ()
    singles = counts(boards[:20_000], tuple((kind,) for kind in kinds))
    if len(boards) > 1 and (np.diff(singles, axis=0) != 0).mean(axis=0).max() > MOVING:
        return ()
    pairs = tuple((a, b) for i, a in enumerate(kinds) for b in kinds[i + 1 :] if a[0] != b[0])
    some = boards[np.linspace(0, len(boards) - 1, min(len(boards), 20_000)).astype(int)]
    found: dict[bytes, tuple[Kind, ...]] = {}
    for what in (*((kind,) for kind in kinds), *pairs):
        column = counts(some, (what,))[:, 0]
        if column.min() < column.max():
            found.setdefault((column - column[0]).astype(np.int32).tobytes(), what)
    every = tuple(found.values())
    return every if len(every) <= MOST_COUNTS else tuple(what for what in every if len(what) == 1)


class Given(eqx.Module):
    """Features of the user's. A function that JAX cannot trace (NumPy's, a table's) is called back on the host."""

    rate: Float[Array, " d"]
    function: FeatureFunction | None = eqx.field(static=True)
    """None in a model that was read from a file without it: such a model has policies, but no rewards."""
    traceable: bool = eqx.field(static=True)

    @property
    def size(self) -> int:
        return self.rate.shape[0]

    def __call__(self, obs: Array, action: Array, next_obs: Array, discount: Array) -> Float[Array, "B d"]:
        if self.function is None:
            raise UserError("This model's cumulants are a function that is not in its file; load it with psiphi.load(path, features=...).")
        terminated = discount == 0
        if self.traceable:
            return jnp.asarray(self.function(obs, action, next_obs, terminated), jnp.float32)
        shape = jax.ShapeDtypeStruct((obs.shape[0], self.size), jnp.float32)
        columns = (obs, action, next_obs, terminated)
        return jax.pure_callback(partial(_on_host, self.function), shape, *columns, vmap_method="sequential")


def _on_host(function: FeatureFunction, *columns: Any) -> np.ndarray:
    return np.asarray(function(*map(np.asarray, columns)), np.float32)


Cumulants = Changes | Given


def changes(steps: Sequence[np.ndarray], *, levels: tuple[int, ...], ends: Ends, counted: Counted = ()) -> Changes:
    """What changes in steps such as these: ``obs, action, next_obs, discount``, of all agents."""
    obs, _, _, discount = steps
    rows = (counts(obs, counted) if counted else obs.reshape(len(obs), -1)).astype(np.float32)
    mean, spread = rows.mean(axis=0, dtype=np.float64), rows.std(axis=0, dtype=np.float64)
    scale = np.where(spread > 4 * np.finfo(np.float32).eps * np.abs(mean), spread, 1.0)
    blank = Changes(
        jnp.asarray(mean, jnp.float32),
        jnp.asarray(scale, jnp.float32),
        jnp.zeros(0),
        levels,
        ends if (discount == 0).any() else None,
        counted,
    )
    return eqx.tree_at(lambda c: c.rate, blank, rates(_in_parts(blank, steps)).at[-1].set(0.0))


def given(function: FeatureFunction, steps: Sequence[np.ndarray]) -> Given:
    """The user's features, tried on all steps before anything is learned from them."""
    obs, action, next_obs, discount = steps
    values = _tried(function, obs, action, next_obs, discount == 0)
    one = [jax.ShapeDtypeStruct((2, *np.shape(x)[1:]), jnp.asarray(x[:1]).dtype) for x in (obs, action, next_obs)]
    try:
        traced = jax.eval_shape(lambda *x: jnp.asarray(function(*x)), *one, jax.ShapeDtypeStruct((2,), jnp.bool_))
        traceable = traced.shape == (2, values.shape[1])
    except Exception:  # whatever a stranger's function does with a tracer; on the host it has just been seen to work
        traceable = False
    return Given(rates(values), function, traceable)


def _tried(function: FeatureFunction, *columns: np.ndarray) -> np.ndarray:
    try:
        values = np.asarray(function(*columns), np.float32)
    except Exception as error:
        raise UserError(f"The features cannot be computed for the logged steps: {type(error).__name__}: {error}") from error
    if values.ndim != 2 or values.shape[0] != len(columns[0]) or not values.shape[1]:
        raise UserError(f"The features have shape {values.shape}, expected ({len(columns[0])}, d): one row of d numbers per step.")
    if not np.isfinite(values).all():
        step = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
        raise UserError(f"The features of step {step} are not finite numbers: {values[step].tolist()}.")
    return values


def rates(values: Any) -> Float[Array, " d"]:
    """How large each cumulant is on average, relative to all that are ever different from 0."""
    size = np.abs(np.asarray(values, np.float64)).mean(axis=0)
    usual = size[size > 0].mean() if (size > 0).any() else 1.0
    return jnp.asarray(np.clip(size / usual, *RATES), jnp.float32)


def _in_parts(cumulants: Cumulants, steps: Sequence[np.ndarray], part: int = 65_536) -> np.ndarray:
    return np.concatenate([np.asarray(cumulants(*(jnp.asarray(x[i : i + part]) for x in steps))) for i in range(0, len(steps[0]), part)])


def _called(kinds: tuple[Kind, ...]) -> str:
    """The cells with these kinds, in words."""
    return " and ".join(f"channel {channel}" + ("" if value == 1 else f" at {value}") for channel, value in kinds)


def names(cumulants: Cumulants, columns: Sequence[str]) -> tuple[str, ...]:
    """What the cumulants are called, where the entries of an observation are called so."""
    if isinstance(cumulants, Given):
        return tuple(f"feature {i + 1}" for i in range(cumulants.size))
    columns = tuple(map(_called, cumulants.counted)) or columns
    ends = ("end",) if cumulants.ends else ()
    at_end = tuple(f"{name} at the end" for name in columns) if cumulants.ends == "state" else ()
    levels = tuple(columns[i] for i in cumulants.levels)
    return (*(f"change of {name}" for name in columns), *levels, *ends, *at_end, "every step")
