"""Commands that train and measure: `swarm`, `join`, `eval`."""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from waggle.cli import app
from waggle.cli.options import ConfigFile, KeyFile, Sets, key_file
from waggle.core.config import Config, load, override_run
from waggle.core.errors import ConfigError, RunError
from waggle.core.files import disk_errors

RUNS = Path("runs")
Resume = Annotated[
    Path | None, typer.Option("--resume", help="Continue this run folder instead of a new run.", show_default=False)
]
Folder = Annotated[
    Path | None,
    typer.Option("--run", help="Folder of the new run; a dated one in runs/ otherwise.", show_default=False),
]


Dash = Annotated[bool, typer.Option("--dash", help="Show it on a page in the browser, too, see `waggle dash`.")]


@contextmanager
def page_of(path: Path, wanted: bool) -> Iterator[None]:
    """The page of a run, in a process of its own that ends with this one and hears no Ctrl-C of its own."""
    if not wanted:
        yield
        return
    command = [sys.executable, "-m", "waggle", "dash", str(path), "--tied"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()


HALF_MADE = {"tasks", "key", "bootstrap", "book.bin", "lock", "config.toml", "charter.bin"}
"""What is in the folder of a run that was stopped before it was one."""


@contextmanager
def new_folder(named: Path | None, kind: str, half_made: bool = False) -> Iterator[Path]:
    """An empty folder for a new run, this process's alone. Where the run does not come to begin, nothing is left of it.

    Args:
        half_made: whether it may hold what a run left that was stopped before it began, and keeps it.

    Raises:
        RunError: it holds something already, is somebody else's now, or cannot be made.
    """
    with disk_errors(named or RUNS):
        existed = named is not None and named.exists()
        parent_existed = (named.parent if named else RUNS).exists()
    path = _made(named) if named else _dated(kind)
    claim = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        left = {child.name for child in path.iterdir()} - (HALF_MADE if half_made else set())
        if left or (path / "run.json").exists():
            raise RunError(f"{path} is not empty; choose a new folder for the run")
    except BlockingIOError as error:
        os.close(claim)
        raise RunError(f"another process is setting up a run in {path}; choose another folder") from error
    except BaseException:
        os.close(claim)
        raise
    try:
        yield path
    except BaseException:
        if half_made:
            raise
        for child in path.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
        if not existed:
            path.rmdir()
        if not parent_existed:
            with suppress(OSError):  # somebody else has put something there
                path.parent.rmdir()
        raise
    finally:
        os.close(claim)


def _made(path: Path) -> Path:
    if (path / "run.json").exists():
        raise RunError(f"{path} already holds a run; continue it with --resume {path}, or choose another folder")
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def _dated(kind: str) -> Path:
    """A folder that did not exist, also where two runs start in the same second."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    number = 1
    while True:
        path = RUNS / (f"{kind}-{stamp}" if number == 1 else f"{kind}-{stamp}-{number}")
        with disk_errors(path), suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
        number += 1


def with_default_end(config: Config) -> Config:
    """A swarm ends by itself: where neither rounds nor minutes are set, after the vetted time."""
    if config.run.rounds or config.run.minutes:
        return config
    return override_run(config, ["run.minutes=19"])


def _kept(others: dict[str, object]) -> None:
    """Refuse options that a resumed run cannot follow.

    Raises:
        ConfigError: one was given.
    """
    for option, given in others.items():
        if given:
            raise ConfigError(f"--resume keeps what the run was started with; leave out {option}")


@app.command()
def swarm(
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=1, max=256, help="How many nodes.")] = 3,
    config_file: ConfigFile = None,
    sets: Sets = None,
    run: Folder = None,
    resume: Resume = None,
    dash: Dash = False,
) -> None:
    """Let several nodes on this machine learn together.

    Each node is a process with a model of its own; what came of it is measured and shown at the end. A new run starts
    unless --resume names one; with --resume only settings of [run] can be changed.
    """
    from rich.console import Console

    from waggle.node import build, joining, swarming
    from waggle.node.runfolder import node_folders

    console = Console(markup=False, soft_wrap=True)
    if resume:
        _kept({"--config": config_file, "--run": run})
        if node_folders(resume) == [resume]:
            if dash:
                raise ConfigError(f"--dash is for swarms; `waggle dash {resume}` shows one node")
            return joining.resume(console, resume, lambda config: override_run(config, sets or []), False, False)
        swarming.resume(console, resume, lambda config: override_run(config, sets or []))
        with page_of(resume, dash):
            return swarming.run(console, resume)
    config = with_default_end(load(config_file, sets or []))
    with new_folder(run, "swarm") as path:
        keys = [build.local_key(config.run.seed, number) for number in range(nodes)]
        charter = build.found_charter(config, keys[0], "local swarm", path / build.FILES)
        console.print(f"run folder {path}", highlight=False)
        swarming.start(console, path, config, keys, charter)
    with page_of(path, dash):
        swarming.run(console, path)


@app.command()
def join(
    ticket: Annotated[
        str | None, typer.Argument(help="Ticket of a swarm, or a file that holds it; without one, a swarm of one.")
    ] = None,
    config_file: ConfigFile = None,
    sets: Sets = None,
    run: Folder = None,
    resume: Resume = None,
    key: KeyFile = None,
    go_on: Annotated[
        bool, typer.Option("--continue", help="Continue the run in the folder of --run, if there is one.")
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option("--into", help="Join the local swarm in this run folder, on its network.", show_default=False),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show rounds.")] = False,
    tied: Annotated[bool, typer.Option("--tied", help="End with the standard input, too.")] = False,
    dash: Dash = False,
) -> None:
    """Run one node, unattended: it finds its peers after each start and asks nothing.

    With --resume only settings of [run] and [net] can be changed. A service starts a node with --run and --continue,
    again and again. A running node's folder holds a ticket that leads to it. Where no peer is reachable, the node
    trains alone, says so and keeps trying.
    """
    from waggle.net.namespace import enter_held

    if into and dash:
        raise ConfigError("--dash shows nothing from within a swarm's own network; run `waggle dash` beside it")
    if into:
        enter_held(into / "network")  # before any import that starts a thread
    from rich.console import Console

    from waggle.node import joining

    console = Console(markup=False, soft_wrap=True)
    if resume:
        _kept({"the ticket": ticket, "--config": config_file, "--run": run, "--key": key})
        with page_of(resume, dash):
            return joining.resume(console, resume, lambda config: override_run(config, sets or []), quiet, tied)
    if ticket and into:
        raise ConfigError("--into names the swarm already; leave out the ticket")
    config = load(config_file, sets or [])
    if go_on and not run:
        raise ConfigError("--continue needs the folder of the run; name it with --run")
    again = go_on and run is not None and (run / "run.json").exists()
    invitation = joining.invitation(ticket, into, again)
    if again and run:
        with page_of(run, dash):
            return joining.go_on(console, run, config, invitation, quiet, tied)
    with new_folder(run, "node", half_made=go_on) as path:
        console.print(f"run folder {path}", highlight=False)
        folder = joining.begin(console, path, config, key_file(key), invitation)
    with page_of(path, dash):
        joining.play(console, folder, quiet, tied)


@app.command()
def answer(
    ticket: Annotated[str | None, typer.Argument(help="Ticket of a swarm, or a file that holds it.")] = None,
    into: Annotated[
        Path | None,
        typer.Option("--into", help="Join the local swarm in this run folder, on its network.", show_default=False),
    ] = None,
    run: Folder = None,
    resume: Resume = None,
    key: KeyFile = None,
) -> None:
    """Take the seat of a peer: answer a swarm's questions yourself.

    What is right is signed with your key and offered to your peers, who check it and learn from it as from any other
    answer. An empty line passes, /quit leaves; --resume takes the same seat again.
    """
    from waggle.net.namespace import enter_held

    if into:
        enter_held(into / "network")  # before any import that starts a thread
    from rich.console import Console

    from waggle.node import joining
    from waggle.node.person import SETTINGS, Left
    from waggle.node.runfolder import RunFolder

    console = Console(markup=False, soft_wrap=True)
    if resume:
        _kept({"the ticket": ticket, "--run": run, "--key": key})
        folder = RunFolder.open(resume)
    else:
        if bool(ticket) == bool(into):
            raise ConfigError("name a swarm: its ticket, or with --into the folder of a local one")
        invitation = joining.invitation(ticket, into)
        with new_folder(run, "person") as path:
            console.print(f"run folder {path}", highlight=False)
            folder = joining.begin(console, path, load(None, list(SETTINGS)), key_file(key), invitation)
    try:
        joining.answer(console, folder)
    except Left as left:
        console.print(str(left))


@app.command("eval")
def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", help="A run folder; or model folders, .gguf files, names of models."),
    ],
    config_file: ConfigFile = None,
    sets: Sets = None,
    answers: Annotated[
        int, typer.Option("--answers", "-k", min=1, max=64, help="Answers to each question; above 1 shows pass@k, too.")
    ] = 1,
    probe: Annotated[
        bool, typer.Option("--probe", help="Also ask otherwise, ask of other families, and predict plain text.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures here.", show_default=False)
    ] = None,
) -> None:
    """Measure models on held-out questions.

    Prints their share of right answers with 95 % intervals; of several models, how much better each is than the first
    on the same questions; of a run, before and after.
    """
    from rich.console import Console

    from waggle.node import asking

    console, config = Console(markup=False, soft_wrap=True), load(config_file, sets or [])
    asking.evaluate_command(console, models, config, answers, probe, json_file)


@app.command()
def deliberate(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", help="A run folder, whose nodes talk; or model folders, .gguf files, names."),
    ],
    config_file: ConfigFile = None,
    sets: Sets = None,
    read: Annotated[int, typer.Option("--read", min=1, max=5, help="Answers that each is shown.")] = 5,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures here.", show_default=False)
    ] = None,
) -> None:
    """Let models talk about held-out questions: does it help?

    Each answers, criticises what it is shown of the others, votes for the best and answers again; final answers are
    held against first ones, question by question, and against the most frequent first answer. Nobody learns from it.
    """
    from rich.console import Console

    from waggle.node import deliberating

    console, config = Console(markup=False, soft_wrap=True), load(config_file, sets or [])
    deliberating.deliberate_command(console, models, config, read, json_file)
