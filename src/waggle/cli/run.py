"""Commands that train and measure: `swarm`, `join`, `eval`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from waggle.cli import app
from waggle.cli.options import ConfigFile, Sets
from waggle.core.config import Config, load, override_run
from waggle.core.errors import ConfigError, IdentityError

RUNS = Path("runs")
Resume = Annotated[
    Path | None, typer.Option("--resume", help="Continue this run folder instead of a new run.", show_default=False)
]
Folder = Annotated[
    Path | None,
    typer.Option("--run", help="Folder of the new run; a dated one in runs/ otherwise.", show_default=False),
]


def _fresh(kind: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = RUNS / f"{kind}-{stamp}"
    number = 2
    while path.exists():
        path = RUNS / f"{kind}-{stamp}-{number}"
        number += 1
    return path


def _with_default_end(config: Config) -> Config:
    """A swarm ends by itself: where neither rounds nor minutes are set, after the vetted time."""
    if config.run.rounds or config.run.minutes:
        return config
    return override_run(config, ["run.minutes=15"])


@app.command()
def swarm(
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=1, max=256, help="How many nodes.")] = 4,
    config_file: ConfigFile = None,
    sets: Sets = None,
    run: Folder = None,
    resume: Resume = None,
) -> None:
    """Let several nodes on this machine learn together, and measure what came of it.

    Each node has its own model. A new run starts unless --resume names one; with --resume only settings of
    [run] can be changed.
    """
    import asyncio

    from rich.console import Console

    from waggle.core.clock import SystemClock
    from waggle.node import build, session

    console = Console()
    if resume:
        changes = list(sets or [])
        asyncio.run(session.run(session.resume(console, resume, lambda kept: override_run(kept, changes))))
        return
    config = _with_default_end(load(config_file, sets or []))
    path = run or _fresh("swarm")
    keys = [build.local_key(config.run.seed, number) for number in range(nodes)]
    charter = build.found_charter(config, keys[0], SystemClock(), "local swarm", path / build.FILES)
    console.print(f"run folder {path}", highlight=False)
    asyncio.run(session.run(session.start(console, path, config, keys, charter)))


@app.command()
def join(
    ticket: Annotated[str | None, typer.Argument(help="Ticket of a swarm; without one, a swarm of one.")] = None,
    config_file: ConfigFile = None,
    sets: Sets = None,
    run: Folder = None,
    resume: Resume = None,
    key_file: Annotated[
        Path | None, typer.Option("--key", help="Key of the node; ~/.waggle/key by default.", show_default=False)
    ] = None,
) -> None:
    """Run one node, unattended. Alone, it trains alone and says so."""
    import asyncio

    from rich.console import Console

    from waggle.core.clock import SystemClock
    from waggle.core.keys import Key
    from waggle.node import build, session
    from waggle.swarm.charter import is_member, read_ticket

    console = Console()
    if resume:
        if ticket:
            raise ConfigError("a resumed run keeps its swarm; leave the ticket out, or start a new run")
        changes = list(sets or [])
        asyncio.run(session.run(session.resume(console, resume, lambda kept: override_run(kept, changes))))
        return
    config = load(config_file, sets or [])
    key = Key.load_or_create(key_file or Path.home() / ".waggle" / "key")
    path = run or _fresh("node")
    if ticket:
        charter = read_ticket(ticket).charter
        if not is_member(charter, key.id):
            raise IdentityError(
                f"the swarm {charter.name!r} is for members only and {key.id.hex()} is not one; "
                "send this id to its founder, or use another --key"
            )
    else:
        charter = build.found_charter(config, key, SystemClock(), "swarm of one", path / build.FILES)
    console.print(f"run folder {path}", highlight=False)
    console.print("no peers are reachable in this release: the node trains alone on its swarm's questions")
    asyncio.run(session.run(session.start(console, path, config, [key], charter)))


@app.command("eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="A run folder, a model folder, a .gguf file, or a model's name.")],
    config_file: ConfigFile = None,
    sets: Sets = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures here.", show_default=False)
    ] = None,
) -> None:
    """Ask a model held-out questions and print its share of right answers with 95 % intervals."""
    from rich.console import Console

    from waggle.node import asking

    console = Console()
    asking.evaluate_command(console, model, load(config_file, sets or []), json_file)
