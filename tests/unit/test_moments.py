"""Moments: whatever a person says, the right commit is found, or an error that helps."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pytest

from hailstorm.clock.clock import Clock
from hailstorm.errors import HailstormError, LedgerError
from hailstorm.history.moments import Back, Named, When, kept_moment, moment_of, parse
from hailstorm.history.one_record import Record
from hailstorm.ledger import vacuum
from hailstorm.ledger.ledger import next_commit
from hailstorm.ledger.pins import Snapshot
from hailstorm.topology.retention import read_retention
from tests.unit.simulated import Simulation

SHORT = read_retention("10 seconds, 1 minute: 5 seconds, rest: 1 minute")


@pytest.fixture
def thinned(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    """A tick per second for five minutes, of which some are kept."""
    for name, value in {"KEEP_LOOSE": 5, "PACK": 10, "MERGE": 3}.items():
        monkeypatch.setattr(vacuum, name, value)
    place = Simulation(monkeypatch, SHORT)
    for _ in range(300):
        place.tick(1.0)
    place.clean(whole=True)
    return place


def kept(place: Simulation) -> list[int]:
    return [commit.commit for commit in place.ledger.commits()]


def gone(place: Simulation) -> int:
    return next(number for number in range(100, 200) if number not in kept(place))


def time_of(place: Simulation, number: int) -> datetime:
    return datetime.fromisoformat(place.lives[number].at)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("42", 42),
        ("latest", Back(0)),
        (None, Back(0)),
        ("latest-5", Back(5)),
        ("latest - 5", Back(5)),
        ("before-the-deploy", Named("before-the-deploy")),
        ("latest-good", Named("latest-good")),
        ('{"tweets": {"0": 12}}', Clock({"tweets": {0: 12}})),
        ("tweets/0@1200", Record("tweets", 0, 1200)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T10:30", datetime(2026, 1, 31, 10, 30, tzinfo=UTC)),
        ("2026-01-31 10:30:00.5", datetime(2026, 1, 31, 10, 30, 0, 500_000, tzinfo=UTC)),
        ("2026-01-31T10:30:00+01:00", datetime(2026, 1, 31, 9, 30, tzinfo=UTC)),
        ("2026-01-31T10:30:00Z", datetime(2026, 1, 31, 10, 30, tzinfo=UTC)),
    ],
)
def test_what_a_person_types(text: str | None, meant: object) -> None:
    assert parse(text) == meant


@pytest.mark.parametrize("text", ["", " ", "-3", "2026-13-01", "12 o'clock", "{", '{"t": 3}', '{"t": {"0": -1}}'])
def test_what_is_no_moment_is_said_to_be_none(text: str) -> None:
    with pytest.raises(HailstormError) as error:
        parse(text)
    assert error.value.code in {"HS-CLI-091", "HS-CLI-092"}


@pytest.mark.parametrize("value", [3.5, True, date(2026, 1, 31), {"lines": {"0": 4}}], ids=str)
def test_a_value_of_another_type_is_no_moment_either(value: Any) -> None:
    with pytest.raises(HailstormError, match="HS-CLI-091"):
        parse(value)


def test_every_kept_commit_is_found_by_number_clock_and_time(thinned: Simulation) -> None:
    ledger = thinned.ledger
    for number in kept(thinned)[1:]:
        live = thinned.lives[number]
        whens: tuple[When, ...] = (number, str(number), live.position(), time_of(thinned, number))
        assert all(moment_of(ledger, when).base == live for when in whens)
        assert all(moment_of(ledger, when).is_kept for when in whens)
    newest = ledger.newest()
    assert moment_of(ledger, None).base == moment_of(ledger, "latest").base == newest
    assert moment_of(ledger, "latest-3").base == thinned.lives[newest.commit - 3]


def test_between_commits_the_base_is_the_nearest_earlier_one_and_the_cuts_are_known(thinned: Simulation) -> None:
    number = gone(thinned)
    before = max(one for one in kept(thinned) if one < number)
    wanted = thinned.lives[number].position()
    for when in (number, wanted, time_of(thinned, number), time_of(thinned, number) + timedelta(seconds=0.5)):
        moment = moment_of(thinned.ledger, when)
        assert (moment.base, moment.clock) == (thinned.lives[before], wanted)
        assert [cut.commit for cut in moment.cuts] == list(range(before + 1, number + 1))
        assert all(cut.clock == thinned.lives[cut.commit].position() for cut in moment.cuts)
    # Inside a tick: the ticks before it are cut as they were, and then comes a part of the next one.
    spout, partition, offset = next(iter(wanted))
    inside = Clock({spout: {partition: offset + 1}})
    moment = moment_of(thinned.ledger, inside)
    assert (moment.base.commit, moment.clock, moment.cuts[-1].commit) == (before, inside, number)
    with pytest.raises(LedgerError, match="between two commits") as error:
        kept_moment(thinned.ledger, inside)
    assert f"The nearest that are there: {before} and " in error.value.hint


def test_a_record_is_the_moment_just_after_it_was_read(thinned: Simulation) -> None:
    number = gone(thinned)
    before = max(one for one in kept(thinned) if one < number)
    (_, _, end), ledger = next(iter(thinned.lives[number].position())), thinned.ledger
    moment = moment_of(ledger, f"t/0@{end - 3}")
    assert (moment.base.commit, moment.clock) == (before, Clock({"t": {0: end - 2}}))
    assert [cut.commit for cut in moment.cuts] == list(range(before + 1, number))
    # The last record of a kept commit is that commit; the first one after it is in a tick that begins there.
    last = max(kept(thinned))
    (_, _, end), *_ = thinned.lives[last - 1].position()
    assert moment_of(ledger, f"t/0@{end - 1}").base == thinned.lives[last - 1]
    inside = moment_of(ledger, f"t/0@{end}")
    assert (inside.base, inside.clock, inside.cuts) == (thinned.lives[last - 1], Clock({"t": {0: end + 1}}), ())
    first = moment_of(ledger, "t/0@0")
    assert (first.base.commit, first.clock, list(first.base.steps)) == (0, Clock({"t": {0: 1}}), ["counts"])


def test_of_several_partitions_a_record_needs_its_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"KEEP_LOOSE": 5, "PACK": 10, "MERGE": 3}.items():
        monkeypatch.setattr(vacuum, name, value)
    place = Simulation(monkeypatch, SHORT)
    for number in range(1, 300):
        place.tick(1.0, end={"t": {"0": number, "1": 2 * number}})
    place.clean(whole=True)
    assert moment_of(place.ledger, "t/1@201").clock == Clock({"t": {0: 100, 1: 202}})
    for name in place.store.list("commits"):
        if name.endswith(".ticks"):
            place.store.delete(f"commits/{name}")
    with pytest.raises(LedgerError, match="HS-LED-032") as error:
        moment_of(place.ledger, "t/1@201")
    assert "A clock can be asked for" in error.value.hint


def test_when_the_ticks_are_not_known_a_time_gets_the_commit_before_it_and_a_remark(thinned: Simulation) -> None:
    number = gone(thinned)
    at = time_of(thinned, number)
    for _ in range(100):
        thinned.tick(3_600.0)
    thinned.clean(whole=True)
    before = max(one for one in kept(thinned) if one <= number)
    moment = moment_of(thinned.ledger, at)
    assert moment.is_kept
    assert moment.base.commit == before
    assert (f"this is commit {before}" in moment.remark) is (before != number)
    if number not in kept(thinned):
        with pytest.raises(LedgerError, match="is not kept any more"):
            moment_of(thinned.ledger, number)


def test_a_snapshot_is_a_moment_and_a_wrong_name_gets_a_suggestion(thinned: Simulation) -> None:
    number = kept(thinned)[3]
    thinned.store.put("snapshots/before-the-deploy.json", msgspec.json.encode(Snapshot(number)))
    assert moment_of(thinned.ledger, "before-the-deploy").base == thinned.lives[number]
    with pytest.raises(LedgerError, match="no snapshot 'before-deploy'") as error:
        moment_of(thinned.ledger, "before-deploy")
    assert "Did you mean 'before-the-deploy'?" in error.value.hint
    with pytest.raises(LedgerError, match="no snapshot"):
        moment_of(thinned.ledger, "../commits/1")


@pytest.mark.parametrize(
    ("when", "code", "says"),
    [
        ('{"u": {"0": 5}}', "HS-CLI-093", "spout 'u'"),
        ('{"t": {"7": 5}}', "HS-CLI-093", "partition 7"),
        ('{"t": {"0": 99999999}}', "HS-LED-042", "has not been reached"),
        ("u/0@5", "HS-CLI-093", "spout 'u'"),
        ("t/7@5", "HS-CLI-093", "partition 7"),
        ("t/0@99999999", "HS-LED-042", "has not been read"),
        ("2999-01-01", "HS-LED-043", "in the future"),
        ("1999-01-01", "HS-LED-032", "before the first commit that is kept"),
        ("100000", "HS-LED-007", "no commit 100000"),
        ("latest-100000", "HS-LED-007", "no latest-100000"),
    ],
)
def test_a_moment_that_is_not_there_is_an_error(thinned: Simulation, when: str, code: str, says: str) -> None:
    with pytest.raises(HailstormError) as error:
        moment_of(thinned.ledger, when)
    assert error.value.code == code
    assert says in error.value.what


def test_after_a_clock_went_back_the_newest_history_counts(thinned: Simulation) -> None:
    ledger = thinned.ledger
    old = ledger.newest()
    offset = old.clock["t"]["0"]
    for end in (offset - 500, offset - 300):
        now = datetime.fromisoformat(old.at) + timedelta(seconds=1)
        ledger.commit(next_commit(ledger.head, "tick", ledger.epoch, now, end={"t": {"0": end}}))
    back = Clock({"t": {0: offset - 400}})
    assert moment_of(ledger, back).base.commit == old.commit + 1
    assert moment_of(ledger, old.position()).base == old, "what was there exactly is still found"
    with pytest.raises(LedgerError, match="has not been reached"):
        moment_of(ledger, Clock({"t": {0: offset - 1}}))


def test_what_lies_around_a_retry_is_not_had_by_running_ticks(thinned: Simulation) -> None:
    head = thinned.ledger.head
    retry = next_commit(head, "retry", thinned.ledger.epoch, datetime.fromtimestamp(thinned.time, UTC))
    thinned.ledger.commit(retry)
    thinned.lives[retry.commit] = thinned.ledger.head
    for _ in range(100):
        thinned.tick(1.0)
    thinned.clean(whole=True)
    assert retry.commit not in kept(thinned)
    base = max(one for one in kept(thinned) if one < retry.commit)
    after = min(one for one in kept(thinned) if one > retry.commit)
    commit = thinned.ledger.read_commit(after)
    assert commit is not None
    assert commit.changes_otherwise == "retry"
    wanted = next(n for n in range(base + 1, after) if n != retry.commit)
    with pytest.raises(LedgerError) as error:
        moment_of(thinned.ledger, thinned.lives[wanted].position())
    assert error.value.code == "HS-LED-076"
    with pytest.raises(LedgerError, match="is not kept any more"):
        moment_of(thinned.ledger, wanted)
    moment = moment_of(thinned.ledger, time_of(thinned, wanted))
    assert (moment.is_kept, moment.base.commit) == (True, base)
    assert f"between commits {base} and {after} is not kept" in moment.remark
    # Elsewhere ticks are run again as ever.
    assert not moment_of(thinned.ledger, thinned.lives[gone(thinned)].position()).is_kept
