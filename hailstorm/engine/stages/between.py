"""Rows between waves: what the tasks of one wave leave for those of a later one.

Where all tasks see one folder, they are Arrow files there, which are mapped and never synced. On a cluster whose
machines share nothing else they are in the ledger's store. The driver chooses the address, and removes everything there
after the tick.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa

from hailstorm.ledger.copies import read_arrow, write_arrow
from hailstorm.ledger.stores import is_folder, open_store


def leave_rows(address: str, step: str, rows: pa.Table) -> str:
    """The name under which `rows_left` finds them."""
    name = f"{step}-{uuid.uuid4().hex}.arrow"
    if is_folder(address):
        write_arrow(rows, Path(address) / name)
        return name

    def fill(sink: pa.NativeFile) -> None:
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)

    open_store(address).write(name, fill)
    return name


def rows_left(address: str, name: str) -> pa.Table:
    if is_folder(address):
        return read_arrow(Path(address) / name)
    with open_store(address).open(name, whole=True) as source:
        return pa.ipc.open_file(source).read_all()


def remove_rows(address: str) -> None:
    """All that was left there. There may be nothing."""
    open_store(address).delete_folder("")
