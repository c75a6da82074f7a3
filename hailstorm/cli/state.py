"""`hailstorm state`: what a step knows, now or at an earlier moment. Needs no Spark and may run beside a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hailstorm.cli.moments import states_of
from hailstorm.cli.output import JsonOption, err, out, print_json
from hailstorm.cli.rows import (
    FormatOption,
    KeyOption,
    LimitOption,
    OutputOption,
    WhereOption,
    chosen_format,
    give,
    in_order,
    most_rows,
    parsed_keys,
    where_true,
)
from hailstorm.cli.target import LedgerOption, TargetArgument, find_ledger
from hailstorm.cli.without_pandas import little_memory, without_pandas
from hailstorm.errors import WordError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from hailstorm.ledger.ledger import Ledger
    from hailstorm.ledger.reader import State


def state(
    target: TargetArgument,
    step: Annotated[str, typer.Argument(metavar="STEP", help="A step with state: a fold or a top.")],
    key: KeyOption = None,
    where: WhereOption = None,
    at: Annotated[
        str,
        typer.Option(
            metavar="WHEN", help="A commit, a snapshot, a clock (JSON), a record, a time, latest or latest-5."
        ),
    ] = "latest",
    limit: LimitOption = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Of windows: those that the watermark has not ended yet.")
    ] = False,
    history: Annotated[
        bool, typer.Option("--history", help="The life of the key: every change of it, commit by commit.")
    ] = False,
    delta: Annotated[
        bool, typer.Option("--delta", help="Only say where a Delta reader finds it: the table and the version.")
    ] = False,
    format: FormatOption = None,
    output: OutputOption = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Show a step's state, in order of its key (a top: of its rank).

    \b
    Examples:
      hailstorm state app.py counts
      hailstorm state app.py counts --key rain --key snow
      hailstorm state app.py counts --where "n > 100" --limit 50
      hailstorm state app.py counts --at 42 --json
      hailstorm state app.py counts --at tweets/0@1200
      hailstorm state app.py counts --at 2026-01-31T09:30 --output then.parquet
      hailstorm state app.py counts --key rain --history
      hailstorm state app.py hourly --open
      hailstorm state app.py counts --at monday --delta
      hailstorm state .hailstorm/trending top
    """
    if delta:
        if key or where or limit is not None or open_ or history or format or output:
            raise WordError(
                97, "--delta is of a whole state", hint="Leave out the other options, but for --at and --json."
            )
        _say_where(find_ledger(target, ledger), step, at, json)
        return
    without_pandas()
    if key:
        little_memory()
    from hailstorm.ledger.ledger import Ledger
    from hailstorm.ledger.reader import no_such_step

    form = chosen_format(format, output, json)
    opened = Ledger(find_ledger(target, ledger))
    with states_of(target, opened, (at,), step, open_) as (found,):
        if found.step not in found.live.steps:
            raise no_such_step(step, found.live)
        shape = found.live.steps[found.step]
        keys = parsed_keys(shape.key, key, found.key_types()) if key else {}
        order = None if shape.order or history else shape.key
        pieces = iter([_life(opened, found, keys, step)]) if history else _pieces(found, keys, whole=order is None)
        if where is not None:
            pieces = (where_true(piece, where) for piece in pieces)
        shown, count = _first(pieces, most_rows(limit, form, output), order)
        if shown is None:
            shown = found.arrow().slice(0, 0)
    if key and not count and where is None:
        err.print(f"'{step}' has no key {', '.join(key)}")
    give(shown, count, form, output, limit)


def _say_where(address: str | Path, step: str, at: str, json: bool) -> None:
    from hailstorm.history.opened import open_ledger

    found = open_ledger(address).delta(step, at)
    if json:
        print_json({"address": found.address, "version": found.version})
    else:
        out.print(f"{found.address} version {found.version}", soft_wrap=True)


def _life(ledger: Ledger, found: State, keys: dict[str, pa.Array], step: str) -> pa.Table:
    from hailstorm.history.life import Life

    key = found.live.steps[found.step].key
    if key and not keys:
        raise WordError(94, "--history is of a key", hint=f"Type: --key {key[0]}=… --history")
    return Life(ledger, step, keys, found.live.commit).arrow()


def _pieces(found: State, keys: dict[str, pa.Array], whole: bool) -> Iterator[pa.Table]:
    if keys:
        return iter([found.of_keys(keys)])
    return iter([found.arrow()]) if whole else found.pieces()


def _first(pieces: Iterator[pa.Table], wanted: int | None, key: tuple[str, ...] | None) -> tuple[pa.Table | None, int]:
    """The first rows of all pieces by their key (None: as they come), and how many there are in all.

    Only as many are held as are wanted: a state may be larger than memory.
    """
    import pyarrow as pa

    held: pa.Table | None = None
    count = 0
    for piece in pieces:
        count += piece.num_rows
        held = piece if held is None else pa.concat_tables([held, piece], promote_options="permissive")
        if wanted is not None and held.num_rows > wanted:
            held = (held if key is None else in_order(held, key)).slice(0, wanted).combine_chunks()
    return held if held is None or key is None else in_order(held, key), count
