"""Configs out of files: frozen dataclasses from JSON values, each checked against its type. Nothing in a file is executed."""

import dataclasses
import math
import types
import typing
from typing import Any, Literal

from psiphi.errors import UserError


def from_json(kind: Any, value: Any, name: str) -> Any:
    """A frozen config, or a value in one, out of JSON values; anything that does not fit its type is refused."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        fields = typing.get_type_hints(kind)
        needed = {field.name for field in dataclasses.fields(kind) if _has_no_default(field)}
        if not isinstance(value, dict) or set(value) - set(fields) or needed - set(value):
            raise UserError(f"{name} is not a {kind.__name__} of this version of psiphi.")
        return kind(**{field: from_json(fields[field], item, f"{name}.{field}") for field, item in value.items()})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (some,) = [argument for argument in arguments if argument is not types.NoneType]
        return None if value is None else from_json(some, value, name)
    if origin is tuple and isinstance(value, list):
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(kinds) == len(value):
            return tuple(from_json(item_kind, item, name) for item_kind, item in zip(kinds, value, strict=True))
    if origin is Literal and value in arguments:
        return value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if kind in (int, bool, str) and type(value) is kind:
        return value
    raise UserError(f"{name} is {value!r}, which is not a {getattr(kind, '__name__', kind)}.")


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
