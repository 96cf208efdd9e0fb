"""`waggle serve`: let programs talk to a model."""

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
        from waggle.node import build
        from waggle.node.chatting import model_of
        from waggle.node.serving import app_of
        from waggle.policy.load import load

        name = model_of(model)
        build.set_threads(config)
        policy = load(name, device=config.model.device, precision=config.model.precision, seed=config.run.seed)
        where = f"[{host}]" if ":" in host else host
        print(f"{policy.name} answers at http://{where}:{sock.getsockname()[1]}/v1; Ctrl-C ends it", flush=True)
        web.serve(app_of(policy, secret, host), sock)
