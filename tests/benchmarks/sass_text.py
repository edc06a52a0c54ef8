"""Small hand-written SASS listings in the form of nvdisasm -c, for the tests of the counter."""


def listing(code: str) -> str:
    """nvdisasm -c text of a function: addresses in steps of 16, labels as they are.

    A line that ends in ':' is a label; '@P0 ' before an opcode is its guard.
    """
    lines = ['\t.section\t.text.kernel,"ax",@progbits']
    address = 0
    for line in filter(None, map(str.strip, code.splitlines())):
        if line.endswith(":"):
            lines.append(line)
            continue
        guard, rest = line.split(" ", 1) if line.startswith("@") else ("", line)
        lines.append(f"        /*{address:04x}*/ {guard:>12} {rest} ;")
        address += 16
    return "\n".join(lines)


def repeat(instruction: str, times: int) -> str:
    return "\n".join([instruction] * times)
