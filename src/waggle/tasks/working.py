"""Worked answers for the few-shot examples: ReasoningGYM gives results, not the way to them.

One small function a style writes the text that an example's answer shows; each ends in `Answer: X`, which is
what is graded.
"""

from collections.abc import Callable

from waggle.tasks.gym import Item

ANSWER = "Answer:"


def sum_steps(item: Item) -> str:
    """`3 + 4 - 2` becomes the lines `3 + 4 = 7`, `7 - 2 = 5` and `Answer: 5`."""
    first, *rest = item["metadata"]["expression"].split()
    total, steps = int(first), []
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        result = total + int(term) if sign == "+" else total - int(term)
        steps.append(f"{total} {sign} {term} = {result}")
        total = result
    return "\n".join((*steps, f"{ANSWER} {item['answer']}"))


def spell_and_count(item: Item) -> str:
    """Every word spelled and its hits counted, a line each: `letter: l e t t e r, 2`, then `Answer: 2`."""
    letter, lines = item["metadata"]["target_letter"], []
    for word in item["metadata"]["span"]:
        lines.append(f"{word}: {' '.join(word.lower())}, {word.lower().count(letter)}")
    return "\n".join((*lines, f"{ANSWER} {item['answer']}"))


WORKINGS: dict[str, Callable[[Item], str]] = {"sum-steps": sum_steps, "spell-and-count": spell_and_count}
"""The styles by name."""
