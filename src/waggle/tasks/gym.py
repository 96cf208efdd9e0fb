"""ReasoningGYM as a source of questions: the one module that imports `reasoning_gym`.

Item `index` of a data set with seed `s` is drawn with `Random(s + index)`, so that a question follows from
(environment, configuration, seed, index) alone. Some graders of the environments evaluate the answer as
Python (`eval`, sympy's `parse_expr`): what a model or a peer wrote is looked at first and refused where it
could do anything but spell a value or a formula. Rewards are 1 or 0: the partial credit of some environments
is also given to a listing of several answers, so it is kept in the verdict's parts and not trained on.
"""

import ast
import contextlib
import difflib
import io
import json
import re
import warnings
from functools import lru_cache
from importlib import metadata
from typing import Any

from waggle.core.errors import TaskError
from waggle.core.types import Family

EPOCH = 4096
"""Draws in one epoch of a stream, and the size of every data set."""

Item = dict[str, Any]
"""A question as its source gives it: `question`, `answer` and `metadata`."""

GRADER = "reasoning-gym"
_SEEDED_WHEN_BUILT = frozenset({"acre", "composite", "gsm_symbolic", "list_functions", "survo"})
_SEED_BITS = {"pool_matrix": 31}  # seeds numpy's legacy generator, which takes 32 bits; `+ index` must fit as well
_PRINTING = frozenset({"bf", "codeio"})
_EVALUATED_LITERALS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
_EVALUATED_FORMULAS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
_RAISES_WHEN_MALFORMED = frozenset({"coin_flip", "prime_factorization"})
EVALUATED = _EVALUATED_LITERALS | _EVALUATED_FORMULAS
"""Environments whose grader evaluates the answer."""

_FORMULA_NODES = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant, ast.Name, ast.Load)
_FUNCTIONS = frozenset("sin cos tan sec csc cot asin acos atan sinh cosh tanh exp log ln sqrt Abs Integral".split())
_MAX_FORMULA_CHARS, _MAX_DIGITS = 1000, 30


def version() -> str:
    """Version of the installed ReasoningGYM (its `__version__` is out of date)."""
    return metadata.version("reasoning-gym")


@lru_cache(maxsize=1)
def _environments() -> dict[str, tuple[Any, Any]]:
    import reasoning_gym  # noqa: F401  (fills the registry)
    from reasoning_gym.factory import DATASETS

    return dict(DATASETS)


def environments() -> tuple[str, ...]:
    """Names of all environments, sorted; `composite`, which only mixes others, is left out."""
    return tuple(sorted(set(_environments()) - {"composite"}))


def canonical_config(env: str, config: dict[str, Any]) -> str:
    """The configuration as canonical JSON, once the environment has accepted it.

    Raises:
        TaskError: unknown environment or field, or a value the environment refuses.
    """
    try:
        text = json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TaskError(f"the configuration of {env!r} is not plain JSON: {error}") from error
    _config_of(env, text, 0)
    return text


def check_config(env: str, config: str) -> None:
    """Refuse a configuration that the environment does not accept.

    Raises:
        TaskError: see `canonical_config`; also text that is not canonical JSON.
    """
    try:
        fields = json.loads(config)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"the configuration of {env!r} is not JSON: {error}") from error
    if not isinstance(fields, dict) or canonical_config(env, fields) != config:
        raise TaskError(f"the configuration of {env!r} is not in canonical form: {config[:100]}")


def _config_of(env: str, config: str, seed: int) -> Any:
    if env not in environments():
        near = difflib.get_close_matches(env, environments(), 3)
        hint = f"did you mean {', '.join(near)}?" if near else "`waggle tasks list all` names them"
        raise TaskError(f"ReasoningGYM {version()} has no environment {env!r}; {hint}")
    kind = _environments()[env][1]
    fields = json.loads(config)
    known = sorted(set(kind.__dataclass_fields__) - {"seed", "size"})
    for field in fields:
        if field not in known:
            near = difflib.get_close_matches(field, known, 1) or known[:8]
            raise TaskError(f"environment {env!r} has no setting {field!r}; known: {', '.join(near)}")
    try:
        built = kind(**fields, seed=seed, size=EPOCH)
        if hasattr(built, "validate"):
            built.validate()
    except (AssertionError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise TaskError(f"environment {env!r} refuses the configuration {config}: {error or 'invalid'}") from error
    return built


def _build(env: str, config: str, seed: int) -> Any:
    try:
        return _environments()[env][0](config=_config_of(env, config, seed))
    except (AssertionError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise TaskError(f"environment {env!r} cannot be built with {config}: {error}") from error


@lru_cache(maxsize=256)
def _shared(env: str, config: str) -> Any:
    return _build(env, config, 0)


@lru_cache(maxsize=16)
def _seeded(env: str, config: str, seed: int) -> Any:
    return _build(env, config, seed)


def dataset(family: Family, seed: int) -> Any:
    """The family's data set at this seed. A data set is reused under another seed wherever that is the same."""
    bits = _SEED_BITS.get(family.env)
    seed = seed if bits is None else seed & ((1 << bits) - 1)
    if family.env in _SEEDED_WHEN_BUILT:
        return _seeded(family.env, family.config, seed)
    shared = _shared(family.env, family.config)
    shared.seed = seed
    return shared


def item(family: Family, seed: int, index: int) -> Item:
    """Question `index` of the family at `seed`.

    Raises:
        TaskError: the environment fails to make it.
    """
    quiet = contextlib.redirect_stdout(io.StringIO()) if family.env in _PRINTING else contextlib.nullcontext()
    source = dataset(family, seed)
    try:
        with quiet:
            made: Item = source[index]
    except Exception as error:  # generators are foreign code: what they raise is data about one question
        raise TaskError(
            f"{family.label}: question {index} of seed {seed} cannot be made: {type(error).__name__}: {error}"
        ) from error
    return made


def score(family: Family, made: Item, answer: str) -> float:
    """The environment's own score of an answer; 0 where the answer may not be evaluated."""
    if not may_evaluate(family.env, answer):
        return 0.0
    source = dataset(family, 0)
    with warnings.catch_warnings() if family.env in EVALUATED else contextlib.nullcontext():
        if family.env in EVALUATED:
            warnings.simplefilter("ignore")  # of the compiler, about what the answer says
        try:
            return float(source.score_answer(answer, made))
        except (ValueError, ArithmeticError):
            if family.env in _RAISES_WHEN_MALFORMED:
                return 0.0
            raise


def may_evaluate(env: str, answer: str) -> bool:
    """Whether the environment's grader can be given this answer without running what it says."""
    if env in _EVALUATED_LITERALS:
        return re.fullmatch(r"[\w\s]*", answer) is not None or _is_literal(answer)
    if env in _EVALUATED_FORMULAS:
        return _is_formula(answer)
    return True


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _is_formula(text: str) -> bool:
    if len(text) > _MAX_FORMULA_CHARS or re.search(rf"[^\w\s+\-*/().,]|__|\d{{{_MAX_DIGITS}}}", text):
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return _is_formula_tree(tree)


def _is_formula_tree(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
        return named and all(_is_formula_tree(argument) for argument in node.args)
    if isinstance(node, ast.Constant) and not isinstance(node.value, int | float):
        return False
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and not _is_small_power(node.right):
        return False
    return isinstance(node, _FORMULA_NODES) and all(_is_formula_tree(child) for child in ast.iter_child_nodes(node))


def _is_small_power(node: ast.AST) -> bool:
    numbers = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    nested = any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow | ast.Mult) for n in ast.walk(node))
    return not nested and all(isinstance(n, int | float) and abs(n) <= 100 for n in numbers)
