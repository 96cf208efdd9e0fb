"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="TOML file of settings, see `waggle config`.", show_default=False),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="One setting, e.g. --set round.local=4. May be repeated.", show_default=False),
]
KeyFile = Annotated[
    Path | None, typer.Option("--key", help="Key of the node; ~/.waggle/key by default.", show_default=False)
]


def key_file(chosen: Path | None) -> Path:
    """The key file that was named, or the user's own."""
    return chosen or Path.home() / ".waggle" / "key"
