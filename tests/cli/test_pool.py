"""`waggle pool`: a swarm's experience carried by file into another run of the same swarm, and what cannot be."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Waggle, made_run, task_file
from tests.cli.test_run import SETTINGS


@pytest.mark.slow
def test_experience_goes_by_file_from_one_run_to_another(waggle: Waggle, here: Path) -> None:
    task_file(here / "asked.jsonl")
    sets = [f"--set={setting}" for setting in (*SETTINGS, "share.publish=all")]
    made = waggle("new", "bees", "--out", "ticket", "--key", "one.key", *sets)
    assert made.code == 0, made.err
    ticket = (here / "ticket").read_text().strip()
    for name in ("one", "two"):
        done = waggle("join", ticket, "--run", name, "--key", f"{name}.key", *sets)
        assert done.code == 0, done.err
    sent = waggle("pool", "export", "one", "parcel")
    assert (sent.code, sent.out.partition(",")[0]) == (0, "parcel: 4 groups")
    got = waggle("pool", "import", "two", "parcel")
    assert (got.code, got.out) == (0, "4 groups wait for two\n")
    assert waggle("join", "--resume", "two", "--set", "run.rounds=4").code == 0
    lines = [json.loads(line) for line in (here / "two" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["admitted"], line["refused"]) for line in lines] == [(0, {}), (0, {}), (2, {}), (2, {})]
    assert waggle("pool", "export", "one", "parcel").sentence.startswith("parcel exists already")
    other = waggle("join", "--run", "alone", "--key", "three.key", *sets)
    assert other.code == 0
    refused = waggle("pool", "import", "alone", "parcel")
    assert (refused.code, "holds experience of the swarm" in refused.sentence) == (5, True)


def test_what_cannot_be_carried_is_one_sentence(waggle: Waggle, here: Path) -> None:
    made_run(here / "run")
    (here / "junk").write_bytes(b"junk")
    for arguments, said in (
        (("export", "run", "parcel"), "has not played a round yet"),
        (("export", "nowhere", "parcel"), "is not a run folder"),
        (("import", "run", "junk"), "junk is not a parcel of experience"),
        (("import", "nowhere", "junk"), "is not a run folder"),
    ):
        outcome = waggle("pool", *arguments)
        assert (outcome.code, said in outcome.sentence) == (5, True), outcome
    missing = waggle("pool", "import", "run", "nothing")
    assert missing.sentence == "cannot read nothing: No such file or directory; check the path and its owner"
    assert missing.code == 5
    assert not (here / "run" / "inbox").exists()
