"""The best weights: which are kept as `model/`, and the return to them.

The judge is the held-out rate on the steering questions. Weights that have forgotten how to write are not kept, however
well they do there: a text of the program's, which no task is about, must not have become harder to predict by more than
`eval.forget` of its bits. Where the dose (`swarm/dose.py`) says that sharing has done harm, the round begins with the
best weights again and a fresh optimiser. A journal that holds such a round needs those very weights, so the next better
ones are exported only after a checkpoint.
"""

from msgspec.structs import replace

from waggle.core.codec import digest_bytes
from waggle.node.learner import lineage
from waggle.node.node import Node

_BACK = digest_bytes("Batch", b"went back")


def begin_round(node: Node) -> bool:
    """What a round does about the best weights before it begins; whether it went back to them."""
    state, config = node.state, node.config.eval
    if not state.round and config.every and config.forget and not state.start_bits:
        node.state = replace(state, start_bits=node.learner.prose_bits())
    if not state.dose.back:
        return False
    node.state = replace(state, dose=replace(state.dose, back=False))
    kept = node.archive.exported(state.best_round)
    if kept is None:
        return False
    node.return_to(kept)
    node.state = replace(node.state, lineage=lineage(state.best_lineage, _BACK), last_rate=state.best_rate)
    node.events.emit("went-back", round=state.round, to_round=state.best_round, rate=state.best_rate)
    return True


def is_best(node: Node, number: int, rate: float) -> bool:
    """Whether weights with this held-out rate are better than those that are kept, and have forgotten nothing."""
    if rate <= node.state.best_rate:
        return False
    before = node.state.start_bits
    bits = node.learner.prose_bits() if before else 0.0
    forgot = bits > before * (1 + node.config.eval.forget)
    if forgot:
        node.events.emit("forgot", round=number, rate=rate, bits=round(bits, 4), bits_before=round(before, 4))
    return not forgot


def keep(node: Node) -> None:
    """Export the weights of the last round.

    Raises:
        RunError: the disk refuses.
    """
    if node.needs_best:
        node.checkpoint()
    node.archive.export(node.state.round, node.learner)


def close_steering(node: Node) -> None:
    """Let the last weights compete for `model/` where their round had no evaluation; without any, they win."""
    state, every = node.state, node.config.eval.every
    if state.best_round == state.round or (every and state.round % every == 0):
        return
    rate = node.ask("steer", state.round).over().rate if every else state.best_rate
    if not every or is_best(node, state.round, rate):
        keep(node)
        node.state = replace(node.state, best_round=state.round, best_rate=rate, best_lineage=state.lineage)
