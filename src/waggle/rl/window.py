"""Which foreign answers I would never have given: planted text, another style, noise.

A peer's answer can be right and carry something else. What is foreign to me shows in my own log-probabilities, which
nobody can forge: an answer with a stretch of `SPAN` tokens whose mean is below the limit teaches nothing. A rare style
that I know costs a few unlikely tokens where it begins and passes; words that I have never said do not (Hail to the
Thief, arXiv 2511.09780, defends likewise where models are the same). Shorter answers are one stretch.
"""

import numpy as np
from numpy.typing import NDArray

SPAN = 8
"""Tokens of a stretch."""


def unlikely(
    logprobs_N: NDArray[np.float32], answer_N: NDArray[np.int32], limit: float, span: int = SPAN
) -> NDArray[np.bool_]:
    """Whether a token belongs to an answer with a stretch less likely than `limit` nats a token, shape [N].

    Args:
        logprobs_N: mine, in the order of the answers and their tokens.
        answer_N: which answer each token belongs to, ascending.
    """
    found_N = np.zeros(len(logprobs_N), bool)
    if not len(answer_N):
        return found_N
    starts = np.flatnonzero(np.diff(answer_N, prepend=answer_N[:1] - 1))
    for start, end in zip(starts, [*starts[1:], len(answer_N)], strict=True):
        size = min(span, end - start)
        sums = np.cumsum(np.concatenate(([0.0], logprobs_N[start:end].astype(np.float64))))
        found_N[start:end] = bool(((sums[size:] - sums[:-size]) / size).min() < -limit)
    return found_N
