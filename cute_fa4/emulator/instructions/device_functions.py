"""Functions that the driver provides to kernels: printf and failed assertions. Other device functions are refused.

CUDA C++ Programming Guide, "Formatted Output": vprintf(format, arguments) with the arguments in a buffer, each at a
multiple of its size; numbers narrower than 32 bits as int, float as double. CuTe DSL, Triton and nvcc call it.
"""

import re

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import instruction, refuse
from cute_fa4.emulator.ptx.syntax import Sink

refuse(
    r"call(\..*)?",
    "device functions (.func) are not executed, except vprintf and __assertfail; compile them inline",
)

# Flags, width, precision, length, conversion. "%%" has no argument.
_SPECIFIER = re.compile(
    r"%([-+ #0]*)(\*|\d*)(?:\.(\*|\d*))?(hh|h|ll|l|j|z|t|L)?([diouxXeEfFgGaAcspn%])"
)
_LONG = {"ll", "l", "j", "z", "t"}
_SHORT = {"hh": 1, "h": 2}  # bytes that are printed of an int


@instruction("call.vprintf")
def vprintf(warp, ins):
    """Print the text of every lane, in the order of lanes; the result is the number of arguments."""
    result, template, arguments = ins.operands
    counts = np.zeros(32, np.uint32)
    formats, buffers = _parameter(warp, template, np.uint64), _parameter(warp, arguments, np.uint64)
    for lane in warp.lanes:
        text, counts[lane] = formatted(
            _string(warp, lane, int(formats[lane])),
            _Buffer(warp, lane, int(buffers[lane])),
            lambda address, lane=lane: _string(warp, lane, address),
        )
        print(text, end="")
    if not isinstance(result, Sink):
        warp.local_memory()[warp.lanes, result.offset : result.offset + 4] = (
            counts[warp.lanes].view(np.uint8).reshape(-1, 4)
        )


@instruction("call.__assertfail")
def assertfail(warp, ins):
    """A failed assert(): its message, file, line and function."""
    _, message, file, line, function = ins.operands[:5]
    lane = warp.lanes[0]
    texts = [
        _string(warp, lane, int(_parameter(warp, each, np.uint64)[lane]))
        for each in (message, file, function)
    ]
    number = int(_parameter(warp, line, np.uint32)[lane])
    warp.fault(
        f"assertion failed: {texts[0]} ({texts[1]}:{number}, {texts[2]}) in lanes {list(warp.lanes)}"
    )


def formatted(template, arguments, string):
    """The text of a format of C, and the number of its arguments.

    arguments  .take(nbytes, dtype) -> the next one        string  function: an address -> the text there
    """
    count = 0

    def replaced(found):
        nonlocal count
        flags, width, precision, length, kind = found.groups()
        if kind == "%":
            return "%"
        if "*" in (width, precision):  # int arguments before the value
            count += (width, precision).count("*")
            width = arguments.take("i4") if width == "*" else width
            precision = arguments.take("i4") if precision == "*" else precision
        count += 1
        shape = f"%{flags}{width}" + ("" if precision is None else f".{precision}")
        if kind == "s":
            return f"{shape}s" % string(arguments.take("u8"))
        if kind == "p":
            return f"{arguments.take('u8'):#x}"
        if kind in "eEfFgG":
            return f"{shape}{kind}" % arguments.take("f8")
        if kind in "aA":
            return float(arguments.take("f8")).hex()
        sign = "i" if kind in "dic" else "u"
        value = arguments.take(f"{sign}{8 if length in _LONG else 4}")
        if length in _SHORT:
            size = _SHORT[length]
            low = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
            value = int.from_bytes(low, "little", signed=sign == "i")
        return f"{shape}{kind}" % (value & 0xFF if kind == "c" else value)

    return _SPECIFIER.sub(replaced, template), count


class _Buffer:
    """The arguments of one lane."""

    def __init__(self, warp, lane, address):
        self.warp, self.lane, self.address = warp, lane, address

    def take(self, dtype):
        """The next one, at a multiple of its size."""
        size = int(dtype[1:])
        self.address = -(-self.address // size) * size
        data = _bytes(self.warp, self.lane, self.address, size)
        self.address += size
        return np.frombuffer(data, dtype)[0].item()


def _parameter(warp, symbol, dtype):
    """A parameter of every lane."""
    memory = warp.local_memory()
    size = np.dtype(dtype).itemsize
    return np.ascontiguousarray(memory[:, symbol.offset : symbol.offset + size]).view(dtype)[:, 0]


def _bytes(warp, lane, address, nbytes):
    """Bytes at a generic address in local or global memory."""
    space, *where = warp.cta.machine.resolve_generic(address)
    if space == "local":
        return warp.local_memory()[lane, where[0] : where[0] + nbytes].tobytes()
    if space != "global":
        warp.fault(
            f"{warp.ins.opcode} reads its arguments from {space} memory, which has no meaning here"
        )
    return warp.cta.machine.memory.read(address, nbytes, warp.issuer()).tobytes()


def _string(warp, lane, address):
    """The text at an address, up to its zero."""
    data = bytearray()
    while not data.endswith(b"\0"):
        data += _bytes(warp, lane, address + len(data), 1)
    return data[:-1].decode(errors="replace")
