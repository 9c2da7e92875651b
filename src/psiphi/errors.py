"""The exceptions meant for people: each message is a single sentence they can act on."""

from psiphi.printable import sentence


class UserError(Exception):
    """Something the user gave us cannot be used; the message names the thing, what was found and what was expected.

    Names in it may come from strangers' files: whatever could steer a terminal is shown as an escape.
    """

    def __init__(self, message: str):
        super().__init__(sentence(message))


class Diverged(UserError):  # noqa: N818 - what happened
    """Learning has left the finite numbers. What was there before, a checkpoint or a fitted model, is as it was."""
