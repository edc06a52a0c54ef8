"""Atomics in global and shared memory: lanes one after another, lowest first.

PTX ISA, "Parallel Synchronization and Communication Instructions: atom", "red".
"""

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.instructions.memory import QUALIFIERS, SIZED, gather, scatter
from cute_fa4.emulator.machine import polls
from cute_fa4.emulator.machine.warp import LOCAL_BASE
from cute_fa4.emulator.ptx.parser import Vec

_ATOMIC = (
    rf"{QUALIFIERS}(?:\.(global|shared(?:::cta|::cluster)?))?{QUALIFIERS}"
    rf"\.(add|min|max|and|or|xor|exch|cas|inc|dec){QUALIFIERS}(?:\.noftz)?(?:\.v([24]))?\.([busf])(32|64)"
)


def applied(operation, old, b, c):
    """The new value of one atomic operation on NumPy scalars of the right type."""
    if operation == "add":
        return old + b
    if operation in ("min", "max"):
        return (np.fmin if operation == "min" else np.fmax)(old, b)
    if operation == "exch":
        return b
    if operation == "cas":
        return c if old == b else old
    if operation == "inc":
        return type(old)(0) if old >= b else old + type(old)(1)
    if operation == "dec":
        return b if old == 0 or old > b else old - type(old)(1)
    return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[operation](old, b)


def _atomic(warp, ins, match, address, operands, target=None):
    space, operation, vector, kind, bits = match.groups()
    space = (space or "").split("::")[0]
    size = int(bits) // 8
    unsigned = SIZED[size]
    dtype = {"f": f"f{size}", "s": f"i{size}"}.get(kind, f"u{size}")
    count = int(vector or 1)
    lists = [o.items if isinstance(o, Vec) else (o,) for o in operands]
    read = warp.read64 if size == 8 else warp.read32
    addresses = warp.address(address)
    looked_at = addresses[warp.lanes]
    looks = space in ("global", "") and int(looked_at.max()) < LOCAL_BASE
    if looks and ins in warp.polls:  # it changed nothing
        wait = polls.look(warp, ins, looked_at)
        if wait is not None:
            return wait
    changed = False
    results = [np.zeros(32, unsigned) for _ in range(count)]
    with np.errstate(over="ignore", invalid="ignore"):
        for lane in warp.lanes:  # one lane after another, lowest first
            for i in range(count):
                at = addresses[lane : lane + 1] + np.uint64(i * size)
                old = np.ascontiguousarray(gather(warp, space, at, size)).view(dtype)[0]
                values = [
                    np.ascontiguousarray(read(o[i])[lane : lane + 1]).view(dtype)[0] for o in lists
                ]
                b, c = values[0], values[1] if len(values) > 1 else None
                new = np.array([applied(operation, old, b, c)], dtype)
                changed |= new.tobytes() != old.tobytes()
                scatter(warp, space, at, new.view(unsigned), size)
                results[i][lane] = np.array([old], dtype).view(unsigned)[0]
    if changed:
        warp.note_progress()
        warp.polls.pop(ins, None)
    elif looks:
        if ins not in warp.polls:
            polls.look(warp, ins, looked_at)
        polls.saw(warp, ins, results[0][warp.lanes[0]], size)
    if target is not None:
        targets = target.items if isinstance(target, Vec) else (target,)
        for register, values in zip(targets, results, strict=True):
            (warp.write64 if size == 8 else warp.write32)(register, values)
    return None


@instruction(pattern="atom" + _ATOMIC)
def atom(warp, ins, match):
    """d = [a]; [a] = op([a], b[, c]): lanes one after another."""
    return _atomic(
        warp,
        ins,
        match,
        ins.operands[1],
        ins.operands[2 : 4 if match[2] == "cas" else 3],
        ins.operands[0],
    )


@instruction(pattern="red" + _ATOMIC)
def red(warp, ins, match):
    """[a] = op([a], b): an atom without result."""
    return _atomic(warp, ins, match, ins.operands[0], ins.operands[1:2])
