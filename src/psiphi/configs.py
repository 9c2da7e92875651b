"""The door for configs: every field against its type and its range, wherever the config comes from. Nothing in a file is executed.

A field's range stands beside it, as its type: ``gamma: Share``, ``updates: Count``. A frozen dataclass whose ``__post_init__`` calls
`check` cannot be made with anything else, be it by the command line, in Python, or out of a file (`from_json`).
"""

import copy
import dataclasses
import functools
import math
import numbers
import sys
import types
import typing
from typing import Annotated, Any, Literal

import numpy as np

from psiphi.errors import UserError

# --- Ranges --------------------------------------------------------------------------------------------------------------


class Within(typing.NamedTuple):
    """The least and the most that a number may be; with `above`, more than the least."""

    low: float
    high: float = math.inf
    above: bool = False

    def has(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def expected(self, value: float) -> str:
        """In words; of a wide range, the end that was missed."""
        least, most = f"above {self.low:g}" if self.above else f"at least {self.low:g}", f"at most {self.high:,.10g}"
        if self.high > 1_000:
            return most if value > self.high else f"a number {least}" if self.above else least
        return f"a number {least} and {most}" if self.above else f"a number from {self.low:g} to {self.high:g}"


Count = Annotated[int, Within(1, 2**31 - 1)]
"""How many, at least one."""
Number = Annotated[int, Within(0, 2**31 - 1)]
"""How many, perhaps none."""
Few = Annotated[int, Within(1, 4_096)]
"""How many of something that the network holds a part for each: cumulants, members of an ensemble, environments, steps of a return."""
Width = Annotated[int, Within(1, 65_536)]
"""Units of a layer."""
Layers = Annotated[tuple[Width, ...], Within(1, 1_024)]
"""Layers, at least one."""
BatchSize = Annotated[int, Within(1, 2**20)]
"""Steps that are learned from together."""
Seed = Annotated[int, Within(0, 2**32 - 1)]
"""Decides everything random."""
Share = Annotated[float, Within(0, 1)]
"""A part of something, a probability, a discount."""
Positive = Annotated[float, Within(0, above=True)]
"""A rate, a scale, a temperature that must not be 0."""
Weight = Annotated[float, Within(0)]
"""A weight, a norm, a temperature; 0 is off."""


RUN_FACTS = frozenset({"updates", "num_envs"})
"""Fields that agents' configs had in earlier versions, and that files may still have: the run decides them now (`types.Pace`)."""


# --- Numbers of a compiled program ---------------------------------------------------------------------------------------


def traced(value: Any) -> bool:
    """Whether a number is one of a compiled program instead of a constant. No file and no flag holds one; JAX is not loaded to ask."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def on(weight: Any) -> bool:
    """Whether a weight or a rate for which 0 is off counts at all. One that is traced does: it is searched in a range without 0."""
    return traced(weight) or bool(weight)


def replaced(config: Any, **changes: Any) -> Any:
    """`dataclasses.replace` where fields may be traced numbers, of which the gate below knows nothing: what is new is not checked."""
    made = copy.copy(config)
    for field, value in changes.items():
        object.__setattr__(made, field, value)
    return made


# --- The gate ------------------------------------------------------------------------------------------------------------


def check(config: Any, whose: str = "") -> None:
    """Refuse a config with a field that does not fit; NumPy's numbers become Python's and lists tuples, as a config is a plain value."""
    for field, kind in _hints(type(config)).items():
        found = getattr(config, field)
        fitting = fit(kind, found, f"{whose}{field}")
        if fitting is not found:
            object.__setattr__(config, field, fitting)


def from_json(kind: Any, value: Any, name: str) -> Any:
    """A frozen config, or a value in one, out of JSON values; anything that does not fit its type or range is refused.

    What a config had in earlier versions, and lists as `GONE`, is left out.
    """
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        fields = _hints(kind)
        if isinstance(value, dict):
            value = {field: item for field, item in value.items() if field not in getattr(kind, "GONE", ())}
        needed = {field.name for field in dataclasses.fields(kind) if _has_no_default(field)}
        if not isinstance(value, dict) or set(value) - set(fields) or needed - set(value):
            raise UserError(f"{name} is not a {kind.__name__} of this version of psiphi.")
        made = kind(**{field: from_json(fields[field], item, f"{name}.{field}") for field, item in value.items()})
        check(made)
        return made
    return fit(kind, value, name, inner=from_json)


def fit(kind: Any, value: Any, name: str, *, inner: Any = None) -> Any:
    """A value that fits a type and its range; what does not is refused by its name. `inner` is for the parts of unions and tuples."""
    inner = inner or fit
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        fitting = inner(arguments[0], value, name)
        for mark in arguments[1:]:
            size = len(fitting) if isinstance(fitting, tuple) else fitting
            if isinstance(mark, Within) and not mark.has(size):
                raise UserError(f"{name} is {fitting!r}, expected {mark.expected(size)}{' entries' if size is not fitting else ''}.")
        return fitting
    if origin in (typing.Union, types.UnionType):
        return _any_of(arguments, value, name, inner)
    if origin is tuple and isinstance(value, list | tuple):
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(kinds) == len(value):
            items = tuple(inner(item_kind, item, name) for item_kind, item in zip(kinds, value, strict=True))
            return value if isinstance(value, tuple) and all(a is b for a, b in zip(items, value, strict=True)) else items
    elif origin is Literal:
        if any(value is word or (type(value) is type(word) and value == word) for word in arguments):
            return value
        raise UserError(f"{name} is {value!r}, expected one of {', '.join(map(repr, arguments))}.")
    elif kind is float and isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_):
        number = _float(value, name)
        return value if type(value) is float else number
    elif kind is int and isinstance(value, int | np.integer) and not isinstance(value, bool):
        return value if type(value) is int else int(value)
    elif kind is bool and isinstance(value, bool | np.bool_):
        return bool(value)
    elif kind in (str, types.NoneType) and type(value) is kind:
        return value
    elif kind is Any or (origin is None and not isinstance(kind, type)):  # anything, or a type of no use here
        return value
    elif isinstance(kind, type) and kind not in (int, float, bool, str) and isinstance(value, kind):
        if dataclasses.is_dataclass(value):
            check(value)
        return value
    elif origin is not None and origin is not tuple:
        return value
    raise UserError(f"{name} is {value!r}, which is not a {getattr(kind, '__name__', kind)}.")


def _any_of(kinds: tuple[Any, ...], value: Any, name: str, inner: Any) -> Any:
    """A value of one of several types; None only where it is one of them."""
    if value is None and types.NoneType in kinds:
        return None
    some = [kind for kind in kinds if kind is not types.NoneType]
    for kind in some[:-1]:
        try:
            return inner(kind, value, name)
        except UserError:
            continue
    return inner(some[-1], value, name)


def _float(value: Any, name: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UserError(f"{name} is {number}, expected a finite number.")
    return number


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The fields' types, ranges included."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
