"""What caught each planted defect: data (docs/data/planted_defects.json) and tables for docs/verification.md."""

import json
from collections import Counter
from pathlib import Path

DATA = Path(__file__).resolve().parents[3] / "docs" / "data" / "planted_defects.json"


def as_data(outcomes, level: str, seconds: float) -> dict:
    """Outcomes of all mutants: lists of [subject, name, caught by, schedule] and [name, reason]."""
    planted = [one for one in outcomes if not one.mutant.equivalent]
    return {
        "level": level,
        "seconds": round(seconds),
        "caught": [_caught(one) for one in planted if one.caught_by],
        "survivors": [
            [one.mutant.name, one.mutant.survives or "**not explained**"]
            for one in planted
            if not one.caught_by
        ],
        "equivalent": [
            [one.mutant.name, one.mutant.equivalent] for one in outcomes if one.mutant.equivalent
        ],
    }


def as_text(data: dict) -> str:
    """JSON with one line per defect."""
    return "{\n" + ",\n".join(f" {json.dumps(k)}: {_lines(v)}" for k, v in data.items()) + "\n}\n"


def names(data: dict) -> set[str]:
    """The names of all defects and equivalent mutants of a run."""
    return {row[1] for row in data["caught"]} | {
        row[0] for key in ("survivors", "equivalent") for row in data[key]
    }


def summary(data: dict) -> str:
    """Markdown: how many were planted, what caught them, which survived and which change nothing."""
    caught, survivors, equivalent = (data[key] for key in ("caught", "survivors", "equivalent"))
    meant = sum(not row[2].endswith(NOT_MEANT) for row in caught)
    planted = len(caught) + len(survivors)
    by_class = Counter(row[2].removesuffix(NOT_MEANT) for row in caught).most_common()
    return "\n".join(
        [
            f"{planted} defects, {len(caught)} caught, {meant} of them by the check meant for them; "
            f"{len(equivalent)} equivalent mutants, shown not to be caught.",
            *("", "| caught by | defects |", "|---|---:|"),
            *(f"| {name} | {number} |" for name, number in by_class),
            *("", "| survives | why nothing notices |", "|---|---|"),
            *(f"| {name} | {why} |" for name, why in survivors),
            *("", "| equivalent | why it changes nothing |", "|---|---|"),
            *(f"| {name} | {why} |" for name, why in equivalent),
        ]
    )


NOT_MEANT = " (not the check meant)"


def _caught(one) -> list:
    by = one.caught_by + ("" if one.as_meant else NOT_MEANT)
    return [one.mutant.subject, one.mutant.name, by, one.schedule]


def _lines(value) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n  " + ",\n  ".join(json.dumps(row) for row in value) + "]"
