"""tcgen05.cp and the tcgen05.mma of block-scaled operands, one function each; for layouts see layouts/block_scales.py.

The copies and the MMAs that use them execute in one pipe, in the order in which one thread issues them, so neither
needs a wait (PTX ISA, "tcgen05: pipelined instructions"). DeepGEMM and CUTLASS rely on this to overwrite the scales of
one MMA with those of the next.
"""

from cutlass import Int32

from ...layouts.block_scales import COLUMNS, KIND, MOST_BLOCKS, copy_descriptor, scaled_instruction
from ...layouts.umma_descriptors import InstructionDescriptor
from .tensor_core import _accumulate_operand, _asm, _text_of_ss

DESCRIPTOR_UNIT = 16


def copy_scales(d_tmem, address):
    """512 bytes at a shared address -> four columns from d_tmem on, the same for every quarter of the lanes."""
    at_zero = copy_descriptor()
    text = "{\n.reg .pred leader_thread;\n.reg .b64 source;\n"
    text += "elect.sync _|leader_thread, 0xffffffff;\n"
    text += f"mov.b64 source, {{$1, {at_zero.high:#x}}};\n"
    text += "@leader_thread tcgen05.cp.cta_group::1.32x128b.warpx4 [$0], source;\n}"
    low = Int32(at_zero.low) + Int32(address) // DESCRIPTOR_UNIT
    _asm(text, [Int32(v).ir_value() for v in (d_tmem, low)], "r,r")


def mma_ss(
    d_tmem,
    a_start,
    b_start,
    steps,
    computes: InstructionDescriptor,
    a_high: int,
    b_high: int,
    accumulate,
    *,
    a_scales,
    b_scales,
):
    """D (+)= A B as in tensor_core.mma_ss, with A and B multiplied by the scales of their blocks.

    a_scales, b_scales   first column of each in tensor memory (Int32); step i takes byte i % 4 of words i / 4
    """
    for word in range(-(-len(steps) // MOST_BLOCKS)):
        of_word = steps[MOST_BLOCKS * word : MOST_BLOCKS * (word + 1)]
        columns = tuple(x + word * COLUMNS if word else x for x in (a_scales, b_scales))
        operands = d_tmem, a_start, b_start, a_high, b_high
        _of_word(operands, of_word, computes, columns, accumulate if word == 0 else True)


def _of_word(operands: tuple, steps, computes: InstructionDescriptor, columns: tuple, accumulate):
    """The steps whose scales are in one word of each row. columns: of these words of A and of B."""
    d_tmem, a_start, b_start, a_high, b_high = operands
    flag, first = _accumulate_operand(accumulate)
    instructions = [
        f"tcgen05.mma.cta_group::{computes.cta_group}.kind::{KIND} [$0], a, b, "
        f"{scaled_instruction(computes, step):#x}, [$4], [$5]"
        for step in range(len(steps))
    ]
    text = _text_of_ss(instructions, steps, a_high, b_high, first)
    values = (d_tmem, a_start, b_start, flag, *columns)
    _asm(text, [Int32(v).ir_value() for v in values], "r,r,r,r,r,r")
