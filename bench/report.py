"""The table that a run prints."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.bench import Bench, Outcome


def show(console: Console, bench: Bench, outcome: Outcome) -> None:
    table = Table(title=f"{bench.name}: {bench.title}", title_justify="left", title_style="bold")
    table.add_column("who")
    for name in ("median ms", "quartiles", "rows/s"):
        table.add_column(name, justify="right")
    table.add_column("where the time goes, ms")
    for series in outcome.series:
        low, high = series.quartiles_ms
        parts = ", ".join(f"{name} {ms:.0f}" for name, ms in series.parts.items() if ms >= 1)
        table.add_row(
            series.label,
            f"{series.median_ms:,.0f}",
            f"{low:,.0f} - {high:,.0f}",
            f"{series.rows_per_second:,.0f}" if series.rows_per_second else "",
            parts,
        )
    console.print(table)
    for check in outcome.checks:
        word, colour = ("kept", "green") if check.kept else ("NOT KEPT", "red")
        measured, side = check.measured, "at most" if check.at_most else "at least"
        console.print(
            f"  [{colour}]{word}[/{colour}]  {measured.value:.2f} {check.text} "
            f"({measured.low:.2f} - {measured.high:.2f}); required: {side} {check.limit:g}"
        )
    for name, value in outcome.notes.items():
        console.print(f"  {name}: {value:.2f}" if isinstance(value, float) else f"  {name}: {value}")
