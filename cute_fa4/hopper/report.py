"""What `hopper check` has seen, as JSON and as the tables of docs/verification.md.

A result file holds device, driver, date, commit and the rows; several of one commit and device become one table.
"""

from __future__ import annotations

import json
from pathlib import Path

from cute_fa4.hopper import driver

BEGIN, END = "<!-- hopper: begin -->", "<!-- hopper: end -->"
LONG_KEYS = 8192


class ReportError(ValueError):
    """Result files that do not belong together, or a page without a place for tables."""


def read(paths) -> dict:
    """Result files -> one result."""
    results = [json.loads(Path(path).read_text()) for path in paths]
    first = results[0]
    for key in ("commit", "device", "driver", "ptxas"):
        found = {result[key] for result in results}
        if len(found) > 1:
            raise ReportError(
                f"results of different {key}: {', '.join(sorted(found))}; give those of one run"
            )
    lists = ("rows", "foreign", "failures", "driver_cases")
    joined = {key: [x for result in results for x in result.get(key, ())] for key in lists}
    return {**first, **joined, "controls": sum(r.get("controls", 0) for r in results)}


def tables(result: dict) -> str:
    """Markdown: a row for each variant, each long problem, each foreign kernel."""
    rows = result["rows"]
    launches, claimed = sum(r["launches"] for r in rows), sum(r["claimed"] for r in rows)
    blocks = sum(r["blocks"] * r["launches"] for r in rows)
    lines = [
        f"{result['date']}, commit {result['commit']}, {result['device']}, driver {result['driver']}, "
        f"ptxas {result['ptxas']}:",
        f"{launches:,} launches of {len(rows)} problems ({sum(r['guarded'] for r in rows)} of them between unmapped "
        f"pages), {claimed:,} of {blocks:,} blocks run by "
        f"another cluster than their own, {len(result['failures'])} failures. "
        f"Control, a launch whose claims name wrong blocks: {'noticed' if result['controls'] else 'not run'}.",
        "",
        "| D | dtype | variant | problems | launches | blocks claimed / all | most by one | relative error "
        "| largest error | largest LSE error |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for key, group in _grouped(rows).items():
        depth, dtype, title = key
        lines.append(
            f"| {depth} | {dtype} | {title} | {len(group)} | {sum(r['launches'] for r in group)} | "
            f"{sum(r['claimed'] for r in group)} / {sum(r['blocks'] * r['launches'] for r in group)} | "
            f"{max(r['most_by_one'] for r in group)} | {_largest(group, 'relative_error')} | "
            f"{_largest(group, 'largest_error')} | {_largest(group, 'lse_error', '.1e')} |"
        )
    long = [r for r in rows if max(r["sizes"]["keys"]) >= LONG_KEYS]
    if long:
        lines += [
            *("", "Long sequences, of these:", ""),
            "| D | variant | problem | launches | relative error | largest LSE error |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {r['variant']['head_dim']} | {r['title']} | {r['problem']} | {r['launches']} | "
            f"{r['relative_error']:.2e} | {r['lse_error']:.1e} |"
            for r in long
        ]
    if result["foreign"]:
        lines += ["", "flash-attn-4 4.0.0b36, rewritten in the same way, bf16:", "",
                  "| kernel | B, S, H, D | relative error |", "|---|---|---|"]  # fmt: skip
        lines += [
            f"| {r['kernel']} | {', '.join(map(str, r['shape']))} | {r['relative_error']:.2e} |"
            for r in result["foreign"]
        ]
    if result["driver_cases"]:
        lines += ["", "The host library on this driver, a process for each case:", ""]
        lines += driver.table(result["driver_cases"]).splitlines()
    return "\n".join(lines)


def write(page: Path, text: str, *, add: bool = False) -> None:
    """Put the tables between the marks of a page; add: behind those that are there, which are of another commit."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ReportError(f"{page}: without {BEGIN} and {END}, between which the tables belong")
    there = f"{rest.partition(END)[0].strip()}\n\n" if add else ""
    page.write_text(f"{before}{BEGIN}\n{there}{text}\n{END}{after}")


def _grouped(rows) -> dict:
    groups: dict = {}
    for row in rows:
        variant = row["variant"]
        groups.setdefault((variant["head_dim"], variant["dtype"], row["title"]), []).append(row)
    return groups


def _largest(rows, name: str, spelling: str = ".2e") -> str:
    return format(max(row[name] for row in rows), spelling)
