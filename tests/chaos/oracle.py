"""What state and sinks must hold after some records, in plain Python: nothing here comes from Hailstorm."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

Row = dict[str, Any]
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = [f"word{number}" for number in range(40)]


def some_records(count: int, first: int, chance: random.Random) -> list[bytes]:
    """Events as a client would send them; one in forty does not decode, one in forty breaks the bolt."""
    records = []
    for number in range(first, first + count):
        said = " ".join(chance.choices(WORDS, [1 / rank for rank in range(1, len(WORDS) + 1)], k=chance.randint(0, 3)))
        kind = chance.randrange(80)
        if kind == 0:
            records.append(b'{"id": "cut off')
            continue
        at = BEGIN + timedelta(seconds=number + chance.randint(-5, 5))
        event = {
            "id": f"e{number}",
            "words": "poison" if kind == 1 else said,
            "amount": chance.randint(-1000, 1000),
            "at": at.isoformat(),
        }
        records.append(json.dumps(event).encode())
    return records


def is_bad(record: bytes) -> bool:
    return record.startswith(b'{"id": "cut') or b'"poison"' in record


def words(records: Iterable[bytes]) -> list[Row]:
    return [row for record in records for row in _words(record)]


@cache  # the judge asks a dozen times after every kill
def _words(record: bytes) -> tuple[Row, ...]:
    if is_bad(record):
        return ()
    event = json.loads(record)
    rest = {"amount": event["amount"], "at": datetime.fromisoformat(event["at"])}
    return tuple({"id": f"{event['id']}.{n}", "word": word, **rest} for n, word in enumerate(event["words"].split()))


def tables(records: Iterable[bytes]) -> dict[str, list[Row]]:
    """Every stateful step's rows, in no order; `top` by rank."""
    rows = words(records)
    counts: dict[str, Row] = {}
    for row in rows:
        count = counts.setdefault(row["word"], {"word": row["word"], "n": 0, "amount": 0, "last": row["at"]})
        count["n"] += 1
        count["amount"] += row["amount"]
        count["last"] = max(count["last"], row["at"])
    sizes: dict[int, Row] = {}
    for count in counts.values():
        size = sizes.setdefault(count["n"], {"n": count["n"], "words": 0, "largest": count["amount"]})
        size["words"] += 1
        size["largest"] = max(size["largest"], count["amount"])
    most = sorted(counts.values(), key=lambda count: (-count["n"], count["word"]))[:5]
    return {
        "counts": list(counts.values()),
        "total": [{"n": len(rows), "amount": sum(row["amount"] for row in rows)}] if rows else [],
        "sizes": list(sizes.values()),
        "top": [{**count, "rank": rank} for rank, count in enumerate(most, 1)],
    }
