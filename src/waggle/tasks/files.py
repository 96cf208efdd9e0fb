"""Questions of a user: a JSONL file with `question` and `answer` on each line, graded by a named grader.

The file is addressed by its content: its blob id is the family's version, and a peer that fetched the blob gets the
same questions. A truth from a file cannot be regenerated, so tasks made from it are marked weak.
Every epoch asks the questions in a fresh order that follows from the stream's seed.
"""

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from waggle.core.blob import DiskBlobs, blob_id
from waggle.core.errors import TaskError
from waggle.core.rng import rng_for
from waggle.core.types import Family

MAX_BYTES = 64 << 20
MAX_LINES = 1_000_000
MAX_LINE_BYTES = 64 << 10
MIN_QUESTIONS = 100
"""Fewer questions than this leave too little in the reserved buckets; they are counted exactly."""

_FIELDS = {"question", "answer", "choices"}


def family_from_file(
    file: Path,
    grader: str = "exact",
    *,
    folder: Path,
    name: str = "",
    shots: int = 3,
    max_tokens: int = 16,
) -> Family:
    """Read a task file, keep a copy in `folder` under its blob id, and make a family of it.

    Raises:
        TaskError: an unknown grader, an unreadable file, a bad line (with its number) or too few questions.
        RunError: the copy cannot be written.
    """
    from waggle.tasks.verdicts import check_grader

    check_grader(grader)
    data = _read(file)
    items = parse(data, str(file))
    _check_answers(items, grader, file)
    version = DiskBlobs(folder).put(data).hex()
    return Family(file.stem[:100], "file", "{}", version, grader, shots, "", max_tokens, name or file.stem[:100])


def file_ids(families: Iterable[Family]) -> list[bytes]:
    """The blob ids of the task files that these families ask questions of; a version that is no id is left out."""
    return list({bytes.fromhex(f.version): None for f in families if f.source == "file" and _is_id(f.version)})


def missing_files(families: Iterable[Family], folder: Path) -> list[bytes]:
    """Those of them that are not in `folder`. What is fetched for it has at most `MAX_BYTES`."""
    return [blob for blob in file_ids(families) if not DiskBlobs(folder).has(blob)]


def _is_id(version: str) -> bool:
    return len(version) == 64 and not set(version) - set("0123456789abcdef")


def _read(file: Path) -> bytes:
    try:
        if file.stat().st_size > MAX_BYTES:
            raise TaskError(f"{file} has {file.stat().st_size} bytes; at most {MAX_BYTES} are read, so split it")
        return file.read_bytes()
    except OSError as error:
        raise TaskError(f"cannot read the task file {file}: {error.strerror}") from error


def parse(data: bytes, where: str) -> list[dict[str, Any]]:
    """The items of a task file, in order; a question that is there twice counts once.

    Raises:
        TaskError: naming the line and what is wrong with it, or too few questions.
    """
    if len(data) > MAX_BYTES:
        raise TaskError(f"{where} has {len(data)} bytes; at most {MAX_BYTES} are read, so split it")
    items: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if number > MAX_LINES:
            raise TaskError(f"{where} has more than {MAX_LINES} lines; split it")
        if line.strip():
            item = _item(line, f"{where}, line {number}")
            items.setdefault(" ".join(item["question"].casefold().split()), item)
    if len(items) < MIN_QUESTIONS:
        raise TaskError(f"{where} has {len(items)} distinct questions; {MIN_QUESTIONS} are needed to hold some out")
    return list(items.values())


def _item(line: bytes, where: str) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise TaskError(f"{where} has {len(line)} bytes; at most {MAX_LINE_BYTES} are read")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise TaskError(f'{where} is not an object; write {{"question": "...", "answer": "..."}}')
    for field in sorted(set(fields) - _FIELDS):
        raise TaskError(f"{where} has an unknown field {field!r}; known: {', '.join(sorted(_FIELDS))}")
    question, answer, choices = fields.get("question"), fields.get("answer"), fields.get("choices", [])
    if not isinstance(question, str) or not question.strip():
        raise TaskError(f'{where} has no "question" text')
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise TaskError(f'{where} has no "answer" text or number')
    if not isinstance(choices, list) or not all(isinstance(choice, str) and choice.strip() for choice in choices):
        raise TaskError(f'{where}: "choices" is not a list of texts')
    if any("\ud800" <= character <= "\udfff" for text in (question, str(answer), *choices) for character in text):
        raise TaskError(f"{where} holds half a character (a lone surrogate)")
    if choices and str(answer) not in choices:
        raise TaskError(f"{where}: the answer {answer!r} is none of the choices")
    return {"question": _asked(question, choices), "answer": str(answer), "metadata": {"choices": tuple(choices)}}


def _asked(question: str, choices: list[str]) -> str:
    return question if not choices else "\n".join((question, *(f"- {choice}" for choice in choices)))


def _check_answers(items: list[dict[str, Any]], grader: str, file: Path) -> None:
    from waggle.tasks.verdicts import grade_answer

    for item in items:
        verdict = grade_answer(grader, item["answer"], item["answer"])
        if verdict.reward is None or (verdict.reward != 1.0 and grader != "regex"):
            told = verdict.error or f"its own answer is graded {verdict.reward}"
            raise TaskError(f"{file}: the question {item['question'][:60]!r} does not fit grader {grader!r}: {told}")


class FileQuestions:
    """The questions of one file, in an order that depends on the seed."""

    def __init__(self, folder: Path | None, family: Family) -> None:
        self._items = parse(_stored(folder, family), family.label)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._items)

    def item(self, seed: int, index: int) -> dict[str, Any]:
        """Question `index` in the order of `seed`; after the last one the next order starts."""
        lap, position = divmod(index, len(self._items))
        return self._items[int(_order(seed, lap, len(self._items))[position])]


@lru_cache(maxsize=8)
def _order(seed: int, lap: int, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return rng_for("file order", seed, lap).permutation(size)


def _stored(folder: Path | None, family: Family) -> bytes:
    if folder is None:
        raise TaskError(f"{family.label} comes from a task file; say in which folder the files are kept")
    if not _is_id(family.version):
        raise TaskError(f"{family.label} does not name its task file by a digest")
    file = DiskBlobs(folder).path(bytes.fromhex(family.version))
    if not file.exists():
        raise TaskError(f"the task file of {family.label} is not here ({file}); fetch it from a peer first")
    data = _read(file)
    if blob_id(data).hex() != family.version:
        raise TaskError(f"{file} is damaged: its content does not match its name; delete it and fetch it again")
    return data
