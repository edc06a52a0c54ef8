"""Run every planted defect and print what caught it, as the table of docs/verification.md.

python -m tests.emulator.mutations            print
python -m tests.emulator.mutations --write    replace the section in docs/verification.md
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tests.emulator.mutations.everything import LEVEL, mutants, subjects
from tests.emulator.mutations.mutant import try_mutant

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "verification.md"
BEGIN, END = "<!-- mutations: begin -->", "<!-- mutations: end -->"


def section(outcomes, seconds):
    """The section as Markdown."""
    planted = [o for o in outcomes if not o.mutant.equivalent]
    caught = [o for o in planted if o.caught_by]
    meant = [o for o in caught if o.as_meant]
    by_class = Counter(o.caught_by for o in caught)
    lines = [
        BEGIN,
        "## Planted defects",
        "",
        "Written by `python -m tests.emulator.mutations --write`. Every line is a mistake planted in the PTX of the",
        f'attention kernel or of a small kernel, executed at level `{LEVEL}` under one schedule after the other until',
        "something notices. `tests/emulator/mutations` runs them all.",
        "",
        f"{len(planted)} defects, {len(caught)} caught ({len(caught) / len(planted):.0%}), {len(meant)} of them by a "
        f"check meant for them; {len(outcomes) - len(planted)} equivalent mutants, shown not to be caught. "
        f"{seconds:.0f} s on one core.",
        "",
        "| caught by | defects |",
        "|---|---:|",
        *(f"| {name} | {number} |" for name, number in by_class.most_common()),
        "",
        "### Survivors",
        "",
        "| defect | why nothing notices |",
        "|---|---|",
        *(f"| {o.mutant.name} | {o.mutant.survives or '**not explained**'} |" for o in planted if not o.caught_by),
        "",
        "### Equivalent mutants",
        "",
        "| change | why it changes nothing |",
        "|---|---|",
        *(f"| {o.mutant.name} | {o.mutant.equivalent} |" for o in outcomes if o.mutant.equivalent),
        "",
        "### All defects",
        "",
        "| kernel | defect | caught by | schedule |",
        "|---|---|---|---|",
        *(
            f"| {o.mutant.subject} | {o.mutant.name} | {o.caught_by}{'' if o.as_meant else ' (not the check meant)'} "
            f"| {o.schedule} |"
            for o in caught
        ),
        END,
    ]  # fmt: skip
    return "\n".join(lines)


def with_section(document, text):
    """The document with its section replaced, or appended."""
    if BEGIN not in document:
        return f"{document.rstrip()}\n\n{text}\n"
    return document[: document.index(BEGIN)] + text + document[document.index(END) + len(END) :]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into docs/verification.md")
    options = parser.parse_args()
    for subject in subjects().values():
        subject.expected()
    start = time.perf_counter()
    outcomes = [try_mutant(mutant, subjects()[mutant.subject]) for mutant in mutants()]
    text = section(outcomes, time.perf_counter() - start)
    if options.write:
        DOCUMENT.write_text(with_section(DOCUMENT.read_text(), text))
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
