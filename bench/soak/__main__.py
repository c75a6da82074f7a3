"""`python -m bench.soak`: soak one form, or draw what was written. Exit code 1 when something goes on rising."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from bench.record import RESULTS
from bench.soak.around import Ages, kafka_around
from bench.soak.picture import draw, draw_ages
from bench.soak.sample import Sample
from bench.soak.soak import FORMS, Soak, grown, growth
from hailstorm.ledger.reader import open_ledger

RESULT = "soak-{form}.csv"  # among the results: the last soak of each form
AGES = RESULTS / "soak-ages.csv"
_PATIENCE = 30.0  # seconds, until what was committed has come out


def main(
    form: Annotated[str, typer.Argument(help=f"{', '.join(FORMS)}, or draw")],
    minutes: Annotated[float, typer.Option(help="How long.")] = 60.0,
    folder: Annotated[Path, typer.Option(help="Where it works; needs tens of GB.")] = Path(".hailstorm/soak"),
    set_: Annotated[list[str] | None, typer.Option("--set", help="A setting of the topology, name=value.")] = None,
    keep: Annotated[bool, typer.Option(help="Keep the samples among the results, and draw.")] = False,
) -> None:
    if form == "draw":
        _draw()
        return
    if form not in FORMS:
        raise typer.BadParameter(f"there are: {', '.join(FORMS)}, draw")
    settings = dict(text.split("=", 1) for text in set_ or ())
    soak = Soak(form, folder / form, minutes * 60, settings)
    samples = _with_kafka(soak, keep) if form == "latency" else soak.run(_say)
    for name in ("tick_ms", "python_mb", "jvm_mb", "deleted_mb", "disk_mb", "files", "commits"):
        value = getattr(samples[-1], name)
        print(f"{name:12} {value:12,.0f}   {growth(samples, lambda one, name=name: getattr(one, name)):.2f} times")
    if keep:
        (RESULTS / RESULT.format(form=form)).write_bytes(soak.file.read_bytes())
        _draw()
    for what, times in grown(samples).items():
        print(f"{what} goes on rising: {times:.2f} times")
    raise typer.Exit(1 if grown(samples) else 0)


def _with_kafka(soak: Soak, keep: bool) -> list[Sample]:
    """Records count from the first sample on. All that the ledger has read must have come out, once."""
    with kafka_around() as ages:

        def say(sample: Sample) -> None:
            ages.begin()
            _say(sample)

        samples = soak.run(say)
        _wait_for(ages, sum(open_ledger(soak.folder / "ledger").live().clock["lines"].values()))
    print(f"oldest       {ages.oldest:12,.0f} ms")
    if keep:
        ages.save(AGES)
    return samples


def _wait_for(ages: Ages, records: int) -> None:
    until = time.monotonic() + _PATIENCE
    while ages.counted() != records:
        assert time.monotonic() < until, f"{ages.counted():,} of {records:,} records are in the counts that arrived"
        time.sleep(0.1)


def _draw() -> None:
    draw([RESULTS / RESULT.format(form=one) for one in FORMS])
    draw_ages(AGES)


def _say(sample: Sample) -> None:
    print(
        f"{sample.seconds:7.0f} s  commit {sample.commit:,}  {sample.tick_ms:.0f} ms  python {sample.python_mb:,.0f} MB"
        f"  jvm {sample.jvm_mb:,.0f} MB  deleted {sample.deleted_mb:,.0f} MB  disk {sample.disk_mb:,.0f} MB"
        f"  {sample.files:,} files  {sample.commits:,} commits",
        flush=True,
    )


if __name__ == "__main__":
    typer.run(main)
