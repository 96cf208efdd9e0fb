"""Bytes of a shared group against GenRL 0.3.0's serialisation of the same group.

Run: python benchmarks/bytes.py [--groups 6] [--new 8]
Needs GenRL's encoder beside waggle: pip install --no-deps gensyn-genrl==0.3.0 && pip install msgpack datasets

GenRL ships, per question, the question, its truth and metadata and the completions as text, in one uncompressed
msgpack message a round. Waggle announces a round as one signed list and ships what is asked for in one frame. Both
hold the same questions and the same texts. Its figure is given with text alone, with token ids, and with ids and
log-probabilities; the announcement, which a neighbour gets once a round whatever it asks for, is given beside it.
"""

import argparse
import hashlib

import msgspec
import torch
from common import training_tasks

from waggle.core.codec import digest, encode
from waggle.core.keys import Key
from waggle.core.sealing import announce, answers_of, seal
from waggle.core.types import Body, Completion, Family, PolicyRef, Sampling, Task, Tokens
from waggle.policy.load import load
from waggle.policy.sampler import generate
from waggle.swarm.batch import pack_batch
from waggle.tasks import gym
from waggle.tasks.families import family, named_set


def theirs(tasks: list[Task], answers: list[list[Completion]], families: dict[bytes, Family]) -> int:
    """Bytes of GenRL's message for one agent's round, made the way its ReasoningGYM example makes it.

    Rows go through `datasets.Dataset` (so the metadata of one family names the fields of all, as it does there), the
    environment state holds question, answer and metadata, batch items are keyed by the question's MD5.
    """
    import msgpack
    from datasets import Dataset
    from genrl.communication.communication import Payload
    from genrl.serialization.msgpack_utils import _msgpack_encode
    from genrl.state.game_tree import WorldState

    items = [gym.item(families[task.ref.config], task.ref.seed, task.ref.index) for task in tasks]
    metadata = [{**item["metadata"], "dataset_index": i, "split": "train"} for i, item in enumerate(items)]
    columns = {"question": [i["question"] for i in items], "answer": [str(i["answer"]) for i in items]}
    message = {}
    for row, completions in zip(Dataset.from_dict({**columns, "metadata": metadata}), answers, strict=True):
        state = WorldState(environment_states=dict(row), opponent_states=None, personal_states=None)
        key = hashlib.md5(row["question"].encode(), usedforsecurity=False).hexdigest()
        message[key] = [Payload(state, [c.text for c in completions], None)]
    return len(msgpack.Packer(use_bin_type=True, default=_msgpack_encode).pack(message))


def ours(tasks: list[Task], answers: list[list[Completion]], keep: str) -> tuple[int, int]:
    key = Key.from_seed(bytes(32))
    bodies = []
    for task, row in zip(tasks, answers, strict=True):
        kept = tuple(_kept(c, keep) for c in row)
        ref = PolicyRef("smollm2-135m", bytes(range(32)), 12)
        bodies.append(Body(task.ref, ref, Sampling(max_tokens=64, seed=1 << 50), kept, key.id, 12))
    sealed = seal(key, bytes(32), 12, 1_700_000_000_000, bodies)
    travels = [encode(answers_of(number, body)) for number, body in enumerate(bodies)]
    return len(pack_batch(travels, 1 << 23)), len(encode(announce(bytes(32), sealed)))


def _kept(completion: Completion, keep: str) -> Completion:
    tokens = completion.tokens
    if keep == "text" or tokens is None:
        return Completion(completion.parts, completion.finish)
    if keep == "ids":
        return msgspec.structs.replace(completion, tokens=Tokens(tokens.tokenizer, tokens.ids))
    return completion


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=6)
    parser.add_argument("--group", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(2)
    policy = load("smollm2-135m")
    terms = {"min_terms": 18, "max_terms": 20, "min_digits": 1, "max_digits": 2}
    worked = family("chain_sum", terms, working="sum-steps", max_tokens=200, name="worked")
    for name, families in (("short answers", named_set("short")), ("worked answers", (worked,))):
        tasks = training_tasks(families, options.groups)
        answers = generate(policy, tasks, options.group, Sampling(max_tokens=200, seed=3))
        tokens = sum(len(c.tokens.ids) for row in answers for c in row if c.tokens) / len(tasks) / options.group
        peer = theirs(tasks, answers, {digest(f): f for f in families}) / options.groups
        what = f"{options.groups} groups of {options.group}, {tokens:.0f} tokens an answer"
        print(f"{name}: {what}; GenRL {peer:.0f} bytes a group")
        for keep in ("text", "ids", "ids and log-probabilities"):
            batch, news = ours(tasks, answers, keep)
            each = batch / options.groups
            print(
                f"  waggle, {keep}: {each:.0f} bytes a group, ratio {each / peer:.3f} "
                f"(announcement {news / options.groups:.0f} more)"
            )


if __name__ == "__main__":
    main()
