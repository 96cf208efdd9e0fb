"""Functions of the user's own that a setting names: `FILE.py:function`, or `module:function` of what can be imported.

A file is run when its function is first needed, never to show or check a run folder, and always with the rights of who
started the command: a setting names it, and no peer can.
"""

import hashlib
import importlib
import importlib.util
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from waggle.core.errors import ConfigError, RunError, WaggleError


def is_own(name: str) -> bool:
    """Whether a setting names a function of the user's."""
    return ":" in name


def own_function(name: str) -> Callable[..., Any]:
    """The function that is named.

    Raises:
        ConfigError: there is no such file, module or function, or it fails when it is read.
    """
    where, _, function = name.rpartition(":")
    try:
        module = _module(where)
    except Exception as error:  # the boundary: reading it runs it
        raise ConfigError(f"{name!r} cannot be used: {type(error).__name__}: {error}; check the path") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise ConfigError(f"{name!r}: there is no function {function!r} in {where}")
    return found  # type: ignore[no-any-return]


def own_digest(name: str) -> str:
    """What a function in a file follows from, in hex; empty for one of a module, which has a version of its own."""
    where = name.rpartition(":")[0]
    try:
        return hashlib.sha256(Path(where).read_bytes()).hexdigest() if where.endswith(".py") else ""
    except OSError as error:
        raise ConfigError(f"{name!r}: cannot read {where}: {error.strerror}; check the path") from error


@contextmanager
def of_the_user(name: str) -> Iterator[None]:
    """Whatever a function of the user's raises becomes a sentence that says where.

    Raises:
        RunError: it failed.
    """
    try:
        yield
    except WaggleError:
        raise
    except Exception as error:  # the boundary: anything may be raised in there
        line = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(line.filename).name}, line {line.lineno}"
        raise RunError(f"{name} failed ({where}: {type(error).__name__}: {error}); mend it and go on") from error


@lru_cache(maxsize=64)
def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    spec = importlib.util.spec_from_file_location(f"waggle_own_{Path(where).stem}", Path(where))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
