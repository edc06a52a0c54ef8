"""Run every planted defect and record what caught it.

python -m tests.emulator.mutations            print the summary
python -m tests.emulator.mutations --write    replace docs/data/planted_defects.json; docs/generate.py prints it
"""

import argparse
import sys
import time

from tests.emulator.mutations import table
from tests.emulator.mutations.everything import LEVEL, mutants, subjects
from tests.emulator.mutations.mutant import try_mutant


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"replace {table.DATA.name}")
    options = parser.parse_args()
    for subject in subjects().values():
        subject.expected()
    start = time.perf_counter()
    outcomes = [try_mutant(mutant, subjects()[mutant.subject]) for mutant in mutants()]
    data = table.as_data(outcomes, LEVEL, time.perf_counter() - start)
    if options.write:
        table.DATA.write_text(table.as_text(data))
    print(table.summary(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
