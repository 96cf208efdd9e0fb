"""`waggle simulate`: a swarm of scripted nodes, on a clock that jumps."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waggle.cli import app
from waggle.cli.options import Sets
from waggle.cli.run import new_folder
from waggle.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from waggle.lab.census import Result

Out = Annotated[
    Path | None,
    typer.Option("--out", help="Also write simulate.csv and simulate.json into this new folder.", show_default=False),
]


@app.command()
def simulate(
    ctx: typer.Context,
    peers: Annotated[int, typer.Option("--peers", "-n", min=2, max=100_000, help="How many, of all kinds.")] = 100,
    rounds: Annotated[int, typer.Option("--rounds", "-r", min=1, max=100_000, help="Rounds of the swarm.")] = 50,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**53, help="Of everything random.")] = 0,
    churn: Annotated[
        float,
        typer.Option("--churn", min=0, max=10, help="Share of honest peers that leave in ten rounds; as many join."),
    ] = 0.0,
    free_riders: Annotated[
        float, typer.Option("--free-riders", min=0, max=1, help="Share of peers that take and do not give.")
    ] = 0.0,
    attack: Annotated[
        str, typer.Option("--attack", help="What the hostile peers do, see --list.", show_default=False)
    ] = "",
    hostile: Annotated[int, typer.Option("--hostile", min=1, help="Attackers among the peers, with --attack.")] = 1,
    latency_s: Annotated[
        float, typer.Option("--latency", min=0, max=60, help="Seconds that a message is under way.")
    ] = 0.0,
    loss: Annotated[float, typer.Option("--loss", min=0, max=1, help="Share of announcements that get lost.")] = 0.0,
    partition: Annotated[
        bool, typer.Option("--partition", help="Cut the swarm into two halves for the middle third of the rounds.")
    ] = False,
    undefended: Annotated[
        bool, typer.Option("--undefended", help="Switch off those checks of honest peers that can be.")
    ] = False,
    memo: Annotated[
        bool, typer.Option("--memo", help="Compute equal questions, grades and signature checks once for all peers.")
    ] = False,
    sets: Sets = None,
    out: Out = None,
    list_attacks: Annotated[bool, typer.Option("--list", help="List the attacks and end.")] = False,
) -> None:
    """Simulate a large swarm of scripted peers.

    The round, the pool, admission, sampling and gossip are those of a node; minds, network and clock are not. Equal
    seeds give equal figures. docs/simulation.md says what is real, and what the figures mean.
    """
    given = {name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"}
    if list_attacks:
        return _list_attacks(given)
    from rich.console import Console

    from waggle.lab import crowd

    num_hostile = hostile if attack or "hostile" in given else 0
    what_happens = (churn, free_riders, attack, num_hostile, latency_s, loss, partition, undefended, memo)
    made = crowd.Setup(peers, rounds, seed, *what_happens, tuple(sets or ()))
    made.check()
    started_s = time.monotonic()
    with ExitStack() as stack:
        folder = stack.enter_context(new_folder(out, "simulate")) if out else None
        told = stack.enter_context(Console(stderr=True).status("the crowd gathers"))
        result = crowd.simulate(made, lambda number: told.update(f"round {number} of {rounds}"))
        if folder:
            result.write(folder)
    console = Console(markup=False, highlight=False, soft_wrap=True)
    _show(console, result)
    how = "questions, grades and signature checks shared by all" if memo else "every check made by every peer"
    console.print(f"{time.monotonic() - started_s:.0f} s, {how}" + (f"; {out}/simulate.csv" if out else ""))


def _list_attacks(given: set[str]) -> None:
    from waggle.lab.attacks import ATTACKS

    if others := sorted(given - {"list_attacks"}):
        options = ", ".join(
            "--" + {"sets": "set"}.get(name, name.removesuffix("_s")).replace("_", "-") for name in others
        )
        raise ConfigError(f"--list lists the attacks and does nothing else; leave out {options}")
    for attack in ATTACKS.values():
        print(f"{attack.name}: {attack.does}\n    against it: {attack.stopped_by}")


def _show(console: "Console", result: "Result") -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for title in "round online held-out foreign hostile unused sent/B planted reached stalled hungry".split():
        table.add_column(title, justify="right", no_wrap=True)
    for row in result.rows:
        table.add_row(
            *(str(row.round), str(row.online), f"{row.skill:.3f}", f"{row.foreign:.2f}", f"{row.from_hostile:.3f}"),
            *(f"{row.unused:.3f}", f"{row.sent_bytes:.0f}", f"{row.planted:.3f}", f"{row.reached:.3f}"),
            *(str(row.stalled), str(row.hungry)),
        )
    console.print(table)
    if result.refused:
        console.print("refused: " + ", ".join(f"{reason} {count}" for reason, count in sorted(result.refused.items())))
    console.print(result.sentence())
