import inspect
from pathlib import Path

import pytest

from waggle.core.errors import TaskError
from waggle.core.types import Family, Task, TaskRef, Verdict
from waggle.tasks import gym
from waggle.tasks.families import family
from waggle.tasks.taskset import Taskset
from waggle.tasks.verdicts import BUILTIN, answer_in, check_grader, grade_answer, grade_text, is_builtin


@pytest.mark.parametrize(
    ("grader", "answer", "truth", "reward"),
    [
        ("exact", " a  b ", "a b", 1.0),
        ("exact", "A b", "a b", 0.0),
        ("exact", "e\u0301", "\u00e9", 1.0),
        ("exact", "", "a", 0.0),
        ("number", "7", "7", 1.0),
        ("number", "+7.0", "7", 1.0),
        ("number", "1,000", "1000", 1.0),
        ("number", "10,00", "1000", 0.0),
        ("number", "1/2", "0.5", 1.0),
        ("number", "$7.", "7", 1.0),
        ("number", "\u22127", "-7", 1.0),
        ("number", "1e3", "1000", 1.0),
        ("number", "1e999999999", "1000", 0.0),
        ("number", "1/0", "1000", 0.0),
        ("number", "7 8", "7", 0.0),
        ("number", "seven", "7", 0.0),
        ("number", "nan", "7", 0.0),
        ("number", "0.33333333333", "1/3", 1.0),
        ("number", "0.333", "1/3", 0.0),
        ("number", "9" * 500, "7", 0.0),
        ("number", "7", "seven", None),
        ("choice", "(B).", "b", 1.0),
        ("choice", "A, B", "b", 0.0),
        ("choice", "", "b", 0.0),
        ("regex", "colour", "colou?r", 1.0),
        ("regex", "colours", "colou?r", 0.0),
        ("regex", "colour", "(", None),
        ("no_such_module:f", "x", "x", None),
    ],
)
def test_graders(grader: str, answer: str, truth: str, reward: float | None) -> None:
    verdict = grade_answer(grader, answer, truth)
    assert verdict.reward == reward
    assert bool(verdict.error) == (reward is None)


def test_functions_are_clipped_and_what_they_raise_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "verdict_graders.py").write_text(
        "def much(answer, truth): return 17\n"
        "def half(answer, truth): return 0.5\n"
        "def nan(answer, truth): return float('nan')\n"
        "def bad(answer, truth): raise KeyError('oops')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    told = {name: grade_answer(f"verdict_graders:{name}", "x", "y") for name in ("much", "half", "nan", "bad")}
    assert told["much"] == Verdict(1.0)
    assert told["half"] == Verdict(0.0, {"score": 0.5}), "partial credit is told and earns nothing"
    assert told["nan"] == Verdict(None, error="verdict_graders:nan gave nan")
    assert told["bad"] == Verdict(None, error="KeyError: 'oops'")


def test_only_built_ins_may_be_named_by_others() -> None:
    assert all(is_builtin(grader) for grader in BUILTIN)
    assert not is_builtin("os:system")
    with pytest.raises(TaskError, match="use one of reasoning-gym"):
        check_grader("guess")


@pytest.mark.parametrize(
    ("text", "working", "answer"),
    [
        ("  7 \n", "", "7"),
        ("3 + 4 = 7. Answer: 7", "", "3 + 4 = 7. Answer: 7"),
        ("3 + 4 = 7. Answer: 7 ", "sum-steps", "7"),
        ("Answer: 5 no, Answer: 7", "sum-steps", "7"),
        ("3 + 4 = 7", "sum-steps", ""),
        ("Answer:", "sum-steps", ""),
    ],
)
def test_what_is_graded(text: str, working: str, answer: str) -> None:
    assert answer_in(text, family("chain_sum", working=working)) == answer


def test_true_answers_are_right_and_others_wrong(taskset: Taskset) -> None:
    for task in taskset.heldout("steer", 40):
        made = taskset.family(task.ref)
        said = f"so Answer: {task.truth}" if made.working else task.truth
        assert grade_text(task, said, made).reward == 1.0
        for wrong in ("", " ", "no idea", f"{said} {int(task.truth) + 1}"):
            assert grade_text(task, wrong, made).reward == 0.0


def _answered(env: str, answer: str) -> Verdict:
    made = family(env)
    task = Task(TaskRef(env, bytes(32), 3, 0, 1), (), gym.GRADER, "", bytes(32), 8)
    return grade_text(task, answer, made)


@pytest.mark.parametrize("env", sorted(gym.EVALUATED))
def test_answers_are_never_run(env: str, tmp_path: Path) -> None:
    target = tmp_path / "ran"
    attacks = [
        f"__import__('pathlib').Path({str(target)!r}).touch()",
        f"[__import__('pathlib').Path({str(target)!r}).touch()]",
        f"(lambda: open({str(target)!r}, 'w'))()",
        f"open({str(target)!r}, 'w')",
        f"exec(open({str(target)!r}, 'w'))",
        f"Symbol('x').__class__.__init__.__globals__['__builtins__']['open']({str(target)!r}, 'w')",
        f"sin(open({str(target)!r}, 'w'))",
        f'f"{{open({str(target)!r}, chr(119))}}"',
    ]
    for attack in attacks:
        assert _answered(env, attack).reward == 0.0
        assert not target.exists(), attack


@pytest.mark.parametrize(
    ("env", "answer", "may"),
    [
        ("countdown", "91 + 55*(3 - 2)/7", True),
        ("simple_integration", "-2*x**10 - 10*x**6 + 8*x + C", True),
        ("intermediate_integration", "exp(3*x)*sin(x)/2 + sqrt(x) + C", True),
        ("polynomial_multiplication", "48*z**2 - 912*z", True),
        ("puzzle24", "9**9**9", False),
        ("puzzle24", "9**(9**9)", False),
        ("puzzle24", "2**1000", False),
        ("puzzle24", "9" * 40, False),
        ("puzzle24", "((((1", False),
        ("puzzle24", "factorial(99999999)", False),
        ("puzzle24", "x.y", False),
        ("puzzle24", "(1).real", False),
        ("puzzle24", "1 if 1 else 2", False),
        ("puzzle24", "[1, 2]", False),
        ("puzzle24", "f(x=1)", False),
        ("binary_matrix", "0 1 2\n1 0 1", True),
        ("binary_matrix", "[[0, 1], [1, 0]]", True),
        ("binary_matrix", "[[0, 1], [1, len([])]]", False),
        ("n_queens", "_ Q\nQ _", True),
        ("chain_sum", "__import__('os')", True),
    ],
)
def test_what_may_be_evaluated(env: str, answer: str, may: bool) -> None:
    assert gym.may_evaluate(env, answer) == may


def test_every_environment_that_evaluates_answers_is_known() -> None:
    """An upgrade of ReasoningGYM that evaluates more shows up here."""
    found = set()
    for env in gym.environments():
        source = inspect.getsource(gym._environments()[env][0].score_answer)
        if "eval(answer" in source or "exec(" in source or "parse_expr(answer" in source:
            found.add(env)
    assert found == gym.EVALUATED


def test_a_grader_of_environments_is_not_for_files() -> None:
    with pytest.raises(TaskError, match="grades environments"):
        grade_answer("reasoning-gym", "7", "7")


def test_a_family_that_cannot_make_the_question_is_not_graded() -> None:
    made = Family("chain_sum", "reasoning-gym", '{"max_terms":0}', gym.version(), gym.GRADER, 0, "", 8)
    task = Task(TaskRef("chain_sum", bytes(32), 3, 0, 1), (), gym.GRADER, "7", bytes(32), 8)
    verdict = grade_text(task, "7", made)
    assert verdict.reward is None
    assert "TaskError" in verdict.error
