"""Commands that look back: `replay` plays a node again, `report` says what its swarm gave it."""

from pathlib import Path
from typing import Annotated

import typer

from waggle.cli import app

Run = Annotated[Path, typer.Argument(help="A run folder.", show_default=False)]


@app.command()
def replay(
    run: Run,
    node: Annotated[
        str | None, typer.Option("--node", help="One node of a swarm, e.g. node-2; all otherwise.", show_default=False)
    ] = None,
    without: Annotated[
        str | None, typer.Option("--without", help="Leave out what this peer gave, by its name.", show_default=False)
    ] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Leave out what all peers gave.")] = False,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="So many rounds; all otherwise.", show_default=False)
    ] = None,
) -> None:
    """Play a node again on what peers gave it, to see what they were worth.

    With nothing left out it checks that the same weights come out, bit for bit. With --without or --alone it plays on
    without a peer, or without any, and compares both models on held-out questions. Replays are kept in the node's
    folder; one that was stopped goes on with the same command. What came in is recorded as far as run.record_mb allows.
    """
    from rich.console import Console

    from waggle.node.replaying import replay_command

    replay_command(Console(markup=False, soft_wrap=True), run, node, without, alone, rounds)


@app.command()
def report(run: Run) -> None:
    """Say on one page what the swarm gave each node of a run.

    Held-out questions before and after, against the node by itself where `waggle replay` has played that; from whom
    experience came, for how many bytes, what became of it, and what leaving a peer out has shown it to be worth.
    """
    from rich.console import Console

    from waggle.node.reporting import report_command

    report_command(Console(markup=False, highlight=False), run)
