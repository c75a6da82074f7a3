"""The table of docs/performance.md, from the newest full results: between two marks, the rest stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.contest import ROOT

PAGE = ROOT / "docs" / "performance.md"
_BEGIN, _END = "<!-- bench: begin -->", "<!-- bench: end -->"


def write_table(results: Sequence[dict[str, Any]]) -> None:
    if not results or not PAGE.exists():
        return
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    PAGE.write_text("\n".join([before + _BEGIN, *_table(results), _END]) + after)


def _table(results: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "| bench | who | median ms | quartiles | rows/s | measured | required |",
        "|---|---|---:|---:|---:|---|---|",
    ]
    for result in results:
        verdicts = [_verdict(check) for check in result["checks"]]
        for number, series in enumerate(result["series"]):
            low, high = series["quartiles_ms"]
            measured, required = verdicts[number] if number < len(verdicts) else ("", "")
            rate = f"{series['rows_per_second']:,.0f}" if series["rows_per_second"] else ""
            name = f"**{result['bench']}**: {result['title']}" if number == 0 else ""
            lines.append(
                f"| {name} | {series['label']} | {series['median_ms']:,.0f} | {low:,.0f} - {high:,.0f} "
                f"| {rate} | {measured} | {required} |"
            )
        for measured, required in verdicts[len(result["series"]) :]:
            lines.append(f"| | | | | | {measured} | {required} |")
    machine, versions = results[-1]["machine"], results[-1]["versions"]
    processors = " and ".join(dict.fromkeys(result["machine"]["cpu"] for result in results))
    commits = ", ".join(dict.fromkeys(result["commit"] for result in results))
    lines += [
        "",
        f"Measured on {machine['cores']} cores of {processors}, {machine['memory_gb']} GB; Python "
        f"{versions['python']}, pyspark {versions['pyspark']}, pyarrow {versions['pyarrow']}; commits {commits}. "
        f"The load before each bench was {_loads(results)}.",
    ]
    return lines


def _verdict(check: dict[str, Any]) -> tuple[str, str]:
    measured, side = check["measured"], "at most" if check["at_most"] else "at least"
    mark = "" if check["kept"] else " **(not kept)**"
    text = f"{measured['value']:.2f} {check['text']} ({measured['low']:.2f} - {measured['high']:.2f}){mark}"
    return text, f"{side} {check['limit']:g}"


def _loads(results: Sequence[dict[str, Any]]) -> str:
    loads = [result["machine"]["load"] for result in results]
    return f"{min(loads):.1f} to {max(loads):.1f}"
