import json
from pathlib import Path

import pytest

from waggle.core.types import Family
from waggle.tasks.check import check, check_all
from waggle.tasks.families import UNUSABLE, family, named_set
from waggle.tasks.files import family_from_file

SLOW = {"codeio", "intermediate_integration", "knight_swap"}  # seconds a question, or one question in a hundred
HASHED = {env for env, why in UNUSABLE.items() if "PYTHONHASHSEED" in why}
GRADERS = """
def inside(answer, truth): return truth in answer
def always(answer, truth): return 1
def hang(answer, truth):
    while True: pass
"""


@pytest.mark.slow
def test_the_starter_set_passes() -> None:
    for report in check_all(named_set("starter")):
        assert report.failures == (), report.label
        assert report.distinct == 1000
        assert report.question


@pytest.mark.slow
def test_what_cannot_be_used_is_found() -> None:
    tiny = family("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})
    *reports, few = check_all([*(family(env) for env in UNUSABLE if env not in SLOW), tiny], count=8, deadline_s=25)
    for report in reports:
        expected = {"differs"} if report.env in HASHED else {"truth", "garbage"}
        assert expected & set(report.names), report
    assert few.failures == ("few: 200 distinct questions",)
    assert few.distinct == 200


def own(folder: Path, grader: str, name: str) -> Family:
    lines = [json.dumps({"question": f"q{n}", "answer": f"yes {n}"}) for n in range(120)]
    (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return family_from_file(folder / f"{name}.jsonl", grader, folder=folder)


@pytest.fixture
def graders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "check_graders.py").write_text(GRADERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_files_are_tried_with_their_grader(graders: Path) -> None:
    families = [own(graders, f"check_graders:{name}", name) for name in ("inside", "always")]
    exact, lenient, blind = check_all([own(graders, "exact", "exact"), *families], folder=graders)
    assert (exact.failures, exact.distinct) == ((), 120)
    assert lenient.names == ("listing",)
    assert set(blind.names) == {"garbage", "listing"}


@pytest.mark.slow
def test_a_grader_that_hangs_is_a_finding_and_the_others_are_tried(graders: Path) -> None:
    plain = own(graders, "exact", "exact")
    hanging = Family("own", "file", "{}", plain.version, "check_graders:hang", 3, "", 8)
    first, second = check_all([hanging, plain], count=2, folder=graders, deadline_s=3.0)
    assert first.names == ("hangs",)
    assert second.failures == ()


@pytest.mark.slow
def test_a_question_that_cannot_be_made_is_a_finding(tmp_path: Path) -> None:
    broken = Family("chain_sum", "reasoning-gym", '{"max_terms":0}', "0", "reasoning-gym", 0, "", 8)
    assert check(broken, count=2).names == ("unmade",)
