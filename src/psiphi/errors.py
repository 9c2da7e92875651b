"""The one exception type meant for people: its message is a single sentence they can act on."""


class UserError(Exception):
    """Something the user gave us cannot be used; the message names the thing, what was found and what was expected."""
