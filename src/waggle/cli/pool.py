"""`waggle pool`: experience that travels by file."""

from pathlib import Path
from typing import Annotated

import typer

from waggle.cli import Commands, app

pool = typer.Typer(
    cls=Commands,
    help="Carry experience from node to node by file, where no network does.",
    no_args_is_help=True,
)
app.add_typer(pool, name="pool")

Run = Annotated[Path, typer.Argument(help="A run folder; its nodes may be running.", show_default=False)]


@pool.command("explain")
def explain(run: Run) -> None:
    """Say what became of peers' experience, and why.

    By peer: how much was used, with the mean factors of its weight, and for which reasons the rest was not. From the
    nodes' events, as far back as they reach.
    """
    from rich.console import Console
    from rich.table import Table

    from waggle.node.explaining import lines_of, summary
    from waggle.node.runfolder import RunFolder, node_folders

    console = Console(markup=False, highlight=False)
    for folder in node_folders(run):
        table = Table(
            "peer", "used", "not used, by reason", "mean factors of what was used", title=folder.name, box=None
        )
        for row in lines_of(summary(RunFolder(folder))):
            table.add_row(*row)
        console.print(table if table.row_count else f"{folder.name} has not met any experience of peers")


@pool.command("export")
def export_(run: Run, file: Annotated[Path, typer.Argument(help="The parcel to write.", show_default=False)]) -> None:
    """Write what a run's nodes offer their peers into one file: a parcel."""
    from waggle.node import parcel
    from waggle.node.runfolder import RunFolder, node_folders

    count = parcel.export([RunFolder(folder) for folder in node_folders(run)], file)
    print(f"{file}: {count} groups, {file.stat().st_size} bytes; `waggle pool import RUN {file}` takes them in")


@pool.command("import")
def import_(run: Run, file: Annotated[Path, typer.Argument(help="A parcel of a peer's.", show_default=False)]) -> None:
    """Leave a parcel in the inbox of a run's nodes.

    They take it in with their next rounds, as much at a time as a round may pull. Nothing in it is believed: it
    passes the same checks as what comes by network, the greatest age included.
    """
    import time

    from waggle.node import parcel
    from waggle.node.runfolder import RunFolder, node_folders

    folders = [RunFolder(folder) for folder in node_folders(run)]
    given = parcel.parcel_for(folders, file)
    for folder in folders:
        parcel.Inbox(folder).put(given)
    print(f"{len(given.experiences)} groups wait for {', '.join(folder.path.name for folder in folders)}")
    max_age_s = folders[0].charter().admission.max_age_s
    if old := parcel.older_than(given, time.time() - max_age_s):
        print(f"{old} of them are older than the {max_age_s} s that the swarm accepts and will be refused")
