"""Which own groups are offered to peers: the sender's filter. It returns the reason for keeping one back, or None."""

from collections.abc import Callable

from waggle.core.types import Group

Keep = Callable[[Group], str | None]


def signal(group: Group) -> str | None:
    """Offer what can teach: groups whose rewards differ."""
    return None if group.has_signal else "no-signal"


def everything(group: Group) -> str | None:
    """Offer all."""
    return None


def nothing(group: Group) -> str | None:
    """Offer none."""
    return "not-sharing"


KEEPS: dict[str, Keep] = {"signal": signal, "all": everything, "none": nothing}
"""By the name that `share.publish` uses."""
