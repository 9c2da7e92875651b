"""What a user may hand to the Python interface: the thing that was meant, or one sentence that says what to do."""

import os
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from psiphi import configs
from psiphi.configs import Seed
from psiphi.errors import UserError

Kind = TypeVar("Kind")


def called(given: Any) -> str:
    """What a thing is, in a few words."""
    if given is None:
        return "None"
    if isinstance(given, str | os.PathLike):
        return f"{os.fspath(given)!r}"
    module = type(given).__module__.split(".")[0]
    return f"a {type(given).__name__}" if module in ("builtins", "psiphi", "__main__") else f"a {module} {type(given).__name__}"


def path(given: Any, what: str = "The path") -> Path:
    """The name of a file or a directory."""
    if not isinstance(given, str | os.PathLike) or isinstance(os.fspath(given), bytes) or not os.fspath(given):
        raise UserError(f"{what} is {called(given)}, expected the name of a file or directory.")
    if "\0" in os.fspath(given):
        raise UserError(f"{what} {os.fspath(given)!r} has a character that no file name has.")
    return Path(given)


def demonstrations(given: Any, kind: type[Kind]) -> Kind:
    """Demonstrations; whoever brings the file, the environment or the plain lists is told what makes some of them."""
    if isinstance(given, kind):
        return given
    if isinstance(given, str | os.PathLike):
        raise UserError(f"The demonstrations are {called(given)}, expected what is in that file: read it with psiphi.Demonstrations.read.")
    if hasattr(given, "reset") and hasattr(given, "step"):
        raise UserError(
            f"The demonstrations are {called(given)}, an environment, expected what others did in it: a psiphi.Demonstrations, "
            "which psiphi.demos.record.record makes; psiphi.PsiPhi(env, demos) takes both."
        )
    raise UserError(
        f"The demonstrations are {called(given)}, expected a psiphi.Demonstrations: psiphi.Demonstrations.read makes one out of a file, "
        "psiphi.Demonstrations.from_lists out of lists of episodes."
    )


def config(given: Any, kind: type[Kind]) -> Kind | None:
    """A config, or None for the default."""
    if given is None or isinstance(given, kind):
        return given
    hint = f"; psiphi.{kind.__name__}(**config) makes one" if isinstance(given, dict) else ""
    raise UserError(f"The config is {called(given)}, expected a psiphi.{kind.__name__} or None{hint}.")


def seed(given: Any) -> int:
    return configs.fit(Seed, given, "seed")


def numbers(given: Any, what: str) -> np.ndarray:
    """An array of finite numbers."""
    try:
        array = np.asarray(given)
    except (ValueError, TypeError) as error:  # lists of different lengths
        raise UserError(f"{what} cannot be made an array, expected numbers in rows of equal length.") from error
    if array.dtype.kind not in "biuf":
        raise UserError(f"{what} {'is' if what.endswith('observation') else 'are'} {called(given)}, expected an array of numbers.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UserError(f"{what} has {array[~np.isfinite(array)][0]} in it, expected finite numbers.")
    return array


def steps(given: Any) -> tuple[Any, ...]:
    """Columns, observations, actions, rewards and perhaps next observations and ends, out of arrays or a sequence of such rows."""
    wanted = (
        "expected three arrays (observations, actions, rewards), or five with next observations and whether the task then ended, "
        "or a sequence of such rows with at least one in it"
    )
    if isinstance(given, str | bytes | dict) or not hasattr(given, "__iter__"):
        raise UserError(f"The transitions are {called(given)}, {wanted}.")
    rows = list(given)
    if isinstance(given, tuple) and len(rows) in (3, 5) and not all(isinstance(row, tuple) for row in rows):
        return tuple(rows)
    if isinstance(given, tuple) and rows and all(isinstance(row, np.ndarray) for row in rows):
        raise UserError(f"The transitions are {len(rows)} columns, {wanted}.")
    sized = bool(rows) and all(hasattr(row, "__len__") and not isinstance(row, str | bytes | dict) for row in rows)
    if not sized or {len(row) for row in rows} not in ({3}, {5}):
        raise UserError(f"The transitions are not steps (observation, action, reward), {wanted}.")
    return tuple(zip(*rows, strict=True))
