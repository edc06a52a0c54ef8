"""Exchange between the lanes of a warp: elect, shfl, vote, match, redux, activemask, bar.warp.

Every .sync instruction names the participating lanes. Lanes that arrive first wait at the instruction for the other
named lanes that have not exited.
PTX ISA, "Parallel Synchronization and Communication Instructions", "Data Movement: shfl.sync".
"""

import functools

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.machine.warp import FULL, LANE_INDEX, bools_of, converge, mask_of
from cute_fa4.emulator.ptx.errors import DivergenceError
from cute_fa4.emulator.ptx.parser import Imm, Pair, Sink


def members(warp, operand):
    """(bitmask of the participating lanes, None), or (mask, Wait) while some are missing.

    Raises DivergenceError when an executing lane is not named, or a named lane skips the instruction.
    """
    named = operand.value & FULL if type(operand) is Imm else warp.uniform(warp.read32(operand))
    if warp.mask & ~named:
        warp.fault(
            f"lanes 0x{warp.mask & ~named:08x} execute this but are not in its mask 0x{named:08x}",
            DivergenceError,
        )
    missing = named & warp.live & ~warp.mask
    if missing:
        if warp.resumed is not None:
            warp.fault(
                f"lanes 0x{missing:08x} are in the mask 0x{named:08x} but skip this instruction",
                DivergenceError,
            )
        return named, converge(named, f"lanes 0x{missing:08x} to arrive (.sync mask 0x{named:08x})")
    return named, None


def _two_results(op):
    return (op.first, op.second) if isinstance(op, Pair) else (op, Sink())


@instruction("elect.sync")
def elect(warp, ins):
    """d|p: p is true in the lowest of the named lanes, d is that lane in all of them."""
    d, p = _two_results(ins.operands[0])
    named, wait = members(warp, ins.operands[1])
    if wait is not None:
        return wait
    leader = warp.mask & -warp.mask
    warp.write32(d, np.uint32(leader.bit_length() - 1))
    warp.write_pred(p, leader)
    return None


@instruction(pattern=r"shfl\.sync\.(idx|up|down|bfly)\.b32")
def shfl(warp, ins, match):
    """d|p: the value of another lane; p is false if the source lane is outside the segment.

    PTX ISA, "shfl.sync": c holds the clamp in bits [0, 5) and the segment mask in bits [8, 13).
    """
    d, p = _two_results(ins.operands[0])
    _, wait = members(warp, ins.operands[4])
    if wait is not None:
        return wait
    b, c = ins.operands[2:4]
    if type(b) is Imm and type(c) is Imm:
        source, valid = _sources_by_constants(match[1], b.value, c.value)
    else:
        source, valid = _sources(match[1], warp.read32(b), warp.read32(c))
    if warp.mask != FULL:
        executing = bools_of(warp.mask)
        outside = executing & ~executing[source]
        if outside.any():
            at = int(np.argmax(outside))
            warp.fault(
                f"lane {at} reads lane {int(source[at])}, which does not execute this shfl",
                DivergenceError,
            )
    warp.write32(d, warp.read32(ins.operands[1])[source])
    warp.write_pred(p, valid)
    return None


def _sources(mode, b, c):
    """(the lane that each lane reads, bitmask of those whose source is in the segment), of 32 values of b and c."""
    lane = LANE_INDEX.astype(np.int64)
    b, c = b.astype(np.int64) & 31, c.astype(np.int64)
    clamp, segment = c & 31, c >> 8 & 31
    low, high = lane & segment, (lane & segment) | (clamp & ~segment)
    if mode == "up":
        source = lane - b
        valid = source >= high
    elif mode == "down":
        source = lane + b
        valid = source <= high
    elif mode == "bfly":
        source = lane ^ b
        valid = source <= high
    else:
        source = low | (b & ~segment)
        valid = source <= high
    return np.where(valid, source, lane), mask_of(valid)


@functools.lru_cache
def _sources_by_constants(mode, b, c):
    """The same for a b and a c that all lanes share, the common case in compiled code."""
    source, valid = _sources(mode, np.full(32, b), np.full(32, c))
    source.setflags(write=False)
    return source, valid


@instruction(pattern=r"vote\.sync\.(all|any|uni)\.pred|vote\.sync\.(ballot)\.b32")
def vote(warp, ins, match):
    """The predicate of all named lanes, combined; ballot delivers the lanes where it is true."""
    _, wait = members(warp, ins.operands[2])
    if wait is not None:
        return wait
    true = warp.read_pred(ins.operands[1]) & warp.mask
    if match[2]:
        warp.write32(ins.operands[0], np.uint32(true))
        return None
    result = {"all": true == warp.mask, "any": true != 0, "uni": true in (0, warp.mask)}[match[1]]
    warp.write_pred(ins.operands[0], FULL if result else 0)
    return None


@instruction(pattern=r"match\.(any|all)\.sync\.b(32|64)")
def match_sync(warp, ins, match):
    """any: the lanes with the same value. all: all named lanes if they agree, else 0; p says whether."""
    d, p = _two_results(ins.operands[0])
    _, wait = members(warp, ins.operands[2])
    if wait is not None:
        return wait
    values = warp.read64(ins.operands[1])
    executing = bools_of(warp.mask)
    if match[1] == "any":
        result = np.array([mask_of((values == v) & executing) for v in values], np.uint32)
        warp.write32(d, result)
        return None
    same = bool((values[executing] == values[warp.lane0]).all())
    warp.write32(d, np.uint32(warp.mask if same else 0))
    warp.write_pred(p, FULL if same else 0)
    return None


_REDUCE = {
    ("add", "u32"): lambda v: v.sum(dtype=np.uint32),
    ("add", "s32"): lambda v: v.sum(dtype=np.uint32),
    ("min", "u32"): np.min,
    ("max", "u32"): np.max,
    ("min", "s32"): lambda v: v.view(np.int32).min(),
    ("max", "s32"): lambda v: v.view(np.int32).max(),
    ("and", "b32"): np.bitwise_and.reduce,
    ("or", "b32"): np.bitwise_or.reduce,
    ("xor", "b32"): np.bitwise_xor.reduce,
}


@instruction(pattern=r"redux\.sync\.(add|min|max|and|or|xor)\.([usb]32)")
def redux(warp, ins, match):
    """One value from all named lanes."""
    _, wait = members(warp, ins.operands[2])
    if wait is not None:
        return wait
    function = _REDUCE.get((match[1], match[2]))
    if function is None:
        warp.fault(f"{ins.opcode} is not an instruction")
    values = np.ascontiguousarray(warp.read32(ins.operands[1])[bools_of(warp.mask)])
    warp.write32(ins.operands[0], np.uint32(int(function(values)) & FULL))
    return None


@instruction(pattern=r"redux\.sync\.(min|max)(\.abs)?(\.NaN)?\.f32")
def redux_f32(warp, ins, match):
    """Minimum or maximum over the named lanes; NaN operands are skipped unless .NaN is given."""
    _, wait = members(warp, ins.operands[2])
    if wait is not None:
        return wait
    values = warp.read32(ins.operands[1])[bools_of(warp.mask)].view(np.float32)
    if match[2]:
        values = np.abs(values)
    if match[3] and np.isnan(values).any():
        result = np.uint32(0x7FFFFFFF)
    else:
        kept = values[~np.isnan(values)]
        reduce = np.max if match[1] == "max" else np.min
        result = reduce(kept).view(np.uint32) if kept.size else np.uint32(0x7FFFFFFF)
    warp.write32(ins.operands[0], result)
    return None


@instruction("activemask.b32")
def activemask(warp, ins):
    """The lanes that execute this together."""
    warp.write32(ins.operands[0], np.uint32(warp.mask))


@instruction("bar.warp.sync")
def bar_warp_sync(warp, ins):
    """The named lanes wait for each other."""
    wait = members(warp, ins.operands[0])[1]
    order = warp.cta.machine.ordering
    if wait is None and order is not None:
        order.lanes_meet(warp)
    return wait
