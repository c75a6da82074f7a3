"""`hailstorm status`: where a topology is. Needs no Spark and may run beside a run."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from hailstorm.cli.live import profile_rows
from hailstorm.cli.output import JsonOption, err, out, print_json, print_rows
from hailstorm.cli.target import App, LedgerOption, TargetArgument, find_ledger, is_app, load_app
from hailstorm.cli.without_pandas import without_pandas
from hailstorm.engine.progress import TIMINGS
from hailstorm.engine.tolerance import Recent, total
from hailstorm.errors import HailstormError

_RECENT = 100  # commits that the profile looks at

if TYPE_CHECKING:
    from hailstorm.ledger.cursors import SinkRecord
    from hailstorm.ledger.live import Live
    from hailstorm.ledger.reader import LedgerReader


def status(target: TargetArgument, ledger: LedgerOption = None, json: JsonOption = False) -> None:
    """Show clock, lag, watermark, sinks' cursors, errors and sizes.

    Lag needs the logs, and so an app file: a ledger alone does not know where they are.

    \b
    Examples:
      hailstorm status app.py
      hailstorm status .hailstorm/trending
      hailstorm status app.py --json | jq .lag
    """
    without_pandas()
    from hailstorm.ledger.reader import open_ledger

    address = find_ledger(target, ledger)
    reader = open_ledger(address)
    app = load_app(target) if is_app(target) else None
    found = status_of(reader, address, app)
    if json:
        print_json(found)
    else:
        _show(found, reader, app)


def status_of(reader: LedgerReader, ledger: str | Path, app: App | None) -> dict[str, Any]:
    """What scripts rely on: these fields, `skipped` and `holes` where records were not read, and `kept` where there is
    state of steps that were removed."""
    from hailstorm.ledger.releasing import kept_states

    live = reader.live()
    unread = {"skipped": live.skipped, "holes": live.holes}
    return {
        "topology": app.topology.name if app else Path(ledger).resolve().name,
        "commit": live.commit,
        "clock": live.clock,
        "lag": _lag(app, live) if app else {},
        "watermark": live.watermark,
        "watermarks": {
            step: {"input": _iso(above), "output": _iso(handed_on)}
            for step, (above, handed_on) in live.watermarks.items()
        },
        "sinks": {name: _sink(reader.cursor(name), live.outboxes.get(name, 0), live.commit) for name in live.sinks},
        "errors": live.errors + reader.rejected(),
        "late": live.late,
        "recent": _recent(live.recent),
        **{name: found for name, found in unread.items() if found},
        **({"kept": [asdict(one) for one in kept]} if (kept := kept_states(live)) else {}),
    }


def _iso(micros: int | None) -> str | None:
    return None if micros is None else (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).isoformat()


def _sink(record: SinkRecord, last: int, newest: int) -> dict[str, Any]:
    """`last` is the newest commit that has rows for the sink: a sink that has got it waits for nothing.

    `error` is what keeps the sink; without `next_try` it has stopped, until a run after a fix.
    """
    got_all = record.commit >= last
    return {
        "cursor": newest if got_all else record.commit,
        "behind": 0 if got_all else newest - record.commit,
        "error": record.error,
        "next_try": record.next_try,
        "recent": _recent(record.recent),
    }


def _recent(recent: Recent) -> dict[str, int]:
    """Bad rows of the last ones: when they are more than `error_limit`, a run or a sink stops."""
    rows, bad = total(recent)
    return {"rows": rows, "errors": bad}


def _lag(app: App, live: Live) -> dict[str, dict[str, int]]:
    """Records that wait, by spout and partition. A log that cannot be reached is said, and left out."""
    from hailstorm.spouts.roster import living

    lag = {}
    for spout in app.topology.spouts:
        try:
            log = living(spout.source.resolve(app.topology.folder))
            source = log.remembering(live.rosters.get(spout.name, {}), spout.name)
            earliest, latest = source.earliest(), source.latest()
        except HailstormError as error:
            err.print(f"The log of '{spout.name}' cannot be read: {error.what}", style="yellow", markup=False)
            continue
        read = live.clock.get(spout.name, {})
        lag[spout.name] = {
            str(partition): max(0, end - max(read.get(str(partition), 0), earliest.get(partition, 0)))
            for partition, end in sorted(latest.items())
        }
    return lag


def _show_watermarks(watermarks: dict[str, dict[str, str | None]]) -> None:
    """Of each step, by which its rows are late and what is due, and what it hands on: one that holds rows back is the
    one whose output is behind its input."""
    if any(times["input"] is not None for times in watermarks.values()):
        rows = ({"step": step, **times} for step, times in watermarks.items())
        print_rows(("step", "input", "output"), rows)


def _show(found: dict[str, Any], reader: LedgerReader, app: App | None) -> None:
    from hailstorm.engine.plan.needs import Found

    live = reader.live()
    out.print(
        f"{found['topology']}  commit {found['commit']:,} at {live.at[:19].replace('T', ' ')}, {live.rows:,} rows",
        markup=False,
    )
    recent = found["recent"]
    out.print(
        f"watermark {found['watermark'] or '-'}  errors {found['errors']:,} "
        f"({recent['errors']:,} in the last {recent['rows']:,} rows)  late {found['late']:,}",
        markup=False,
    )
    positions = [
        {
            "spout": spout,
            "partition": int(partition),
            "next offset": offset,
            "lag": found["lag"].get(spout, {}).get(partition, "?"),
            "skipped": live.skipped.get(spout, {}).get(partition, 0),
        }
        for spout, partitions in found["clock"].items()
        for partition, offset in partitions.items()
    ]
    print_rows(("spout", "partition", "next offset", "lag", "skipped"), positions)
    _show_watermarks(found["watermarks"])
    if found["sinks"]:
        limit = app.topology.settings.outbox_limit if app else None
        rows = (
            {
                "sink": name,
                **row,
                "limit": limit or "?",
                "rejected": "{errors:,} in the last {rows:,}".format(**row["recent"]),
            }
            for name, row in found["sinks"].items()
        )
        print_rows(("sink", "cursor", "behind", "limit", "rejected"), rows)
        for name, row in found["sinks"].items():
            if row["error"] is not None:
                then = f"next try at {row['next_try']}" if row["next_try"] else "it has stopped; fix that and run again"
                err.print(f"Sink '{name}': {row['error']}\n  {then}", style="yellow", markup=False)
            if limit is not None and row["behind"] > limit:
                err.print(f"Input is paused until sink '{name}' is less behind", style="yellow", markup=False)
    sizes = [
        {
            "step": name,
            "kind": shape.kind,
            "runs": len(live.runs.get(name, ())),
            "rows": sum(run.rows for run in live.runs.get(name, ())),
            "size": decimal(sum(run.bytes for run in live.runs.get(name, ()))),
        }
        for name, shape in live.steps.items()
    ]
    print_rows(("step", "kind", "runs", "rows", "size"), sizes)
    for kept in found.get("kept", ()):
        err.print(
            f"'{kept['step']}' was removed, and its state is kept: {decimal(kept['bytes'])}. "
            f"To let it go: hailstorm release TARGET --step {kept['step']}",
            style="yellow",
            markup=False,
        )
    for spout, partitions in live.holes.items():
        for partition, ranges in partitions.items():
            lost = ", ".join(f"{hole.start} to {hole.end - 1}" for hole in ranges)
            err.print(f"{spout}/{partition} has lost the offsets {lost}", style="yellow", markup=False)
    for spout, skipped in live.skipped.items():
        total = sum(skipped.values())
        err.print(f"{spout} was overloaded and has skipped {total:,} records", style="yellow", markup=False)
    timings: dict[str, list[float]] = {}
    for commit in reader.commits(after=max(0, live.commit - _RECENT)):
        if commit.reason == "tick":
            for part, spent in {**commit.timings, "tick": commit.ms}.items():
                timings.setdefault(part, []).append(spent)
    if (left := Found.left_in(reader.cache_folder)) is not None:
        out.print(left.text(), markup=False)
    if timings:
        print_rows(("part", "median ms", "p99 ms", "share"), profile_rows(timings, TIMINGS))
