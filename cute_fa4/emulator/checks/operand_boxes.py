"""Notes about operands of an MMA that TMA wrote in another form: another swizzle, or the other float of 16 bits.

The order is right and all bytes are written, so that only the numbers are wrong. It is a note: a kernel may permute the
K of both operands alike.
"""

import numpy as np

from cute_fa4.emulator.checks.reports import report
from cute_fa4.emulator.machine.element_formats import CHUNK
from cute_fa4.emulator.machine.matrix_descriptors import SWIZZLE_SPANS, swizzle
from cute_fa4.emulator.machine.mbarrier import Note

_FLOATS_OF_16_BITS = ("f16", "bf16")


def compare(order, shared, access, operand, chunks):
    """Note an operand whose descriptors disagree with the tensor map of the copy that wrote its first chunk.

    Each instruction of a warp is compared once for each place that it reads.

    operand  (name, its shared-memory descriptor, its Format)
    """
    name, bits, element = operand
    seen = "operand_layout", id(access), name, bits
    if seen in order.noted:
        return
    shadow, at, by_byte = shared.shadow.chunks(chunks.reshape(-1)[:1])[0]
    if by_byte:
        return
    writer = int(shadow.writer[at][0])
    tensor_map = order.completes[writer][2] if writer in order.completes else None
    if tensor_map is None:
        return
    order.noted.add(seen)
    found = []
    span = SWIZZLE_SPANS[bits >> 61]
    if span != tensor_map.span and _differ(chunks, span, tensor_map.span):
        found.append(("with " + _swizzle(span), _swizzle(tensor_map.span)))
    kinds = element.name, tensor_map.dtype
    if kinds[0] != kinds[1] and set(kinds) == set(_FLOATS_OF_16_BITS):
        found.append((f"as {kinds[0]}", f"a tensor map of {kinds[1]}"))
    for read, written in found:
        before = order.accesses[writer]
        key = "operand_layout", id(access.ins), id(before.ins), name, read
        if key in order.noted:
            continue
        order.noted.add(key)
        place = shared.describe(chunks.item(0) * CHUNK)
        headline = f"operand {name} at shared offset {place} is read {read}, but was written with {written}"
        note = Note.of("operand_layout", report(headline, access, before))
        note.key = key
        order.notes.append(note)


def _differ(chunks, one, other):
    """Whether two swizzles place any of these chunks differently."""
    addresses = chunks.ravel().astype(np.int64) * CHUNK
    return bool((swizzle(addresses, one) != swizzle(addresses, other)).any())


def _swizzle(span):
    return "no swizzle" if span == CHUNK else f"a swizzle of {span} bytes"
