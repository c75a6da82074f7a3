"""`hailstorm trace`: what one record became, and which records made a row."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hailstorm.cli.output import JsonOption, err, out, print_json_lines
from hailstorm.cli.run import AppArgument
from hailstorm.cli.target import LedgerOption, load_app
from hailstorm.cli.watching import ready_to_look_back, watching
from hailstorm.errors import WordError

if TYPE_CHECKING:
    from hailstorm.history.makers import MadeOf
    from hailstorm.topology.topology import Topology

_OUTPUT = re.compile(r"(?P<sink>.+)/(?P<commit>\d+)/(?P<row>\d+)")


def trace(
    app: AppArgument,
    record: Annotated[
        str | None, typer.Argument(metavar="RECORD", help="spout/partition@offset, such as tweets/0@1200.")
    ] = None,
    key: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="STEP KEY", help="The records that made this key: rain, or JSON for several columns."),
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="SINK/COMMIT/ROW", help="The records that made this row of an outbox.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="WHEN", help="With --key or --output: only records that were read after this kept commit."
        ),
    ] = None,
    until: Annotated[str, typer.Option("--to", metavar="WHEN", help="With --key: up to this kept commit.")] = "latest",
    ledger: LedgerOption = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="The tree as a Mermaid diagram.")] = False,
    json: JsonOption = False,
) -> None:
    """Show what one record became: its tuples at every step, the keys it changed, and the rows that left for sinks.

    The record is run alone, from the state before the tick that read it, and nothing is kept. The other way round,
    --key and --output find the records that made a row, through joins, windows and all other states.

    \b
    Examples:
      hailstorm trace app.py tweets/0@1200
      hailstorm trace app.py tweets/0@1200 --mermaid
      hailstorm trace app.py --key counts rain --from 1200 --to 1300
      hailstorm trace app.py --key hourly '{"word": "rain", "window_start": "2026-01-01T10:00:00+00:00"}'
      hailstorm trace app.py --output board/1200/0
      hailstorm trace app.py --output board/1200/0 --from 1100
    """
    if sum(one is not None for one in (record, key, output)) != 1:
        raise WordError(
            86,
            "trace needs a record, --key or --output, and only one of them",
            hint="For example: hailstorm trace app.py tweets/0@1200",
        )
    made = None if output is None else _output(output)
    topology = load_app(app).topology
    _refuse_no_step(topology, key, made)
    ready_to_look_back(app, ledger)
    from hailstorm.history import looking_back

    with watching() as tell:
        if record is not None:
            _show(topology, record, ledger, mermaid, json, tell)
            return
        if key is not None:
            step, text = key
            wanted = _key(topology, step, text)
            found = looking_back.makers(
                topology, step, wanted, since=since or "0", until=until, ledger=ledger, tell=tell
            )
        else:
            assert made is not None
            found = looking_back.makers_of_output(topology, *made, since=since, ledger=ledger, tell=tell)
    _list(found, json)


def _show(topology: Topology, record: str, ledger: str | None, mermaid: bool, json: bool, tell: Any) -> None:
    from hailstorm.history import looking_back, picture

    found = looking_back.trace(topology, record, ledger=ledger, tell=tell)
    if json:
        print_json_lines(event.json() for event in found.events)
    if found.note and (json or mermaid):  # a tree ends with it
        err.print(found.note, style="yellow", markup=False)
    if not json:
        out.print((picture.mermaid if mermaid else picture.tree)(found, topology), markup=False)


def _list(records: MadeOf, json: bool) -> None:
    if json:
        print_json_lines({"spout": one.spout, "partition": one.partition, "offset": one.offset} for one in records)
    else:
        for one in records:
            out.print(str(one), markup=False)
    err.print(f"{len(records):,} records, in commits {records.after + 1:,} to {records.until:,}", style="dim")


def _refuse_no_step(topology: Topology, key: tuple[str, str] | None, output: tuple[str, int, int] | None) -> None:
    from hailstorm.engine.wishes import step_called

    if key is not None:
        step_called(topology, key[0])
    if output is not None:
        step_called(topology, output[0])


def _key(topology: Topology, step: str, text: str) -> dict[str, Any]:
    """A key as a person types it: the value of the one key column, or a JSON object."""
    if text.startswith("{"):
        try:
            return msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise WordError(
                87, f"the key {text} is no JSON: {error}", hint="""For example: '{"word": "rain"}'"""
            ) from error
    from hailstorm.history.made_of import keeper_of, key_of

    columns = key_of(keeper_of(topology, topology.step(step)))
    if len(columns) < 1:
        return {}
    return {columns[0]: text}


def _output(text: str) -> tuple[str, int, int]:
    found = _OUTPUT.fullmatch(text)
    if found is None:
        raise WordError(88, f"'{text}' is no row of an outbox", hint="Write SINK/COMMIT/ROW: board/1200/0")
    return found["sink"], int(found["commit"]), int(found["row"])
