"""The pages of the documentation: their blocks of code, and the commands that they show."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
)

FENCE = re.compile(r"^```(\w*)\s*$")
# What exempts the block below it: <!-- not executed: needs two GPUs -->
MARK = re.compile(r"^<!-- not executed: (.*?) -->$")


@dataclass(frozen=True)
class Block:
    """A fenced block. line: of its first line of code, from 1. exempt: the reason of a mark above it, or None."""

    page: str
    line: int
    language: str
    code: str
    exempt: str | None

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """Every fenced block of a page, in order. ValueError for a fence that is not closed."""
    found, opened, above = [], None, ""
    lines = (ROOT / page).read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        fence = FENCE.match(line)
        if opened is None and fence:
            mark = MARK.match(above)
            opened = (number + 1, fence[1], mark[1] if mark else None)
        elif opened is not None and line.rstrip() == "```":
            first, language, exempt = opened
            code = "\n".join(lines[first - 1 : number - 1])
            found.append(Block(page, first, language, code, exempt))
            opened = None
        if line.strip():
            above = line.strip()
    if opened is not None:
        raise ValueError(f"{page}:{opened[0] - 1}: a fence that is not closed")
    return found


def shown_commands(page: str) -> list[str]:
    """Commands in the text, and in indented blocks without the explanation two columns to the right."""
    text = (ROOT / page).read_text()
    indented = r"^    ((?:python3?|pytest|pip) .+?)(?:$|  )"
    return re.findall(indented, text, flags=re.M) + re.findall(r"`(python3? [^`\n]+)`", text)


def simple_commands(line: str) -> list[list[str]]:
    """The arguments of every command in a line of bash, without comments and leading assignments.

    >>> simple_commands("A=1 python -m venv x && . x/bin/activate  # a comment")
    [['python', '-m', 'venv', 'x'], ['.', 'x/bin/activate']]
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set(";&|"):
            commands.append([])
        elif commands[-1] or not re.match(r"\w+=", word):
            commands[-1].append(word)
    return [command for command in commands if command]


def bash_lines(code: str) -> list[str]:
    """Lines of a bash block, continued ones joined, empty ones and comments left out."""
    lines = code.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
