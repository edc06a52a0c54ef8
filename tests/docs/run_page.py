"""Run the steps of one page, in a separate process and directory: python run_page.py < steps.json

A step is {"kind": "python" or "bash", "code": ..., "page": its path, "line": where it begins}. Blocks of Python share
their names; an error shows the line of the page.
"""

import json
import subprocess
import sys


def main() -> None:
    names = {"__name__": "page"}
    for step in json.load(sys.stdin):
        if step["kind"] == "bash":
            subprocess.run(["bash", "-euc", step["code"]], check=True)
        else:
            above = "\n" * (step["line"] - 1)
            exec(compile(above + step["code"], step["page"], "exec"), names)


if __name__ == "__main__":
    main()
