"""Everything that can go wrong for a user, one class a kind, each with a stable exit code.

The message of an error is the product: one sentence that says what is wrong, where, and what to do.
Each leaf also inherits the standard type that fits, so that library users may catch what they know.
The command line prints the message alone and exits with `exit_code`; a traceback means a bug of ours.
"""


class WaggleError(Exception):
    """Base of every error a user can cause or meet."""

    exit_code = 1


class ConfigError(WaggleError, ValueError):
    """A configuration, option, recipe or ticket that cannot be used."""

    exit_code = 2


class TaskError(WaggleError, ValueError):
    """A task family, task file or grader that cannot be used."""

    exit_code = 3


class ModelError(WaggleError, ValueError):
    """A model, adapter or checkpoint that cannot be loaded, or does not fit."""

    exit_code = 4


class RunError(WaggleError, RuntimeError):
    """A run folder that cannot be read, written, locked or resumed."""

    exit_code = 5


class IdentityError(WaggleError, PermissionError):
    """A key that is missing, malformed, too open, or not a member."""

    exit_code = 6


class NetworkError(WaggleError, ConnectionError):
    """A peer or network that did not do what was asked, after its deadline."""

    exit_code = 7


class DecodeError(WaggleError, ValueError):
    """Bytes that are not the canonical form of what they claim to be. `reason` is a counter's name."""

    exit_code = 8

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def printable(text: str) -> str:
    """What a stranger wrote, in one line that cannot steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)
