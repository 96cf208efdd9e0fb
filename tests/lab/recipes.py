"""A recipe of two nodes and two rounds, whose model is hardly warmed up: all of an experiment but its sense."""

from pathlib import Path

TEXT = """
name = "mini"
title = "A mini experiment"
nodes = 2
rounds = 2
every = 1
seeds = [0, 1]
reference = "both"
goal = "choosy"
alone = ["solo"]
set = ["round.group_size=4", "round.refills=0", "eval.report=6", "share.fanout=2"]

[small]
steps = 2
batch = 8
hidden = 16
layers = 1

[[family]]
env = "basic_arithmetic"
name = "worked"
working = "sum-steps"
max_tokens = 12
[family.config]
min_terms = 3
max_terms = 3
min_digits = 1
max_digits = 1
operators = ["+"]
allow_parentheses = false
allow_negation = false

[[family]]
env = "chain_sum"
max_tokens = 4
config = { min_terms = 2, max_terms = 2, min_digits = 1, max_digits = 2 }

[[arm]]
name = "solo"
set = ["round.local=2", "round.foreign=0"]

[[arm]]
name = "both"
set = ["round.local=2", "round.foreign=2"]

[[arm]]
name = "choosy"
set = ["round.local=2", "round.foreign=2", "share.sampler=weighted", "learn.subset=2", "learn.baseline=own"]

[[arm]]
name = "truth"
kind = "truth"
seeds = [0]
set = ["round.local=4", "round.foreign=0", "round.group_size=2"]

[[arm]]
name = "replay"
kind = "replay"
replayed = 2
seeds = [0]
set = ["round.local=2", "round.foreign=0"]
"""


def mini(folder: Path, *changes: tuple[str, str]) -> Path:
    """The recipe as a file, with some of its text replaced."""
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = folder / "mini.toml"
    file.write_text(text)
    return file
