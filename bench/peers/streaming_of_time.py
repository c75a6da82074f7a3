"""The works that go by event time, in Structured Streaming: what a good user of it would write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from bench.work import Work

_BEGINNING = 946_684_800_000_000  # of a Rate without a start: 2000-01-01
_TOLD = "n BIGINT, total BIGINT"

# Sessions and joins know no updates; of sliding windows the final result is asked for.
MODES = {"sliding": "append", "sessions": "append", "views-and-clicks": "append"}


def result_of_time(work: Work, rows: DataFrame, way: str) -> DataFrame | None:
    """`rows` have a column `value`. None for works of another kind. `way`: pandas or rows, of a process."""
    at = f"timestamp_micros({_BEGINNING}L + value * {work.apart}L) AS at"
    timed = rows.selectExpr(f"{work.key_sql} AS k", at, "value").withWatermark("at", "0 seconds")
    match work.kind:
        case "tumbling":
            return timed.groupBy(F.window("at", "5 minutes"), "k").count()
        case "sliding":
            return timed.groupBy(F.window("at", "60 minutes", "5 minutes"), "k").count()
        case "sessions":
            return timed.groupBy(F.session_window("at", "5 minutes"), "k").count()
        case "views-and-clicks":
            views, clicks = timed.where("value % 5 <> 0"), timed.where("value % 5 = 0")
            clicks = clicks.selectExpr("k AS view", "at AS clicked_at", "value AS click")
            bounds = "k = view AND clicked_at >= at AND clicked_at <= at + INTERVAL 10 MINUTES"
            return views.join(clicks, F.expr(bounds))
        case "process":
            keyed = rows.selectExpr(f"{work.key_sql} AS k", "value").groupBy("k")
            with_state = keyed.transformWithStateInPandas if way == "pandas" else keyed.transformWithState
            processor = TotalsInPandas() if way == "pandas" else TotalsInRows()
            return with_state(processor, outputStructType=_TOLD, outputMode="Update", timeMode="None")
    return None


class TotalsInPandas(StatefulProcessor):
    """As `Totals` of topologies_of_time.py: every tenth event of a key is told."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("total", _TOLD)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        n, total = self.state.get() or (0, 0)
        told: list[tuple[int, int]] = []
        for frame in rows:
            for value in frame["value"].tolist():
                n, total = n + 1, total + value
                if n % 10 == 0:
                    told.append((n, total))
        self.state.update((n, total))
        if told:
            yield pd.DataFrame(told, columns=["n", "total"])

    def close(self) -> None: ...


class TotalsInRows(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("total", _TOLD)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self.state.get() or (0, 0)
        for row in rows:
            n, total = n + 1, total + row.value
            if n % 10 == 0:
                yield Row(n=n, total=total)
        self.state.update((n, total))

    def close(self) -> None: ...
