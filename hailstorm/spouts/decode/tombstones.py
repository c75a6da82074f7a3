"""Records without a value, which remove their key from a table: the key columns come from the record's key.

That is a JSON object with the key columns, or, where the key is one column, its value: as JSON, or as plain text.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa

from hailstorm.columns import GONE
from hailstorm.spouts.decode.decoder import Decoded, Decoder
from hailstorm.spouts.decode.json_lines import JsonDecoder
from hailstorm.topology.arrow_types import Columns


class TombstoneDecoder(Decoder):
    """Another decoder's rows, and for every record without a value a row with its key, which is `_gone`."""

    def __init__(self, inner: Decoder, columns: Columns, key: tuple[str, ...], event_time: str | None) -> None:
        super().__init__((*columns, (GONE, "boolean")))
        self.inner, self.key, self.event_time = inner, key, event_time
        self.keys = JsonDecoder(tuple((name, type_) for name, type_ in columns if name in key))
        self.keys.required = key
        self.around = tuple(dict.fromkeys((*inner.around, "key")))

    def __call__(self, records: pa.RecordBatch) -> Decoded:
        if not records.column("value").null_count:
            return self._with_gone(self.inner(records), records, False)
        has_none = records.column("value").is_null().to_numpy(zero_copy_only=False)
        places = [np.flatnonzero(~has_none), np.flatnonzero(has_none)]
        parts = [records.take(pa.array(at)) for at in places]
        found = [self._with_gone(self.inner(parts[0]), parts[0], False), self._removed(parts[1])]
        origin = np.concatenate([at[one.origin] for at, one in zip(places, found, strict=True)])
        order = np.argsort(origin, kind="stable")
        rows = pa.Table.from_batches([one.rows for one in found]).take(pa.array(order)).combine_chunks()
        bad = {int(at[index]): why for at, one in zip(places, found, strict=True) for index, why in one.bad}
        batch = rows.to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], schema=self.schema)
        return Decoded(batch, origin[order], sorted(bad.items()))

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return self.inner.decode(values)

    def _with_gone(self, decoded: Decoded, records: pa.RecordBatch, gone: bool) -> Decoded:
        columns = dict(zip(decoded.rows.schema.names, decoded.rows.columns, strict=True))
        count = len(decoded.origin)
        if gone and self.event_time is not None:
            type_ = self.schema.field(self.event_time).type
            columns[self.event_time] = records.column("time").take(pa.array(decoded.origin)).cast(type_)
        columns[GONE] = pa.repeat(gone, count)
        filled = [columns[one.name] if one.name in columns else pa.nulls(count, one.type) for one in self.schema]
        return Decoded(pa.RecordBatch.from_arrays(filled, schema=self.schema), decoded.origin, decoded.bad)

    def _removed(self, records: pa.RecordBatch) -> Decoded:
        keys = [self._as_object(key) for key in records.column("key").to_pylist()]
        decoded = self.keys(pa.record_batch({"value": pa.array(keys, pa.binary())}))
        bad = [(index, f"has no value, and its key: {why}") for index, why in decoded.bad]
        return self._with_gone(Decoded(decoded.rows, decoded.origin, bad), records, True)

    def _as_object(self, key: bytes | None) -> bytes | None:
        """A key that is one value, as an object: removals are few, so Python may look at each."""
        if key is None or len(self.key) > 1 or key.lstrip().startswith(b"{"):
            return key
        if pa.types.is_string(self.keys.schema.field(0).type):
            text = key.decode(errors="replace")
            quoted = len(text) > 1 and text[0] == text[-1] == '"'
            return b"{%b: %b}" % (msgspec.json.encode(self.key[0]), key if quoted else msgspec.json.encode(text))
        return b"{%b: %b}" % (msgspec.json.encode(self.key[0]), key)
