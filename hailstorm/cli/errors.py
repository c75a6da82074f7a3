"""`hailstorm errors`: the dead letters of a ledger."""

from __future__ import annotations

from typing import Annotated

import typer

from hailstorm.cli.doctor import require_java
from hailstorm.cli.live import ProgressDisplay
from hailstorm.cli.output import SHOWN, JsonOption, err, out, print_json, print_json_lines, print_rows
from hailstorm.cli.target import LedgerOption, TargetArgument, find_ledger, is_app, load_app
from hailstorm.errors import WordError


def errors(
    target: TargetArgument,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only the newest N. A table shows 20, JSON all.")
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Run them again through the corrected app, and merge what they give.")
    ] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(metavar="STEP", help="With --retry: keep the state of a step whose meaning has changed."),
    ] = None,
    discard: Annotated[
        str | None, typer.Option(metavar="STEP|all", help="Give up those of a step or sink, or all. Needs --reason.")
    ] = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why: it is kept in the history.")] = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """List dead letters: records that did not decode, rows on which user code raised, and rows that a sink rejected.

    --retry needs an app file, and a topology that is not running. Letters that fail again stay. A row that a sink
    rejected is offered to it again, unless its key has changed since. What can never go through is discarded by name.

    \b
    Examples:
      hailstorm errors app.py
      hailstorm errors app.py --retry
      hailstorm errors app.py --retry --accept words
      hailstorm errors app.py --limit 5
      hailstorm errors app.py --discard words --reason "a test that went wrong"
      hailstorm errors .hailstorm/trending --json | jq -r .reason | sort | uniq -c
    """
    if retry and discard is not None:
        raise WordError(80, "--retry and --discard are two things", hint="Retry first, then discard what stays.")
    if (discard is None) != (reason is None):
        raise WordError(
            81,
            "--discard and --reason go together",
            hint='For example: hailstorm errors app.py --discard words --reason "a test that went wrong"',
        )
    if accept and not retry:
        raise WordError(82, "--accept goes with --retry", hint="hailstorm errors app.py --retry --accept words")
    if retry:
        _retry(target, ledger, tuple(accept or ()), json)
        return
    if discard is not None and reason is not None:
        _discard(find_ledger(target, ledger), discard, reason, json)
        return
    from hailstorm.ledger.reader import open_ledger

    letters = open_ledger(find_ledger(target, ledger)).errors()
    wanted = limit if json else limit or SHOWN
    shown = letters if wanted is None else letters.slice(max(0, len(letters) - wanted))
    columns = ("spout", "partition", "offset", "step", "reason", "raw")
    # Raw bytes may be anything; what is not UTF-8 is shown as \xff, so that every letter has a line.
    rows = [{**row, "raw": _text(row["raw"])} for row in shown.select(columns).to_pylist()]
    if json:
        print_json_lines(rows)
        return
    print_rows(columns, ({**row, "raw": _shortened(row["raw"])} for row in rows))
    if len(letters) > len(shown):
        err.print(f"... and {len(letters) - len(shown):,} older ones: --limit N", style="dim")


def _retry(target: str, ledger: str | None, accept: tuple[str, ...], json: bool) -> None:
    if not is_app(target):
        raise WordError(
            16, "--retry needs the app, to run its code", hint="Name the app file: hailstorm errors app.py --retry"
        )
    app = load_app(target)
    address = find_ledger(target, ledger)  # that there is none is said before Spark starts
    require_java()
    from hailstorm.engine.run import retry_errors

    with ProgressDisplay() as display:
        done = retry_errors(app.topology, ledger=address, accept=accept, on_progress=display)
    if json:
        counts = {"retried": done.letters, "failed": done.failed, "outdated": done.outdated, "late": done.late}
        print_json({**counts, "left": list(done.left)})
        return
    through = done.letters - done.failed
    out.print(f"{through:,} of {done.letters:,} dead letters went through; {done.failed:,} stay.")
    if done.late:
        out.print(f"{done.late:,} rows of theirs came too late for their window or join; status counts them as late.")
    for sentence in done.left:
        out.print(sentence, markup=False)
    if done.outdated:
        out.print(f"{done.outdated:,} rows that a sink rejected were out of date: their keys have changed since.")


def _discard(address: str, step: str, reason: str, json: bool) -> None:
    from hailstorm.history.opened import open_ledger

    counts = open_ledger(address).discard(step, reason)
    if json:
        print_json({"discarded": counts})
        return
    for name, count in counts.items():
        out.print(f"{count:,} dead letters of '{name}' were discarded.", markup=False)


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="backslashreplace")


def _shortened(raw: str | None) -> str:
    raw = raw or ""
    return raw if len(raw) <= 80 else raw[:79] + "…"
