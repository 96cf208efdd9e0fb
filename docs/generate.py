"""Writes the reference pages from the program itself: docs/cli.md, docs/configuration.md, docs/tasks.md.

`python docs/generate.py` writes them; with `--check` it writes nothing and fails where a page is out of date, which
a test does too, so that a page cannot differ from what the program says.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from waggle.cli import app, register
from waggle.cli.reference import sections
from waggle.core import errors
from waggle.tasks import gym
from waggle.tasks.families import UNUSABLE, named_set, set_names, why_unusable
from waggle.tasks.verdicts import BUILTIN
from waggle.tasks.working import WORKINGS

FOLDER = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py; change the program, then run `make docs`. -->"
WIDTH = 100


def commands() -> Iterator[tuple[str, str]]:
    """Every command with what its `--help` prints, groups before their members."""
    register()
    yield from _with_members(typer.main.get_command(app), "waggle", None)


def _with_members(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:
    options = {"info_name": name.split()[-1], "parent": parent, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = command.context_class(command, **options, **command.context_settings)
    yield name, command.get_help(context)
    if hasattr(command, "list_commands"):
        for member in command.list_commands(context):
            yield from _with_members(command.get_command(context, member), f"{name} {member}", context)


def exit_codes() -> Iterator[tuple[int, str]]:
    """Exit codes and when they are given, in their order."""
    yield 0, "All went well; of `waggle status`, every node is running or has ended in order."
    yield 1, "`waggle status` found a node that was killed, `waggle doctor` a fault; a path that cannot be used."
    for kind in sorted(errors.WaggleError.__subclasses__(), key=lambda kind: kind.exit_code):
        also = " An unknown command or option as well." if kind.exit_code == 2 else ""
        yield kind.exit_code, (kind.__doc__ or "").partition("\n")[0] + also
    yield 130, "Stopped by a second Ctrl-C, or by the first where there is no run to end."


def cli_page() -> str:
    """docs/cli.md."""
    lines = [NOTE, "# The command line", ""]
    lines += ["Every error is one sentence on the standard error stream that begins with `waggle:`, and an exit code:"]
    lines += ["", "| code | means |", "|---:|---|", *(f"| {code} | {means} |" for code, means in exit_codes()), ""]
    for name, told in commands():
        lines += [f"## `{name}`", "", "```text", told, "```", ""]
    return "\n".join(lines)


def configuration_page() -> str:
    """docs/configuration.md."""
    lines = [NOTE, "# Configuration", ""]
    lines += [
        "One TOML file, read with `--config FILE`; each `--set section.field=value` goes over it. A field that does",
        "not exist, a value of another type and a setting without effect are errors. The environment is not read.",
        "`waggle config` prints the settings as they would be used, `waggle config --explain` with this text.",
        "",
    ]
    for section in sections():
        lines += [f"## [{section.name}]", "", section.doc, "", "| setting | value | default | |", "|---|---|---|---|"]
        lines += [f"| `{s.name}` | {s.type} | `{s.default}` | {s.doc} |" for s in section.settings]
        lines.append("")
    return "\n".join(lines)


def tasks_page() -> str:
    """docs/tasks.md."""
    lines = [NOTE, "# Tasks", ""]
    lines += [
        "A swarm is founded with a named set of families (`tasks.set`), a task file of one's own (`tasks.file`),",
        "or both. Environments that cannot be used are left out when a swarm is founded on a set that names them.",
        "`waggle tasks list`, `show` and `check` look at them.",
        "",
    ]
    for name in set_names():
        families = named_set(name)
        lines += [f"## The set `{name}`", ""]
        if name == "all":
            lines += [f"The {len(families)} environments of ReasoningGYM {gym.version()} with their own settings: "]
            lines += [", ".join(f"`{family.env}`" for family in families) + ".", ""]
            continue
        lines += ["| family | environment | settings | shots | working | most tokens |", "|---|---|---|---:|---|---:|"]
        for family in families:
            fields = json.loads(family.config).items()
            settings = ", ".join(f"{key} {json.dumps(value)}" for key, value in fields) or "its own"
            settings += " (cannot be used)" if why_unusable(family) else ""
            cells = (f"`{family.label}`", f"`{family.env}`", settings, family.shots, family.working, family.max_tokens)
            lines.append("| " + " | ".join(map(str, cells)) + " |")
        lines.append("")
    lines += ["## Environments that cannot be used", "", "With the reason.", ""]
    lines += ["| environment | why |", "|---|---|", *(f"| `{env}` | {why} |" for env, why in sorted(UNUSABLE.items()))]
    return "\n".join([*lines, "", *_file_lines()])


def _file_lines() -> list[str]:
    builtin = ", ".join(f"`{name}`" for name in BUILTIN[1:])
    return [
        "## Task files",
        "",
        "A JSONL file with one object a line. `choices` is optional and is shown below the question.",
        "",
        "```json",
        '{"question": "What is the capital of France?", "answer": "Paris", "choices": ["Lyon", "Paris"]}',
        "```",
        "",
        f"Answers are graded as `tasks.grader` says: {builtin}, or `FILE.py:function`",
        "(`module:function` of what can be imported), a function of one's own that takes the answer and the truth and",
        "returns a number, of which 1 is right. `examples/own.py` has one.",
        "",
        f"Styles of working that examples can show: {', '.join(f'`{name}`' for name in sorted(WORKINGS))}.",
        "",
    ]


PAGES = {"cli.md": cli_page, "configuration.md": configuration_page, "tasks.md": tasks_page}


def outdated() -> list[str]:
    """Names of the pages that differ from what would be written."""
    return [name for name, page in PAGES.items() if not _same(FOLDER / name, page())]


def _same(file: Path, text: str) -> bool:
    return file.exists() and file.read_text("utf-8") == text


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` say which are out of date; the exit status is 1 where some are."""
    if arguments == ["--check"]:
        for name in (old := outdated()):
            print(f"docs/{name} is out of date; run `make docs`", file=sys.stderr)
        return 1 if old else 0
    if arguments:
        print("usage: python docs/generate.py [--check]", file=sys.stderr)
        return 2
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
