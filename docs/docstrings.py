"""Docstrings for the site: prose stays prose, what is aligned stays aligned.

Docstrings of this package are written to be read in an editor: parameters are tables with two columns, pictures are
drawn with characters. Markdown would run their lines together, so blocks of them become blocks of code.

    >>> print(as_markdown("Attends.\\n\\nq     queries\\nk, v  keys\\n\\nRaises * nothing."))
    Attends.
    <BLANKLINE>
    ```text
    q     queries
    k, v  keys
    ```
    <BLANKLINE>
    Raises \\* nothing.
"""

import re

import griffe

# Two spaces between words (a table), a line that begins with one (its continuation, or a picture), a doctest.
_ALIGNED = re.compile(r"^\s|\S {2,}\S|^>>>", re.MULTILINE)


def as_markdown(docstring: str) -> str:
    """The text of a docstring, without indentation, as Markdown."""
    parts: list[tuple[bool, list[str]]] = []
    for block in re.split(r"\n\s*\n", docstring.strip("\n")):
        aligned = bool(_ALIGNED.search(block))
        if aligned and parts and parts[-1][0]:
            parts[-1][1].append(block)
        else:
            parts.append((aligned, [block]))
    return "\n\n".join(
        "```text\n" + "\n\n".join(blocks) + "\n```" if aligned else _escaped(blocks[0])
        for aligned, blocks in parts
    )


def _escaped(prose: str) -> str:
    """Prose without the characters that Markdown takes for its own; code in backticks stays as it is."""
    parts = re.split(r"(`[^`]*`)", prose)
    return "".join(part if part.startswith("`") else _plain(part) for part in parts)


def _plain(text: str) -> str:
    return re.sub(r"([*_#\[\]])", r"\\\1", text).replace("<", "&lt;")


class AlignedDocstrings(griffe.Extension):
    """Rewrites every docstring that is loaded."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
