"""`hailstorm log`: append to, read and describe embedded logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hailstorm.cli.output import JsonOption, err, print_json, print_json_lines, print_rows
from hailstorm.errors import LogError, RowError

if TYPE_CHECKING:
    from hailstorm.spouts import Log

app = typer.Typer(help="Append to, read and describe embedded logs.", no_args_is_help=True)

BATCH_LINES = 50_000  # one atomic append; a pipe that never ends is appended as it comes
POLL_SECONDS = 0.3

PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="The log: a folder, or s3://…")]


@app.command()
def append(
    path: PathArgument,
    partition: Annotated[int | None, typer.Option(metavar="N", min=0, help="Append to this partition.")] = None,
    partitions: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many partitions the log has at least; a new one has 1.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Choose the partition by this field: equal ones stay in order.")
    ] = None,
) -> None:
    """Append lines from stdin, one JSON value per line.

    \b
    Examples:
      echo '{"text": "rain and snow"}' | hailstorm log append data/tweets
      hailstorm log append data/tweets --partitions 4 --key user < tweets.jsonl
      hailstorm log append data/tweets --partition 2 < more.jsonl
      hailstorm log append s3://my-bucket/logs/tweets < tweets.jsonl
    """
    if partition is not None and key is not None:
        raise typer.BadParameter("a partition is named or chosen by a key, not both", param_hint="--partition, --key")
    log = _log(path)
    if partitions is not None:
        log.create(partitions)
    total = 0
    for batch in _batches():
        try:
            log.append(batch.values(), partition=partition, key=key)
        except LogError as error:
            raise _said_of_lines(error, list(batch), total) from error
        total += len(batch)
    err.print(f"Appended {total:,} records to {path}", markup=False)


@app.command()
def read(
    path: PathArgument,
    partition: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only this partition.")] = None,
    start: Annotated[int | None, typer.Option("--from", metavar="OFFSET", min=0, help="The first offset.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="At most N records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more until Ctrl-C.")] = False,
    json: JsonOption = False,
) -> None:
    """Print records: their values, one per line; with --json also partition, offset, time and key.

    \b
    Examples:
      hailstorm log read data/tweets --limit 5
      hailstorm log read data/tweets --partition 0 --from 100 --json
      hailstorm log read data/tweets --follow
    """
    log = _log(path)
    if partition is not None and partition not in (known := log.latest()):
        err.print(f"the log has no partition {partition}: it has {', '.join(map(str, sorted(known)))}", markup=False)
    records = _records(log, partition, start, follow)
    try:
        for number, record in enumerate(records, 1):
            if json:
                print_json_lines([record])
            else:
                sys.stdout.write(f"{record['value']}\n")
            if number == limit:
                break
    except KeyboardInterrupt:
        return  # that is how --follow ends


@app.command()
def info(path: PathArgument, json: JsonOption = False) -> None:
    """Show a log's partitions: first and next offset, size, times.

    \b
    Examples:
      hailstorm log info data/tweets
      hailstorm log info data/tweets --json
    """
    about = _log(path).info()
    if json:
        print_json(about)
    else:
        print_rows(("partition", "earliest", "latest", "records", "bytes", "last_time"), about["partitions"])


def _log(path: str) -> Log:
    from hailstorm.spouts import Log

    return Log(path)


def _batches() -> Iterator[dict[int, bytes]]:
    """Lines from stdin that are not empty, by number, in batches that are each appended at once.

    They are not looked into: a line that is not JSON is the spout's to judge, and becomes a dead letter there.
    """
    lines: dict[int, bytes] = {}
    for number, line in enumerate(sys.stdin.buffer, 1):
        if line.strip():
            lines[number] = line.rstrip(b"\r\n")
        if len(lines) == BATCH_LINES:
            yield lines
            lines = {}
    if lines:
        yield lines


def _said_of_lines(error: LogError, numbers: list[int], appended: int) -> LogError:
    """The error of a batch in terms of the lines of stdin: which one it is, and where to go on."""
    what = f"line {numbers[error.row]:,} {error.why}" if isinstance(error, RowError) else error.what
    before = "Nothing was appended."
    if appended:
        before = (
            f"The {appended:,} records before line {numbers[0]:,} were appended.\n"
            f"Correct what is wrong, and append the rest: tail -n +{numbers[0]} FILE | hailstorm log append …"
        )
    return LogError(int(error.code.rpartition("-")[2]), what, hint="\n".join(filter(None, (error.hint, before))))


def _records(log: Log, partition: int | None, start: int | None, follow: bool) -> Iterator[dict[str, Any]]:
    """Partition by partition; when following, whatever has come in each since the last look."""
    position: dict[int, int] = {}
    while True:
        earliest, latest = log.earliest(), log.latest()
        for number in sorted(latest if partition is None else {partition} & set(latest)):
            first = max(position.get(number, start or 0), earliest[number])
            for batch in log.read(number, first, latest[number]):
                for record in batch.to_pylist():
                    yield {"partition": number, **record, "key": _text(record["key"]), "value": _text(record["value"])}
            position[number] = max(first, latest[number])
        if not follow:
            return
        sys.stdout.flush()
        time.sleep(POLL_SECONDS)


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="backslashreplace")
