"""Hailstorm: stream processing with exactly-once state on Apache Spark. These are the public names, nothing else.

Each is imported when it is first used, so that `import hailstorm` and the command line start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hailstorm.algebra import Monoid as Monoid
    from hailstorm.algebra import all as all
    from hailstorm.algebra import any as any
    from hailstorm.algebra import bitmap as bitmap
    from hailstorm.algebra import count as count
    from hailstorm.algebra import count_distinct as count_distinct
    from hailstorm.algebra import earliest as earliest
    from hailstorm.algebra import frequent as frequent
    from hailstorm.algebra import histogram as histogram
    from hailstorm.algebra import latest as latest
    from hailstorm.algebra import map_sum as map_sum
    from hailstorm.algebra import max as max
    from hailstorm.algebra import mean as mean
    from hailstorm.algebra import min as min
    from hailstorm.algebra import quantiles as quantiles
    from hailstorm.algebra import set as set
    from hailstorm.algebra import stddev as stddev
    from hailstorm.algebra import sum as sum
    from hailstorm.algebra import top as top
    from hailstorm.algebra import variance as variance
    from hailstorm.errors import HailstormError as HailstormError
    from hailstorm.history.importing import import_snapshot as import_snapshot
    from hailstorm.history.opened import open_ledger as open_ledger
    from hailstorm.sinks import Call as Call
    from hailstorm.sinks import Console as Console
    from hailstorm.sinks import Delta as Delta
    from hailstorm.sinks import DuckDB as DuckDB
    from hailstorm.sinks import Parquet as Parquet
    from hailstorm.sinks import Postgres as Postgres
    from hailstorm.sinks import Redis as Redis
    from hailstorm.sinks import Sqlite as Sqlite
    from hailstorm.sinks import Webhook as Webhook
    from hailstorm.sinks.kafka.sink import Kafka as Kafka
    from hailstorm.spouts import Files as Files
    from hailstorm.spouts import Log as Log
    from hailstorm.spouts import Rate as Rate
    from hailstorm.spouts.decode.avro import Avro as Avro
    from hailstorm.spouts.decode.protobuf import Protobuf as Protobuf
    from hailstorm.topology.groupings import everyone as everyone
    from hailstorm.topology.groupings import fields as fields
    from hailstorm.topology.groupings import one as one
    from hailstorm.topology.groupings import shuffle as shuffle
    from hailstorm.topology.process import Process as Process
    from hailstorm.topology.row import Row as Row
    from hailstorm.topology.stream import Stream as Stream
    from hailstorm.topology.table import Table as Table
    from hailstorm.topology.topology import Topology as Topology

_HOMES = {
    "hailstorm.topology.topology": "Topology",
    "hailstorm.topology.stream": "Stream",
    "hailstorm.topology.row": "Row",
    "hailstorm.topology.process": "Process",
    "hailstorm.topology.table": "Table",
    "hailstorm.topology.groupings": "shuffle fields everyone one",
    "hailstorm.algebra": "Monoid count sum mean variance stddev min max latest earliest count_distinct quantiles"
    " frequent top set map_sum any all histogram bitmap",
    "hailstorm.spouts": "Log Rate Files",
    "hailstorm.sinks": "Console Parquet Postgres Sqlite DuckDB Call Delta Redis Webhook",
    "hailstorm.sinks.kafka.sink": "Kafka",
    "hailstorm.spouts.decode.avro": "Avro",
    "hailstorm.spouts.decode.protobuf": "Protobuf",
    "hailstorm.history.opened": "open_ledger",
    "hailstorm.history.importing": "import_snapshot",
    "hailstorm.errors": "HailstormError",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME)


if not TYPE_CHECKING:  # for type checkers the names above are all there are

    def __getattr__(name):
        if name not in _HOME:
            from hailstorm.topology import other_words

            raise other_words.unknown_name("hailstorm", name, other_words.OF_THE_PACKAGE, __all__, "hs.")
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return list(__all__)
