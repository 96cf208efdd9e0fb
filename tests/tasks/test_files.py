import json
from pathlib import Path

import pytest

from waggle.core.blob import DiskBlobs, blob_id
from waggle.core.errors import RunError, TaskError
from waggle.tasks import files
from waggle.tasks.files import FileQuestions, family_from_file, parse

GOOD = [json.dumps({"question": f"q{n}", "answer": f"a{n}"}) for n in range(120)]


def write(folder: Path, lines: list[str]) -> Path:
    file = folder / "mine.jsonl"
    file.write_text("\n".join(lines), "utf-8")
    return file


def test_a_file_becomes_a_family_addressed_by_its_content(tmp_path: Path) -> None:
    first = family_from_file(write(tmp_path, GOOD), folder=tmp_path / "kept")
    again = family_from_file(write(tmp_path, GOOD), folder=tmp_path / "kept")
    other = family_from_file(write(tmp_path, [*GOOD, json.dumps({"question": "x", "answer": 1})]), folder=tmp_path)
    assert first == again
    assert first.version != other.version
    assert bytes.fromhex(other.version) == blob_id((tmp_path / "mine.jsonl").read_bytes())
    assert files.missing_files([first, other], tmp_path / "kept") == [bytes.fromhex(other.version)]
    assert (first.source, first.label) == ("file", "mine")


def test_an_order_asks_every_question_once_and_depends_on_the_seed(tmp_path: Path) -> None:
    made = family_from_file(write(tmp_path, GOOD), folder=tmp_path)
    questions = FileQuestions(tmp_path, made)
    first = [questions.item(1, index)["question"] for index in range(120)]
    assert len(set(first)) == 120
    assert first == [FileQuestions(tmp_path, made).item(1, index)["question"] for index in range(120)]
    assert first != [questions.item(2, index)["question"] for index in range(120)]
    assert first != [questions.item(1, 120 + index)["question"] for index in range(120)]


def test_choices_are_shown(tmp_path: Path) -> None:
    item = parse(b"\n".join(line.encode() for line in [*GOOD, CHOICE]), "file")[-1]
    assert item["question"] == "Which?\n- red\n- blue"


CHOICE = json.dumps({"question": "Which?", "answer": "red", "choices": ["red", "blue"]})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 121 is not valid JSON"),
        ("[1]", "line 121 is not an object"),
        ('{"answer": "a"}', 'line 121 has no "question"'),
        ('{"question": " ", "answer": "a"}', 'line 121 has no "question"'),
        ('{"question": "q"}', 'line 121 has no "answer"'),
        ('{"question": "q", "answer": ""}', 'line 121 has no "answer"'),
        ('{"question": "q", "answer": true}', 'line 121 has no "answer"'),
        ('{"question": "q", "answer": ["a"]}', 'line 121 has no "answer"'),
        ('{"question": "q", "answer": "a", "hint": "h"}', "unknown field 'hint'"),
        ('{"question": "q", "answer": "a", "choices": ["b"]}', "none of the choices"),
        ('{"question": "q", "answer": "a", "choices": "a"}', "not a list"),
        ('{"question": "' + "x" * 70_000 + '", "answer": "a"}', "line 121 has 7.... bytes; at most 65536"),
        ("[" * 100_000, "at most 65536"),
        ("[" * 60_000, "line 121 is not valid JSON"),
        ('{"question": "q\\ud800", "answer": "a"}', "line 121"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(TaskError, match=said):
        family_from_file(write(tmp_path, [*GOOD, line]), folder=tmp_path)


def test_bytes_that_are_not_text_are_a_bad_line(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_bytes(b"\xff\xfe{}\n")
    with pytest.raises(TaskError, match="line 1 is not valid JSON"):
        family_from_file(tmp_path / "mine.jsonl", folder=tmp_path)


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINES", 50)
    with pytest.raises(TaskError, match="more than 50 lines"):
        family_from_file(write(tmp_path, GOOD), folder=tmp_path)
    monkeypatch.setattr(files, "MAX_BYTES", 50)
    with pytest.raises(TaskError, match="at most 50 are read"):
        family_from_file(write(tmp_path, GOOD), folder=tmp_path)


def test_too_few_questions_are_counted(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="has 99 distinct questions; 100 are needed"):
        family_from_file(write(tmp_path, GOOD[:99] + [GOOD[0].replace("q0", " Q0 ")] * 40), folder=tmp_path)


@pytest.mark.parametrize(
    ("grader", "said"),
    [
        ("guess", "there is no grader 'guess'"),
        ("reasoning-gym", "grades environments"),
        ("no_such_module:f", "the grader 'no_such_module:f' cannot be used"),
        ("json:no_such_function", "there is no function"),
        ("json:__name__", "there is no function"),
        ("number", "does not fit grader 'number'"),
    ],
)
def test_graders_are_checked(tmp_path: Path, grader: str, said: str) -> None:
    with pytest.raises(TaskError, match=said):
        family_from_file(write(tmp_path, GOOD), grader, folder=tmp_path)


def test_a_pattern_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="does not fit grader 'regex'"):
        family_from_file(write(tmp_path, [*GOOD, '{"question": "q", "answer": "("}']), "regex", folder=tmp_path)


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="cannot read the task file"):
        family_from_file(tmp_path / "none.jsonl", folder=tmp_path)
    made = family_from_file(write(tmp_path, GOOD), folder=tmp_path)
    with pytest.raises(TaskError, match="in which folder"):
        FileQuestions(None, made)
    with pytest.raises(TaskError, match="fetch it from a peer"):
        FileQuestions(tmp_path / "elsewhere", made)
    DiskBlobs(tmp_path).path(bytes.fromhex(made.version)).write_text("changed")
    with pytest.raises(TaskError, match="is damaged"):
        FileQuestions(tmp_path, made)


def test_a_version_that_is_a_path_is_refused(tmp_path: Path) -> None:
    import msgspec

    made = msgspec.structs.replace(family_from_file(write(tmp_path, GOOD), folder=tmp_path), version="../mine")
    with pytest.raises(TaskError, match="by a digest"):
        FileQuestions(tmp_path, made)
    assert files.file_ids([made]) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file")
    with pytest.raises(RunError, match="blocked"):
        family_from_file(write(tmp_path, GOOD), folder=tmp_path / "blocked")
