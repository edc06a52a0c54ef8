"""Inline PTX of a kernel as the text of a separate kernel."""

import re


def with_registers(text: str, *registers: str) -> str:
    """$0, $1, ... are these registers.

    >>> with_registers("add.f32 $0, $1, $1;", "%f1", "%f2")
    'add.f32 %f1, %f2, %f2;'
    """
    return re.sub(r"\$(\d)", lambda found: registers[int(found[1])], text)
