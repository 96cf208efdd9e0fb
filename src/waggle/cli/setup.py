"""Commands that prepare: `new` founds a swarm, `key` makes an identity, `config` and `tasks` show what there is."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waggle.cli import app, plain
from waggle.cli.options import ConfigFile, KeyFile, Sets, key_file
from waggle.core.config import Config, dump, load
from waggle.core.errors import ConfigError, TaskError
from waggle.core.files import write_atomic

if TYPE_CHECKING:
    from waggle.core.types import Family, Task
    from waggle.tasks.check import Report

keys = typer.Typer(help="Make or show the key that a node is known by.", no_args_is_help=True)
tasks = typer.Typer(help="List, show and try what a swarm can learn from.", no_args_is_help=True)
app.add_typer(keys, name="key")
app.add_typer(tasks, name="tasks")

File = Annotated[
    Path | None, typer.Option("--file", help="The key file; ~/.waggle/key by default.", show_default=False)
]


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="What people call the swarm.")],
    config_file: ConfigFile = None,
    sets: Sets = None,
    member: Annotated[
        list[str] | None,
        typer.Option(
            "--member",
            help="Id of a member, 64 hex digits. May be repeated; without any, all may join.",
            show_default=False,
        ),
    ] = None,
    key: KeyFile = None,
    days: Annotated[
        int | None,
        typer.Option("--days", min=1, max=3650, help="Refuse the ticket after so many days.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write the ticket to this file.", show_default=False)
    ] = None,
) -> None:
    """Found a swarm and print the ticket to it.

    The charter, signed with the key, says what the swarm learns and who may take part. Its families come from the
    configuration (tasks.set, tasks.file). Nothing is started.
    """
    from waggle.core.clock import SystemClock
    from waggle.core.keys import Key, peer_name
    from waggle.core.sealing import charter_digest
    from waggle.core.types import Ticket
    from waggle.node.build import found_charter
    from waggle.swarm.charter import ticket_text

    members = [_peer_id(text) for text in member or []]
    config = load(config_file, sets or [])
    with tempfile.TemporaryDirectory() as folder:
        founder = Key.load_or_create(key_file(key))
        created_ms = int(SystemClock().now_s() * 1000)
        charter = found_charter(config, founder, name, Path(folder), members, created_ms)
    text = ticket_text(Ticket(charter, expires_ms=created_ms + days * 86_400_000 if days else 0))
    if out:
        write_atomic(out, text.encode() + b"\n")
    print(f"swarm     {charter.name}")
    print(f"digest    {charter_digest(charter).hex()}")
    print(f"founder   {peer_name(founder.id)}")
    print(f"families  {', '.join(family.label for family in charter.families)}")
    print(f"open to   {f'{len(charter.members)} members' if charter.members else 'everybody'}")
    print(f"licence   {charter.licence}, of all experience that is shared")
    if config.tasks.file:
        print(f"file      members need a copy of {config.tasks.file}: waggle join TICKET --set tasks.file=COPY")
    print(f"ticket    {out or text}")


def _peer_id(text: str) -> bytes:
    try:
        peer = bytes.fromhex(text)
    except ValueError:
        peer = b""
    if len(peer) != 32:
        raise ConfigError(f"--member {text[:80]!r} is not an id of 64 hex digits; `waggle key show` prints one's own")
    return peer


@keys.command("new")
def key_new(file: File = None) -> None:
    """Make a key. An existing one is never replaced."""
    from waggle.core.keys import Key, peer_name

    path = key_file(file)
    made = Key.create(path)
    print(f"{path}: {peer_name(made.id)}\n{made.id.hex()}")


@keys.command("show")
def key_show(file: File = None) -> None:
    """Print the name and the id, which may be known to all; never the secret."""
    from waggle.core.keys import Key, peer_name

    path = key_file(file)
    kept = Key.load(path)
    print(f"{path}: {peer_name(kept.id)}\n{kept.id.hex()}")


@app.command("config")
def show_config(
    config_file: ConfigFile = None,
    sets: Sets = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say of every setting what it does.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what a run would do, without a run.")] = False,
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=1, max=256, help="For --dry-run: nodes of the run.")] = 4,
) -> None:
    """Print all settings as they would be used.

    The output is a file that --config reads.
    """
    config = load(config_file, sets or [])
    if explain and dry_run:
        raise ConfigError("--explain and --dry-run print different things; choose one of them")
    if dry_run:
        from waggle.cli.run import with_default_end
        from waggle.node.outlook import outlook

        for what, told in outlook(with_default_end(config) if nodes > 1 else config, nodes):
            print(f"{what:9} {told}")
    else:
        print(_explained(config) if explain else dump(config), end="")


def _explained(config: Config) -> str:
    """The configuration as TOML with every setting's documentation in comments."""
    from waggle.cli.reference import sections

    documented = {section.name: section for section in sections()}
    lines, settings = [], {}
    for line in dump(config).splitlines():
        if line.startswith("["):
            section = documented[line.strip("[]")]
            settings = {setting.name: setting for setting in section.settings}
            lines += [f"# {section.doc}", line, ""]
        elif line:
            about = settings[line.partition(" = ")[0]]
            lines += [f"# {about.doc}", f"# {about.type}; default {about.default}", line, ""]
    return "\n".join(lines) + "\n"


SetName = Annotated[str, typer.Option("--set-name", help="The set in which FAMILY is looked up first.")]
Grader = Annotated[str, typer.Option("--grader", help="How a task file is graded, as tasks.grader.")]


@tasks.command("list")
def tasks_list(
    set_name: Annotated[str | None, typer.Argument(metavar="[SET]", help="A named set.", show_default=False)] = None,
) -> None:
    """List the named sets, or the families of one."""
    from waggle.tasks.families import named_set, set_names, why_unusable

    if set_name is None:
        for name in set_names():
            families = named_set(name)
            unusable = sum(bool(why_unusable(family)) for family in families)
            left_out = f" ({unusable} of them cannot be used)" if unusable else ""
            print(f"{name:8} {len(families):3} families{left_out}")
        return
    for family in named_set(set_name):
        worked = f", working {family.working}" if family.working else ""
        why = why_unusable(family)
        told = f"not usable: {why}" if why else f"{family.shots} shots, {family.max_tokens} tokens{worked}"
        print(f"{family.label:28} {told}" + (f"  {family.env} {family.config}" if family.config != "{}" else ""))


@tasks.command("show")
def tasks_show(
    family: Annotated[str, typer.Argument(help="A family of the set, an environment, or a .jsonl task file.")],
    set_name: SetName = "starter",
    count: Annotated[int, typer.Option("--count", min=1, max=1000, help="How many questions.")] = 3,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**53, help="Other questions for other numbers.")] = 0,
    grader: Grader = "exact",
) -> None:
    """Show questions and their true answers.

    A question is shown as a model is asked it, after the examples that come before every question of its family.
    """
    from waggle.core.keys import Key
    from waggle.swarm.charter import new_charter
    from waggle.tasks.stream import Cursor
    from waggle.tasks.taskset import Taskset

    author = Key.from_seed(seed.to_bytes(32, "big"))
    with tempfile.TemporaryDirectory() as folder:
        wanted = _families([family], set_name, grader, Path(folder))
        if len(wanted) > 1:
            raise TaskError(f"{family} is a set; `waggle tasks list {family}` names its families, show one of them")
        charter = new_charter(author, "shown", wanted, created_ms=0)
        drawn, _ = Taskset(charter, Path(folder)).draw(author.id, Cursor(), count)
    for number, task in enumerate(drawn, 1):
        _print_task(number, task, shots=number == 1)


def _print_task(number: int, task: "Task", shots: bool) -> None:
    """One question; the examples that all questions of a family share only before the first."""
    for message in task.prompt[:-1] if shots else ():
        print(plain(f"{message.role}: {message.content}"))
    if shots and len(task.prompt) > 1:
        print(f"--- the {len(task.prompt) - 1} messages above come before every question ---")
    print(plain(f"user: {task.prompt[-1].content}"))
    print(f"--- {number}: true answer {task.truth!r}, graded by {task.grader}, at most {task.max_tokens} tokens ---")


@tasks.command("check")
def tasks_check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Sets, families, environments or .jsonl task files.", show_default=False
        ),
    ] = None,
    set_name: SetName = "starter",
    count: Annotated[int, typer.Option("--count", min=1, max=4096, help="Questions of each that are graded.")] = 20,
    grader: Grader = "exact",
) -> None:
    """Try graders, and name the tasks that fail.

    Graders are given true answers, none, lists of answers and garbage; questions are made twice and counted. Ends
    with exit code 3 where a task fails. Without names, the starter set is tried.
    """
    from waggle.tasks.check import check_all

    bad = []
    with tempfile.TemporaryDirectory() as folder:
        families = _families(names or ["starter"], set_name, grader, Path(folder))
        for report in check_all(families, count, Path(folder)):
            print(_verdict(report), flush=True)
            bad += [report.label] if report.failures else []
    if bad:
        raise TaskError(f"{len(bad)} of {len(families)} cannot be learned from: {', '.join(bad)}; see above for why")


def _verdict(report: "Report") -> str:
    more = "or more " if report.distinct == 1000 else ""
    fine = f"fit; {report.distinct} {more}distinct questions"
    return f"{report.label:28} " + ("; ".join(report.failures) or fine)


def _families(names: list[str], set_name: str, grader: str, folder: Path) -> "tuple[Family, ...]":
    """What the names mean: a task file, a set, a family of the set, or an environment with its own settings.

    Raises:
        TaskError: a name that is none of these, or a file that cannot be used.
    """
    from waggle.tasks.families import family, named_set, set_names
    from waggle.tasks.files import family_from_file

    labelled = {member.label: member for member in named_set(set_name)}
    found: dict[Family, None] = {}
    for name in names:
        if name.endswith(".jsonl"):
            members: tuple[Family, ...] = (family_from_file(Path(name), grader, folder=folder),)
        elif name in set_names():
            members = named_set(name)
        else:
            members = (labelled[name] if name in labelled else family(name, max_tokens=64),)
        found.update(dict.fromkeys(members))
    return tuple(found)
