"""Vectors of questions: seeds, draws, what is asked and what is reserved, the order of a file."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from conformance.world import ALICE, BOB, LETTERS, World, made_up, plain
from waggle.core.codec import digest, encode
from waggle.core.rng import seed_for, uniforms
from waggle.core.types import TaskRef
from waggle.tasks.files import FileQuestions, parse
from waggle.tasks.gym import EPOCH
from waggle.tasks.questions import bucket, question_digest
from waggle.tasks.stream import Cursor, is_common, ref_at


def seeds(world: World) -> Any:
    purposes: list[tuple[str | int | bytes, ...]] = [
        ("stream", made_up(1), ALICE.id, 7),
        ("common", b"", 0),
        ("é", 2**60),
    ]
    numbers = [(5, 0), (2**53 - 1, 511), (0, 4095)]
    units = [float(uniforms(np.array([key], np.uint64), np.array([place], np.uint64))[0]) for key, place in numbers]
    return {
        "seeds": [{"purpose": plain(purpose), "seed": seed_for(*purpose)} for purpose in purposes],
        "units": [{"key": k, "position": p, "unit": u} for (k, p), u in zip(numbers, units, strict=True)],
    }


def draws(world: World) -> Any:
    rows = []
    places = [(0, index) for index in range(0, 320, 7)] + [(0, EPOCH - 1), (1, 0), (29_166_666, 9)]
    for key in (ALICE, BOB):
        for epoch, index in places:
            ref = ref_at(world.charter, world.id, key.id, Cursor(epoch, index))
            common = is_common(world.id, epoch, index, world.charter.common_share)
            rows.append({"author": key.id.hex(), "common": common, "ref": plain(ref), "hex": encode(ref).hex()})
    return rows


def questions(world: World) -> Any:
    rows = []
    for position, family in enumerate(world.charter.families):
        for index in range(0, 60, 6):
            ref = TaskRef(family.env, digest(family), 81_985_529_216_486_895, 0, index)
            task = world.taskset.regenerate(ref)
            rows.append({"family": position, "seed": ref.seed, "index": index, "question": task.prompt[-1].content})
            rows[-1].update({"truth": task.truth, "digest": task.question.hex(), "bucket": bucket(task.question)})
    base = world.charter.families[0]
    for env, text, facts in [
        ("word_sorting", "Sort  these:\n Straße, ÉTÉ", {}),
        ("gcd", "Find the GCD of 12 and 18.", {"numbers": [12, 18]}),
        ("figlet_font", "What word is this?\n\n /| | |", {}),
        ("aiw", "Alice has 3 sisters and 12 brothers.", {"task_type": "siblings"}),
        ("family_relationships", "Ann is Bo's aunt.\n\nHow is Ann related to Bo?", {"person1": "Ann", "person2": "Bo"}),
        ("calendar_arithmetic", "Which day?", {"task": "day", "source_index": 3, "difficulty": {}, "year": 2023}),
    ]:
        question = question_digest(replace(base, env=env), {"question": text, "metadata": facts})
        rows.append({"env": env, "question": text, "metadata": facts, "digest": question.hex()})
        rows[-1]["bucket"] = bucket(question)
    return rows


def orders(world: World) -> Any:
    letters = world.charter.families[2]
    with tempfile.TemporaryDirectory() as folder:
        World(Path(folder))
        source = FileQuestions(Path(folder), letters)
        lines = {item["question"]: number for number, item in enumerate(parse(LETTERS.encode(), "letters"))}
        order = [[lines[source.item(seed, i)["question"]] for i in range(220)] for seed in (0, 1, 2**53 - 1)]
    rows = []
    for seed, places in zip((0, 1, 2**53 - 1), order, strict=True):
        rows += [{"seed": seed, "lap": lap, "n": 110, "order": places[110 * lap : 110 * lap + 110]} for lap in (0, 1)]
    return {"file": LETTERS, "orders": rows}
