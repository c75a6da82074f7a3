"""How the parts of a step that have changed are shown."""

from __future__ import annotations

import pytest

import hailstorm as hs
from hailstorm.history.planning import Part
from hailstorm.topology.fingerprint import declared_parts


def parts(**monoids: object) -> dict[str, str]:
    storm = hs.Topology("storm")
    rows = storm.spout("rows", hs.Log("rows"), schema="k STRING, x BIGINT, at TIMESTAMP")
    rows.fold("sums", by="k", **monoids)
    return declared_parts(storm)["sums"]


def test_monoids_are_shown_as_an_app_has_them() -> None:
    old, new = parts(n=hs.count(), x=hs.sum("x")), parts(n=hs.count(), x=hs.max("x"), last=hs.latest("x"))
    (name,) = [name for name in old if old[name] != new[name]]
    shown = str(Part(name, old[name], new[name]))
    assert shown.startswith(f"{name}: n=count(), x=sum(x) -> n=count(), x=max(x), last=latest(x")


@pytest.mark.parametrize(
    "text", ["", "fields(word)", "[1, 2]", '["a"]', "code 0123456789ab", "12", '[["a", "b"]]', "null"]
)
def test_what_is_no_monoid_is_shown_as_it_is(text: str) -> None:
    assert str(Part("by", text, "x")) == f"by: {text or 'nothing'} -> x"
