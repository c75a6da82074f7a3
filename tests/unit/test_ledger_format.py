"""The format's promise: a ledger that this format's first version has written is opened and read, from here on.

`tests/data/ledger-format-2` is such a ledger: twelve ticks that count words, of which some are packed and thinned, with
a dead letter and a sink that is behind. It is never made again; a format that cannot read it has another number.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hailstorm.errors import LedgerError
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.reader import open_ledger
from hailstorm.ledger.vacuum import Vacuum
from hailstorm.topology.retention import DEFAULT


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return Path(shutil.copytree(Path(__file__).parents[1] / "data/ledger-format-2", tmp_path / "ledger"))


def test_a_ledger_of_this_format_opens_and_reads(kept: Path) -> None:
    reader = open_ledger(kept)
    live = reader.live()
    assert (live.commit, live.clock, live.rows, live.errors) == (13, {"tweets": {"0": 120}}, 120, 1)
    assert [commit.commit for commit in reader.commits()] == [3, 6, 9, 10, 11, 12, 13]
    counts = {row["word"]: row["n"] for row in reader.state("counts").arrow().to_pylist()}
    assert counts == {"hail": 12, "rain": 12} | {f"word{n}": n for n in range(6, 13)}
    then = {row["word"]: row["n"] for row in reader.state("counts", at=3).arrow().to_pylist()}
    assert then == {"hail": 2, "rain": 2, "word1": 1, "word2": 2}
    assert reader.errors().to_pylist()[0]["reason"] == "not JSON"
    with pytest.raises(LedgerError, match="commit 4 is not kept any more"):
        reader.live(4)


def test_a_ledger_of_this_format_goes_on(kept: Path) -> None:
    ledger = Ledger(kept)
    assert (ledger.cursors.load("board").commit, ledger.head.outboxes) == (11, {"board": 13})
    ledger.commit(next_commit(ledger.head, "tick", ledger.epoch, datetime.now(UTC), rows=1))
    work = Vacuum(ledger, DEFAULT)
    while work.work(whole=True):
        pass
    assert Ledger(kept).head == ledger.head
    assert ledger.head.rows == 121
