"""`waggle experiment`: what is better than what, by how much, at which cost."""

from pathlib import Path
from typing import Annotated

import typer

from waggle.cli import app


@app.command()
def experiment(
    recipe: Annotated[Path, typer.Argument(help="A recipe, e.g. recipes/swarm_table.toml.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the results; results/NAME otherwise.", show_default=False)
    ] = None,
    arms: Annotated[
        list[str] | None, typer.Option("--arm", help="Play this arm only; may be given again.", show_default=False)
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=0, max=256, help="Cells at a time; 0: one a core.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be played, and end.")] = False,
) -> None:
    """Play an experiment: every arm with every seed, then a report with tables and plots.

    What is finished is kept, a file a cell: started again, it plays what is missing. The same recipe gives the same
    figures on the same machine.
    """
    from rich.console import Console

    from waggle.lab.experimenting import experiment_command

    console = Console(markup=False, soft_wrap=True, highlight=False)
    experiment_command(console, recipe, out, arms or [], workers, dry_run)
