"""The command line: verbs over the library. Only this package prints.

Every error a user can cause ends as one sentence on stderr and the exit code of its kind (core/errors.py); a
traceback means a bug of ours. Commands import what they need when they run, so that `--help` is quick.
"""

import sys

import typer

from waggle.core.errors import WaggleError

app = typer.Typer(
    name="waggle",
    help="Small language models that learn together: each keeps its own weights, all share experience.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point of the `waggle` command."""
    from waggle.cli import run  # noqa: F401  (registers its commands)

    try:
        app()
    except WaggleError as error:
        print(f"waggle: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("waggle: stopped at once; the round in progress is lost, --resume continues", file=sys.stderr)
        sys.exit(130)
