"""Every setting, from the models that read it: what `waggle config --explain` and docs/configuration.md say."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from waggle.core.config import Config, dump

_WORDS = {str: "text", bool: "true or false", int: "integer", float: "number"}
_BOUNDS = {Ge: "at least", Gt: "above", Le: "at most", Lt: "below"}


@dataclass(frozen=True)
class Setting:
    """One field. Example: `Setting("local", "integer, at least 1, at most 256", "6", "I: groups of ...")`."""

    name: str
    type: str
    default: str
    doc: str


@dataclass(frozen=True)
class Section:
    """One section of the configuration."""

    name: str
    doc: str
    settings: tuple[Setting, ...]


def sections() -> Iterator[Section]:
    """The whole configuration, in its order."""
    defaults = _defaults()
    for name, info in Config.model_fields.items():
        model: Any = info.annotation
        settings = tuple(
            Setting(field, type_words(about), defaults[f"{name}.{field}"], about.description or "")
            for field, about in model.model_fields.items()
        )
        yield Section(name, model.__doc__ or "", settings)


def _defaults() -> dict[str, str]:
    """Defaults as TOML, by `section.field`."""
    found, section = {}, ""
    for line in dump(Config()).splitlines():
        name, equals, value = line.partition(" = ")
        if equals:
            found[f"{section}.{name}"] = value
        elif line:
            section = line.strip("[]")
    return found


def type_words(info: FieldInfo) -> str:
    """What may be written there. Example: `integer, at least 1, at most 256`."""
    kind: Any = info.annotation
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(f'"{value}"' for value in get_args(kind))
    if get_origin(kind) is tuple:
        of = get_args(kind)[0]
        return f"list of {', '.join(get_args(of))}" if get_origin(of) is Literal else f"list of {_WORDS[of]}s"
    bounds = (f", {_BOUNDS[type(bound)]} {_value(bound)}" for bound in info.metadata if type(bound) in _BOUNDS)
    return _WORDS[kind] + "".join(bounds)


def _value(bound: Any) -> str:
    return str(next(value for name in ("ge", "gt", "le", "lt") if (value := getattr(bound, name, None)) is not None))
