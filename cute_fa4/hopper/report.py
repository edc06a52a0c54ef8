"""Results of `hopper check`: one record per run, the data file of all runs, and their tables in Markdown.

A result file of `hopper check --report` has a row per problem. A record has a row per variant.
docs/data/hopper.json holds the records of all runs; docs/generate.py prints its summary into docs/verification.md.
"""

from __future__ import annotations

import json
from pathlib import Path

LONG_KEYS = 8192
ONE_RUN = ("commit", "device", "driver", "ptxas")
VARIANT = (
    *("head_dim", "dtype", "variant", "problems", "launches", "claimed", "blocks"),
    *("most_by_one", "relative_error", "largest_error", "lse_error"),
)
LONG = ("head_dim", "variant", "problem", "launches", "relative_error", "lse_error")


class ReportError(ValueError):
    """Result files of different runs, or an invalid data file."""


def read(paths) -> dict:
    """Result files of one run -> one result."""
    results = [json.loads(Path(path).read_text()) for path in paths]
    first = results[0]
    for key in ONE_RUN:
        found = {result[key] for result in results}
        if len(found) > 1:
            raise ReportError(
                f"results of different {key}: {', '.join(sorted(found))}; give those of one run"
            )
    lists = ("rows", "gradients", "foreign", "failures", "driver_cases")
    joined = {key: [x for result in results for x in result.get(key, ())] for key in lists}
    return {**first, **joined, "controls": sum(r.get("controls", 0) for r in results)}


def record(result: dict) -> dict:
    """The record of one run: totals, a list of values (VARIANT) per variant, another (LONG) per long problem."""
    rows = result["rows"]
    return {
        **{key: result[key] for key in ("date", *ONE_RUN)},
        "what": "",
        "failure": "",
        **_totals(rows),
        "failures": len(result["failures"]),
        "control": bool(result["controls"]),
        "variants": [_variant(*item) for item in _grouped(rows).items()],
        "long": [_long(row) for row in rows if max(row["sizes"]["keys"]) >= LONG_KEYS],
        "gradients": [
            [row["title"], _rounded(row["of_allowed"], 2)] for row in result["gradients"]
        ],
        "foreign": [
            [row["kernel"], ", ".join(map(str, row["shape"])), row["relative_error"]]
            for row in result["foreign"]
        ],
        "driver_cases": [[case["name"], verdict(case)] for case in result["driver_cases"]],
    }


def verdict(case: dict) -> str:
    """The result of a case, marked if it differs from the expected one."""
    return f"{'' if case['ok'] else '**wrong:** '}{case['seen']}"


def add(path: Path, new: dict) -> None:
    """Append a record to the data file; a record of the same date, commit and device is replaced."""
    records = json.loads(path.read_text()) if path.exists() else []
    if not isinstance(records, list):
        raise ReportError(
            f"{path}: not a list of records; give a file that --add wrote, or a new one"
        )
    key = ("date", "commit", "device")
    others = [old for old in records if [old[k] for k in key] != [new[k] for k in key]]
    path.write_text(as_text([*others, new]))


def as_text(records: list[dict]) -> str:
    """JSON with one line per value of a record and one per row of its lists, so that a change shows as a line."""
    return "[\n" + ",\n".join(_record_text(one) for one in records) + "\n]\n"


def tables(run: dict) -> str:
    """The whole record of one run in Markdown."""
    parts = [_headline(run), _variants_table(run["variants"])]
    if run["long"]:
        parts += ["Of these, long sequences:", _long_table(run["long"])]
    if run.get("gradients"):  # records of runs before the backward pass have none
        parts += [
            "Gradients, the largest error of dq, dk and dv as a share of what is allowed:",
            _table(("problem", "error / allowed"), run["gradients"], {1: ".2f"}),
        ]
    if run["foreign"]:
        parts += [
            "flash-attn-4 4.0.0b36, rewritten in the same way, bf16:",
            _table(("kernel", "B, S, H, D", "relative error"), run["foreign"], {2: ".2e"}),
        ]
    if run["driver_cases"]:
        parts += [
            "The host library on this driver, one process per case:",
            _table(("case", "seen"), run["driver_cases"], {}),
        ]
    return "\n\n".join(parts)


def summary(records: list[dict]) -> str:
    """One row per run: its kernels and launches, the largest errors of 16-bit outputs, failures.

    Gradients: their problems, and the largest error as a share of what is allowed.
    """
    head = (
        *("run", "date, commit", "kernels", "variants", "problems", "launches"),
        *("relative error, bf16", "fp16", "LSE", "gradients", "failures"),
    )
    rows = [
        (
            *(number, f"{run['date']}, {run['commit']}", run["what"], len(run["variants"])),
            *(f"{run['problems']:,}", f"{run['launches']:,}"),
            *(_worst(run, "relative_error", dtype) for dtype in ("bf16", "fp16")),
            *(_worst(run, "lse_error", None), _worst_gradient(run)),
            run["failure"] or run["failures"] or "none",
        )
        for number, run in enumerate(records, 1)
    ]
    return _table(head, rows, {})


def _worst(run: dict, name: str, dtype: str | None) -> str:
    column = VARIANT.index(name)
    found = [row[column] for row in run["variants"] if dtype in (None, row[1])]
    return f"{max(found):.1e}" if found else "-"


def _worst_gradient(run: dict) -> str:
    rows = run.get("gradients")
    return f"{len(rows)}, {max(share for _, share in rows):.2f}" if rows else "-"


def _totals(rows) -> dict:
    return {
        "problems": len(rows),
        "launches": sum(row["launches"] for row in rows),
        "guarded": sum(row["guarded"] for row in rows),
        "claimed": sum(row["claimed"] for row in rows),
        "blocks": sum(row["blocks"] * row["launches"] for row in rows),
    }


def _variant(key, rows) -> list:
    totals = _totals(rows)
    return [
        *key,
        *(totals[name] for name in ("problems", "launches", "claimed", "blocks")),
        max(row["most_by_one"] for row in rows),
        *(_largest(rows, name, digits) for name, digits in (("relative_error", 3), ("largest_error", 3))),
        _largest(rows, "lse_error", 2),
    ]  # fmt: skip


def _long(row) -> list:
    return [
        *(row["variant"]["head_dim"], row["title"], row["problem"], row["launches"]),
        *(_rounded(row["relative_error"], 3), _rounded(row["lse_error"], 2)),
    ]


def _grouped(rows) -> dict:
    groups: dict = {}
    for row in rows:
        variant = row["variant"]
        groups.setdefault((variant["head_dim"], variant["dtype"], row["title"]), []).append(row)
    return groups


def _largest(rows, name: str, digits: int) -> float:
    return _rounded(max(row[name] for row in rows), digits)


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")


def _record_text(one: dict) -> str:
    lines = [f" {json.dumps(key)}: {_value_text(value)}" for key, value in one.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def _value_text(value) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n  " + ",\n  ".join(json.dumps(row) for row in value) + "]"


def _headline(run: dict) -> str:
    control = "noticed" if run["control"] else "not run"
    return (
        f"{run['date']}, commit {run['commit']}, {run['device']}, driver {run['driver']}, ptxas {run['ptxas']}:\n"
        f"{run['launches']:,} launches of {run['problems']} problems ({run['guarded']} of them between unmapped "
        f"pages), {run['claimed']:,} of {run['blocks']:,} blocks run by a cluster other than their own, "
        f"{run['failures']} failures. Control, a launch whose claims name wrong blocks: {control}."
    )


def _variants_table(variants) -> str:
    head = (
        *("D", "dtype", "variant", "problems", "launches", "blocks claimed / all", "most by one"),
        *("relative error", "largest error", "largest LSE error"),
    )
    rows = [(*row[:5], f"{row[5]} / {row[6]}", *row[7:]) for row in variants]
    return _table(head, rows, {7: ".2e", 8: ".2e", 9: ".1e"})


def _long_table(long) -> str:
    head = ("D", "variant", "problem", "launches", "relative error", "largest LSE error")
    return _table(head, long, {4: ".2e", 5: ".1e"})


def _table(head, rows, spellings: dict[int, str]) -> str:
    shown = [[format(x, spellings.get(i, "")) for i, x in enumerate(row)] for row in rows]
    lines = [head, ["---"] * len(head), *shown]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
