"""Bytes of a shared group against GenRL 0.3.0's serialisation of the same group.

Run: python benchmarks/bytes.py [--steps 8] [--run RUN_FOLDER]
Needs GenRL's encoder beside waggle: pip install --no-deps gensyn-genrl==0.3.0 && pip install msgpack datasets

GenRL ships, per question, the question, its truth and metadata and the completions as text, in one uncompressed
msgpack message a round. Waggle announces a round as one signed list and ships what is asked for in one frame. Both
hold the same questions and the same texts, six groups at a time. Waggle's figure is given with text alone, with token
ids, and with ids and log-probabilities; the announcement, which a neighbour gets once a round whatever it asks for, is
given beside it.

Short answers are the first groups of the untrained model that would be published, since they have a signal. An
untrained model does not show its working but writes what comes to mind, which hardly compresses; so worked answers of
200 tokens are measured twice, before and after `--steps` steps of supervised training on workings. `--run` measures
instead what the nodes of a run really offered.
"""

import argparse
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import torch
from common import training_tasks

from waggle.core.codec import digest, encode
from waggle.core.keys import Key
from waggle.core.sealing import announce, answers_of, seal
from waggle.core.types import Body, Completion, Family, PolicyRef, Sampling, Task, Tokens
from waggle.node.runfolder import RunFolder, node_folders, read_noun
from waggle.node.state import Snapshot
from waggle.policy.load import load
from waggle.policy.logprobs import row_logprobs
from waggle.policy.policy import Policy
from waggle.policy.sampler import generate
from waggle.policy.tree import Prompted, pack
from waggle.swarm.batch import pack_batch
from waggle.tasks import gym
from waggle.tasks.families import family, named_set
from waggle.tasks.grade import grade_text
from waggle.tasks.taskset import Taskset
from waggle.tasks.working import WORKINGS

GROUPS, GROUP = 6, 8
STYLE = "sum-steps"
Shared = list[tuple[Task, Body]]


def theirs(shared: Shared, families: dict[bytes, Family]) -> int:
    """Bytes of GenRL's message for one agent's round, made the way its ReasoningGYM example makes it.

    Rows go through `datasets.Dataset` (so the metadata of one family names the fields of all, as it does there), the
    environment state holds question, answer and metadata, batch items are keyed by the question's MD5.
    """
    import msgpack
    from datasets import Dataset
    from genrl.communication.communication import Payload
    from genrl.serialization.msgpack_utils import _msgpack_encode
    from genrl.state.game_tree import WorldState

    items = [gym.item(families[task.ref.config], task.ref.seed, task.ref.index) for task, _ in shared]
    metadata = [{**item["metadata"], "dataset_index": i, "split": "train"} for i, item in enumerate(items)]
    columns = {"question": [i["question"] for i in items], "answer": [str(i["answer"]) for i in items]}
    message = {}
    for row, (_, body) in zip(Dataset.from_dict({**columns, "metadata": metadata}), shared, strict=True):
        state = WorldState(environment_states=dict(row), opponent_states=None, personal_states=None)
        key = hashlib.md5(row["question"].encode(), usedforsecurity=False).hexdigest()
        message[key] = [Payload(state, [c.text for c in body.completions], None)]
    return len(msgpack.Packer(use_bin_type=True, default=_msgpack_encode).pack(message))


def ours(shared: Shared, keep: str) -> tuple[int, int]:
    """Bytes of a reply with these groups, and of the announcement of them."""
    bodies = [
        msgspec.structs.replace(body, completions=tuple(_kept(c, keep) for c in body.completions)) for _, body in shared
    ]
    reply = pack_batch([encode(answers_of(number, body)) for number, body in enumerate(bodies)], 1 << 23)
    news = announce(bytes(32), seal(Key.from_seed(bytes(32)), bytes(32), 12, 1_700_000_000_000, bodies))
    return len(reply), len(encode(news))


def _kept(completion: Completion, keep: str) -> Completion:
    tokens = completion.tokens
    if keep == "text" or tokens is None:
        return Completion(completion.parts, completion.finish)
    if keep == "ids":
        return msgspec.structs.replace(completion, tokens=Tokens(tokens.tokenizer, tokens.ids))
    return completion


def compare(name: str, shared: Shared, families: Sequence[Family]) -> None:
    """Print both sides' bytes a group, over whole batches of six where there are that many."""
    known = {digest(family): family for family in families}
    num = len(shared) if len(shared) < GROUPS else len(shared) // GROUPS * GROUPS
    batches = [shared[first : first + GROUPS] for first in range(0, num, GROUPS)]
    tokens = [len(c.tokens.ids) for _, body in shared[:num] for c in body.completions if c.tokens]
    peer = sum(theirs(batch, known) for batch in batches) / num
    print(
        f"{name}: {num} groups, {sum(tokens) / max(1, len(tokens)):.0f} tokens an answer; GenRL {peer:.0f} bytes each"
    )
    for keep in ("text", "ids", "ids and log-probabilities"):
        replies, news = (sum(sizes) / num for sizes in zip(*(ours(batch, keep) for batch in batches), strict=True))
        print(f"  waggle, {keep}: {replies:.0f} bytes each, ratio {replies / peer:.3f} (announcement {news:.0f} more)")


def answered(policy: Policy, tasks: Sequence[Task]) -> Shared:
    """Groups of answers as a node would send them."""
    sampling = Sampling(max_tokens=200, seed=3)
    ref = PolicyRef(policy.name, bytes(range(32)), 12)
    rows = generate(policy, tasks, GROUP, sampling)
    return [(t, Body(t.ref, ref, sampling, tuple(r), bytes(32), 12)) for t, r in zip(tasks, rows, strict=True)]


def has_signal(task: Task, body: Body, families: dict[bytes, Family]) -> bool:
    """Whether the group would be published."""
    verdicts = [grade_text(task, c.text, families[task.ref.config]) for c in body.completions]
    return len({verdict.reward for verdict in verdicts}) > 1


def teach(policy: Policy, of: Family, tasks: Sequence[Task], steps: int) -> None:
    """Supervised training on right workings, as many tasks a step as there are for each."""
    optimiser = torch.optim.AdamW([tensor for _, tensor in policy.parameters()], lr=5e-5)
    for step in range(steps):
        prompted = []
        for task in tasks[step::steps]:
            truth = WORKINGS[STYLE](gym.item(of, task.ref.seed, task.ref.index))
            prompted.append(Prompted(policy.encode_prompt(task.prompt), [policy.encode_text(truth)]))
        for row in pack(prompted, 1024):
            (-row_logprobs(policy.model, row)[0].mean()).backward()
        optimiser.step()
        optimiser.zero_grad()


def offered(path: Path) -> Iterator[tuple[str, Shared, Sequence[Family]]]:
    """What the nodes of a run had on offer at their newest checkpoints, short and worked answers apart."""
    folders = [RunFolder(folder) for folder in node_folders(path)]
    charter = folders[0].charter()
    taskset = Taskset(charter, path / "tasks")
    newest = [checkpoint for folder in folders if (checkpoint := folder.newest_checkpoint())]
    snapshots = [read_noun(Snapshot, checkpoint / "state.bin") for checkpoint in newest]
    bodies = [e.body for snapshot in snapshots for sealed in snapshot.window for e in sealed.experiences]
    for name, worked in (("short answers", False), ("worked answers", True)):
        chosen = [body for body in bodies if bool(taskset.families[body.task.config].working) == worked]
        if chosen:
            yield name, [(taskset.regenerate(body.task), body) for body in chosen], charter.families


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--run", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(2)
    if options.run:
        for case in offered(options.run):
            compare(*case)
        return
    policy = load("smollm2-135m")
    short = named_set("short")
    known = {digest(family): family for family in short}
    groups = answered(policy, training_tasks(short, 60))
    compare("short answers", [one for one in groups if has_signal(*one, known)][:GROUPS], short)
    terms = {"min_terms": 18, "max_terms": 20, "min_digits": 1, "max_digits": 2}
    worked = family("chain_sum", terms, working=STYLE, max_tokens=200, name="worked")
    tasks = training_tasks((worked,), GROUPS + 8 * options.steps)
    compare("worked answers, untrained model", answered(policy, tasks[:GROUPS]), (worked,))
    teach(policy, worked, tasks[GROUPS:], options.steps)
    compare("worked answers, taught model", answered(policy, tasks[:GROUPS]), (worked,))


if __name__ == "__main__":
    main()
