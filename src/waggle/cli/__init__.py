"""The command line: verbs over the library. Only this package prints.

Every error a user can cause ends as one sentence on stderr and the exit code of its kind (core/errors.py); a
traceback means a bug of ours. Commands import what they need when they run, so that `--help` is quick.
"""

import errno
import os
import re
import signal
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from waggle.core.errors import WaggleError, printable

ORDER = (
    "swarm",
    "join",
    "answer",
    "new",
    "status",
    "dash",
    "pause",
    "eval",
    "deliberate",
    "replay",
    "report",
    "experiment",
    "simulate",
    "chat",
    "serve",
    "judge",
    "pool",
    "tasks",
    "config",
    "key",
    "doctor",
)
"""The commands as `--help` lists them: learn together, look, set up."""


class Commands(TyperGroup):
    """The verbs, in the order in which people meet them; what goes wrong becomes one sentence and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except WaggleError as error:
            self.complain(str(error), error.exit_code)
        except KeyboardInterrupt:
            self.complain(
                "stopped at once; a run that had begun loses only the round in progress, --resume continues it", 130
            )
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", "waggle"):
                raise
            self.complain(f"the package {package} is not installed; `waggle doctor` says what else is missing", 1)
        except OSError as error:
            if error.errno == errno.EPIPE or error.filename is None:
                raise
            self.complain(f"cannot use {error.filename}: {error.strerror}; check the path and its owner", 1)

    def complain(self, sentence: str, exit_code: int) -> NoReturn:
        """Say what is wrong and end.

        Raises:
            typer.Exit: always.
        """
        print(f"waggle: {' '.join(sentence.split())}", file=sys.stderr)
        raise typer.Exit(exit_code)


app = typer.Typer(
    name="waggle",
    cls=Commands,
    help="Small language models that learn together: each keeps its own weights, all share experience.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def plain(text: str) -> str:
    """What a model or a stranger wrote, line by line, so that it cannot steer a terminal."""
    return "".join(part if part in "\n\t" else printable(part) for part in re.split(r"([\n\t])", text))


def main() -> None:
    """Entry point of the `waggle` command."""
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # threads that spin for long starve a busy machine
    register()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the first process of a container it is deaf to it
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows `?`
    app(prog_name="waggle")


def register() -> None:
    """Import the modules that hold the commands."""
    from waggle.cli import experiment, judge, look, pool, replay, run, serve, setup, simulate  # noqa: F401
