"""Commands that listen: `serve` lets programs talk to a model, `dash` lets people watch a run."""

import socket
from pathlib import Path
from typing import Annotated

import typer

from waggle.cli import app
from waggle.cli.options import ConfigFile, Sets
from waggle.core.config import load as load_config

Host = Annotated[str, typer.Option("--host", help="Where to listen; any but loopback needs --token.")]
Token = Annotated[
    Path | None,
    typer.Option("--token", help="File with the token that clients send; made where missing.", show_default=False),
]


@app.command()
def serve(
    model: Annotated[
        str,
        typer.Argument(help="A run, a model or adapter folder, a .gguf file or a name.", show_default=False),
    ],
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")] = 8000,
    token: Token = None,
    config_file: ConfigFile = None,
    sets: Sets = None,
) -> None:
    """Let programs talk to a model as they talk to OpenAI's.

    POST /v1/chat/completions answers, streaming too; POST /generate takes tokens and gives tokens and their
    log-probabilities.
    One request is computed at a time and 32 may wait. Settings of [model] hold, e.g. --set model.threads=2.
    """
    from waggle.core import web

    secret = web.read_token(token, host)
    config = load_config(config_file, sets or [])
    with web.listening(host, port) as sock:
        from waggle.node.asking import load_model
        from waggle.node.chatting import model_of
        from waggle.node.serving import app_of

        policy = load_model(model_of(model), config)
        print(f"{policy.name} answers at {_address(host, sock)}/v1; Ctrl-C ends it", flush=True)
        web.serve(app_of(policy, secret, host), sock)


@app.command()
def dash(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Run folders; the newest in runs/ otherwise.", show_default=False)
    ] = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")] = 4200,
    token: Token = None,
    tied: Annotated[bool, typer.Option("--tied", help="End with the standard input, too.")] = False,
) -> None:
    """Show a run, or several, on a page in the browser.

    Besides the page there is /metrics for Prometheus. It reads the run folders and nothing else, so it can be opened
    and ended at any time, and nodes that start later appear by themselves. Elsewhere than on loopback open it with
    ?token=TOKEN once.
    """
    from waggle.core import web
    from waggle.dashboard.feed import Feed
    from waggle.dashboard.server import app_of
    from waggle.node.runfolder import read_description
    from waggle.node.status import newest_run

    secret = web.read_token(token, host)
    chosen = runs or [newest_run(Path("runs"))]
    for run in chosen:
        read_description(run)
    with web.listening(host, port, or_any=tied) as sock:
        print(f"{', '.join(map(str, chosen))} at {_address(host, sock)}; Ctrl-C ends the page, not the run", flush=True)
        web.serve(app_of(Feed(chosen), secret, host), sock, tied)


def _address(host: str, sock: socket.socket) -> str:
    where = f"[{host}]" if ":" in host else host
    return f"http://{where}:{sock.getsockname()[1]}"
