"""`waggle judge`: held-out questions under signed challenges, and a leaderboard that anybody can check."""

from pathlib import Path
from typing import Annotated

import typer

from waggle.cli import Commands, app
from waggle.cli.options import ConfigFile, KeyFile, Sets, key_file
from waggle.core.config import load as load_config

judge = typer.Typer(
    cls=Commands,
    help="Ask models held-out questions, so that anybody can check what came of it.",
    no_args_is_help=True,
)
app.add_typer(judge, name="judge")

Swarm = Annotated[str, typer.Argument(help="A ticket, a file that holds one, or a run folder.", show_default=False)]
Files = Annotated[
    Path | None, typer.Option("--files", help="Folder of task files, where the swarm has some.", show_default=False)
]


@judge.command("serve")
def serve(
    swarm: Swarm,
    log: Annotated[Path, typer.Option("--log", help="Where judgements are written.")] = Path("judged.jsonl"),
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")] = 4300,
    key: KeyFile = None,
    files: Files = None,
) -> None:
    """Be a judge: hand out questions, take answers, publish results.

    Each question follows from who asks and is signed for him alone; it takes one answer, within two minutes, and one
    that is not answered counts as wrong. Where a swarm has no members, whoever has a key may come, and keys are free.
    """
    from contextlib import closing

    from waggle.core import web
    from waggle.core.clock import SystemClock
    from waggle.core.keys import Key, peer_name
    from waggle.node import judge as service
    from waggle.tasks.grade import Graders

    charter = service.charter_of(swarm)
    me = Key.load_or_create(key_file(key))
    with web.listening(host, port) as sock, closing(Graders(charter.families)) as graders:
        judge = service.Judge(me, charter, service.rules_of(charter, graders, files), log, SystemClock())
        where = f"[{host}]" if ":" in host else host
        told = f"judge {peer_name(me.id)} of {charter.name!r} at http://{where}:{sock.getsockname()[1]}"
        print(f"{told}, log {log}; Ctrl-C ends it", flush=True)
        web.serve(judge.app(), sock)


@judge.command("ask")
def ask(
    url: Annotated[str, typer.Argument(help="The judge's address.", show_default=False)],
    model: Annotated[str, typer.Argument(help="A run, a model or adapter folder, a .gguf file or a name.")],
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="How many questions.")] = 10,
    round_: Annotated[int, typer.Option("--round", min=0, help="The round that the model is of.")] = 0,
    key: KeyFile = None,
    config_file: ConfigFile = None,
    sets: Sets = None,
) -> None:
    """Let a model answer a judge's questions, once each, and say how it did."""
    from waggle.core.keys import Key
    from waggle.node.asking import load_model
    from waggle.node.chatting import model_of
    from waggle.node.evaluate import wilson
    from waggle.node.judge import Court, answerer, fresh_number, require_http

    config, me = load_config(config_file, sets or []), Key.load(key_file(key))
    court = Court(require_http(url), me)
    policy = load_model(model_of(model), config)
    say, weights, right = answerer(policy, config.eval.temperature), policy.content_digest(), 0.0
    for number in range(1, count + 1):
        one = court.try_(weights, say, fresh_number(), round_)
        right += one.reward or 0.0
        print(f"{number}: {one.ref.env}, {'not graded' if one.reward is None else f'{one.reward:g}'}", flush=True)
    low, high = wilson(right, count)
    print(f"{right:g} of {count} right: {right / count:.2f} [{low:.2f}, {high:.2f}]")


@judge.command("check")
def check(
    swarm: Swarm,
    log: Annotated[Path, typer.Argument(help="A judge's log, e.g. of its /log.", show_default=False)],
    files: Files = None,
) -> None:
    """Check a judge's log offline, and print the leaderboard of what holds.

    Every question is made again, every answer graded again, every signature verified; the judge is not believed.
    Exit code 1 where something does not hold.
    """
    from contextlib import closing

    from rich.console import Console
    from rich.table import Table

    from waggle.core.errors import RunError
    from waggle.core.keys import peer_name
    from waggle.node import judge as service
    from waggle.node.judging import check as checked
    from waggle.tasks.grade import Graders

    if not log.is_file():
        raise RunError(f"there is no log {log}; a judge gives it at /log")
    charter = service.charter_of(swarm)
    with closing(Graders(charter.families)) as graders:
        board, faults = checked(service.read_log(log), service.rules_of(charter, graders, files))
    table = Table("peer", "model", "asked", "answered", "right", box=None)
    for place in board.places():
        low, high = place.interval
        share = f"{place.rate:.2f} [{low:.2f}, {high:.2f}]"
        table.add_row(peer_name(place.peer), place.model.hex()[:12], str(place.asked), str(place.answered), share)
    Console(markup=False, highlight=False).print(table if table.row_count else "no judgement holds")
    for line, reason, detail in faults:
        print(f"line {line}: {reason}: {detail}")
    print(f"{len(faults)} of {len(faults) + sum(place.asked for place in board.places())} judgements do not hold")
    if faults:
        raise typer.Exit(1)
