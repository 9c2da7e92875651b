"""From the words of a command line to a config, and from what tyro says of wrong ones, in a box, to one sentence."""

import contextlib
import io
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

from psiphi import configs
from psiphi.errors import UserError

Config = TypeVar("Config")


def parsed(kind: type[Config], arguments: Sequence[str], program: str, default: Config | None = None) -> Config:
    """The flags as a config; what tyro says of wrong ones in a box becomes one sentence."""
    said = io.StringIO()
    given: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(said):
            config = tyro.cli(kind, args=_joined(arguments), prog=program, config=(tyro.conf.AvoidSubcommands,), **given)
    except SystemExit as error:
        if not error.code:
            raise
        raise UserError(f"{_sentence(said.getvalue())}; see {program} --help.") from None
    configs.check(config)
    return config


def given(arguments: Sequence[str], flag: str, default: str) -> str:
    """The value of a flag, looked at before all are parsed."""
    for here, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if here == flag:
            return following
        if here.startswith(f"{flag}="):
            return here.removeprefix(f"{flag}=")
    return default


def _joined(arguments: Sequence[str]) -> list[str]:
    """A task may begin with a minus, as no flag's value else does: ``--task -R+G`` is ``--task=-R+G``."""
    result: list[str] = []
    for argument in arguments:
        if result and result[-1] == "--task":
            result[-1] = f"--task={argument}"
        else:
            result.append(argument)
    return result


def _sentence(box: str) -> str:
    """The first part of tyro's message: without title, frame and rules, and without the help of each flag, which is indented."""
    words: list[str] = []
    for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()[1:]:
        content = line[2:].rstrip(" │")
        is_rule = set(content.strip()) <= set("─-╯")
        if is_rule and words:
            break
        if not is_rule and not content.startswith(" " * 8):
            words.append(content.strip())
    return " ".join(words).rstrip(".") or "The arguments cannot be understood"
