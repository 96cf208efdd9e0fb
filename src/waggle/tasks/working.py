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


def remainder_steps(item: Item) -> str:
    """Euclid's algorithm for two numbers: `34, 79` becomes `79 % 34 = 11`, `34 % 11 = 1`, `11 % 1 = 0`, `Answer: 1`."""
    small, large = sorted(item["metadata"]["numbers"])
    lines = []
    while small:
        lines.append(f"{large} % {small} = {large % small}")
        small, large = large % small, small
    return "\n".join((*lines, f"{ANSWER} {item['answer']}"))


def factor_steps(item: Item) -> str:
    """A fraction's parts without the factor: `10/38` becomes `10 = 2 * 5`, `38 = 2 * 19`, `Answer: 5/19`."""
    facts = item["metadata"]
    factor, lines = facts["reduction_factor"], []
    for part in ("numerator", "denominator"):
        lines.append(f"{facts[part]} = {factor} * {facts['simplified_' + part]}")
    return "\n".join((*lines, f"{ANSWER} {item['answer']}"))


WORKINGS: dict[str, Callable[[Item], str]] = {
    "sum-steps": sum_steps,
    "spell-and-count": spell_and_count,
    "remainder-steps": remainder_steps,
    "factor-steps": factor_steps,
}
"""The styles by name."""
