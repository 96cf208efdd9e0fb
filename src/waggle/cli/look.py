"""Commands that look: `status` at a run, `chat` at a model, `doctor` at this machine."""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waggle.cli import app, plain
from waggle.core.errors import ModelError

if TYPE_CHECKING:
    from waggle.node.chatting import Answer, Conversation
    from waggle.node.doctor import Finding
    from waggle.node.status import NodeStatus

RUNS = Path("runs")
_END = ("/quit", "/exit")


@app.command()
def status(
    run: Annotated[
        Path | None, typer.Argument(help="A run folder; the newest in runs/ otherwise.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what the nodes of a run are doing.

    Exit code 0: every node is running as it should, or has ended in order. 1: one is not healthy: it was killed, has
    written nothing for long, cannot store its rounds, or has not reached a peer for ten rounds. 5: there is no such
    run, or its folder is damaged.
    """
    from waggle.node.status import newest_run, read_status

    path = run or newest_run(RUNS)
    nodes = read_status(path)
    if as_json:
        print(json.dumps({"run": str(path), "nodes": [_as_json(node) for node in nodes]}, indent=2))
    else:
        _print_table(path, nodes)
    if any(node.problems for node in nodes):
        raise typer.Exit(1)


def _as_json(node: "NodeStatus") -> dict[str, Any]:
    fields = {name: getattr(node, name) for name in ("name", "state", "round", "reward", "last_s", "heldout")}
    health = {"healthy": not node.problems, "problems": node.problems}
    return {**fields, **health, "folder": str(node.folder), "says": node.says, "counts": node.counts}


def _print_table(path: Path, nodes: "list[NodeStatus]") -> None:
    from rich.console import Console
    from rich.table import Table

    from waggle.node.status import age, spark

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("node", "state", "round", "held-out", "reward", "last wrote", "trend"):
        table.add_column(title, justify="right" if title in ("round", "held-out", "reward") else "left")
    for node in nodes:
        rates = [rate for _, rate in node.heldout]
        heldout = f"{rates[-1]:.2f}" if rates else "-"
        reward = "-" if node.reward is None else f"{node.reward:.2f}"
        table.add_row(node.name, node.state, str(node.round), heldout, reward, age(node), spark(rates))
    console = Console(markup=False, highlight=False)
    console.print(f"run {path}", soft_wrap=True)
    console.print(table)
    for node in nodes:
        console.print(f"{node.name} {node.says}", soft_wrap=True)
    for node in nodes:
        for problem in node.problems:
            console.print(f"{node.name} is not healthy: {problem}", soft_wrap=True)
    if any(node.state == "stopped" for node in nodes):
        console.print(f"go on with: waggle swarm --resume {path}", soft_wrap=True)


@app.command()
def pause(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    off: Annotated[bool, typer.Option("--off", help="Let the nodes go on.")] = False,
) -> None:
    """Let a run's nodes rest after their round, until `waggle pause RUN --off`.

    They stay online and answer their peers. A pause outlives a restart.
    """
    from waggle.core.files import disk_errors
    from waggle.node.runfolder import RunFolder, node_folders

    for folder in map(RunFolder, node_folders(run)):
        with disk_errors(folder.pause_file):
            folder.pause_file.unlink(missing_ok=True) if off else folder.pause_file.touch()
    print(f"the nodes of {run} {'go on' if off else 'rest after their round'}")


@app.command()
def chat(
    checkpoint: Annotated[str, typer.Argument(help="A run folder, a model folder, a .gguf file, or a model's name.")],
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Answer this and end.", show_default=False)
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, max=65536, help="Longest answer.")] = 128,
    temperature: Annotated[float, typer.Option("--temperature", min=0, max=4, help="0 is greedy.")] = 0.7,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**53, help="Other answers for other numbers.")] = 0,
) -> None:
    """Talk to a model. Every message is answered in view of all before it; /quit or the end of the input ends it.

    Ctrl-C stops an answer, or ends the conversation where none is being made.
    """
    from waggle.node.chatting import Conversation, model_of
    from waggle.policy.load import load

    name = model_of(checkpoint)
    conversation = Conversation(load(name), max_tokens, temperature, seed)
    if message is not None:
        _print_answer(conversation.say(_clean(message)))
        return
    print(f"talking to {name}; /quit ends, Ctrl-C stops an answer", file=sys.stderr)
    with suppress(KeyboardInterrupt):
        for line in _messages():
            if line.strip() in _END:
                break
            if line.strip():
                _answer(conversation, line)


def _answer(conversation: "Conversation", text: str) -> None:
    """Say a message; what goes wrong with it does not end the conversation."""
    try:
        _print_answer(conversation.say(text))
    except ModelError as error:
        print(f"waggle: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("(stopped; the message is forgotten)", file=sys.stderr)


def _print_answer(answer: "Answer") -> None:
    if answer.forgotten:
        print(f"(the context is full: the {answer.forgotten} oldest messages are forgotten)", file=sys.stderr)
    print(plain(answer.text) + (" ..." if answer.cut_off else ""), flush=True)


def _messages() -> Iterator[str]:
    """Lines of the user, whatever bytes they hold, until the input ends."""
    if _at_a_terminal():
        with suppress(ImportError):
            import readline  # noqa: F401  (lines can be edited)
        while True:
            try:
                yield _clean(input("> "))
            except EOFError:
                print()
                return
            except UnicodeDecodeError:
                print("waggle: this line is not UTF-8 and was not sent", file=sys.stderr)
    for data in sys.stdin.buffer:
        yield data.decode("utf-8", "replace").rstrip("\r\n")


def _at_a_terminal() -> bool:
    return sys.stdin.isatty()


def _clean(text: str) -> str:
    """Text without the half characters that undecodable bytes become."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _reached(where: str) -> "list[Finding]":
    from waggle.node.reachability import examine_reach

    return examine_reach(where)


@app.command()
def doctor(
    run: Annotated[Path | None, typer.Argument(help="Also examine this run folder.", show_default=False)] = None,
    reach: Annotated[
        str | None,
        typer.Option(
            "--reach",
            help="Try instead whether the peers of this ticket or run folder can be reached, and reach this machine.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Look for what would keep Waggle from working.

    One line a fault, with its cause and its cure; nothing is changed, and the network is used for --reach alone.
    Exit code 1 where there is a fault.
    """
    from waggle.net.namespace import enter_held

    if reach and not reach.startswith("waggle1:"):
        enter_held(Path(reach) / "network")  # before any import that starts a thread
    from waggle.node.doctor import examine

    faults = 0
    for finding in _reached(reach) if reach else examine(run):
        mark = "ok   " if not finding.cure else "FAULT"
        print(f"{mark} {finding.what}" + (f"; {finding.cure}" if finding.cure else ""), flush=True)
        faults += bool(finding.cure)
    print(f"{faults} fault{'s' if faults > 1 else ''} found" if faults else "no faults found")
    if faults:
        raise typer.Exit(1)
