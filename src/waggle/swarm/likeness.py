"""How much of what a peer gets right I might have said myself: by author and family, from the likelihood window.

The window (`rl/window.py`) keeps answers from teaching that I would never have given. A group whose right answers all
lie outside it costs a step its operations and teaches nothing, so the next one of the same author and family is taken
less often: `choosing.py` draws it by this share and then takes it with this chance. Never less than `LEAST`, since I
change, too: what is strange to me now may be what I learn to say.
"""

from collections import OrderedDict
from collections.abc import Iterable

from waggle.core.types import Digest, Noun, PeerId

LEAST = 0.1
FADE = 0.9
"""What the past still counts after another group."""
_PRIOR = 0.5
"""Groups that a newcomer is thought to have sent, all of them like mine."""
_MOST = 512


class Like(Noun, frozen=True):
    """Faded sums over groups: the share of right answers within my window. Example: `Like(author, config, 2.6, 3)`."""

    author: PeerId
    config: Digest
    inside: float
    groups: float


class Likeness:
    """Example: `likeness = Likeness(); likeness.learn(author, config, 0.5); likeness.of(author, config)`."""

    def __init__(self, known: Iterable[Like] = ()) -> None:
        self._likes = OrderedDict(((one.author, one.config), one) for one in known)

    def state(self) -> tuple[Like, ...]:
        """All of them, the longest unchanged first."""
        return tuple(self._likes.values())

    def learn(self, author: bytes, config: bytes, inside: float) -> None:
        """A group of this author was trained on, of whose right answers this share was within the window."""
        old = self._likes.pop((author, config), Like(author, config, 0.0, 0.0))
        self._likes[author, config] = Like(author, config, FADE * old.inside + inside, FADE * old.groups + 1)
        if len(self._likes) > _MOST:
            self._likes.popitem(last=False)

    def of(self, author: bytes, config: bytes) -> float:
        """The share to be expected, `LEAST` to 1; 1 where nothing is known."""
        one = self._likes.get((author, config))
        return max(LEAST, (one.inside + _PRIOR) / (one.groups + _PRIOR)) if one else 1.0
