"""Tensor copies (TMA): boxes of 1d to 5d tensors, swizzles, bounds, strides; against a loop over elements."""

import numpy as np

from tests.emulator.gpu.ptx_cases import (
    FILL,
    Case,
    fill_shared,
    init_barriers,
    kernel,
    read_shared,
    wait,
    write_shared,
)
from tests.emulator.gpu.tensor_map_fields import TensorMapFields

THREADS = 64
AT = 1024  # shared offset of the box; the mbarrier is at 0
MARGIN = 64  # bytes after the box that a copy must not change


def cases():
    """All cases of this file."""
    yield from ranks()
    yield from swizzles()
    yield from fills()
    yield from strides()
    yield from unspecified_loads()
    yield from stores()
    yield from reductions()


def pattern(nbytes, dtype="u8", seed=0):
    data = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    if dtype in (
        "f16",
        "bf16",
        "f32",
        "f64",
    ):  # no NaN among the data: clear the exponent's lowest bit
        size = TensorMapFields(dtype, (1,), (), (1,)).itemsize
        data[size - 1 :: size] &= 0xBF
    return data


def load(name, fields, boxes, nbytes, extra=0, question="", refusal="", fill=0, all_open=False,
         room=0):  # fmt: skip
    """Load boxes one after the other into shared memory at AT + extra; the image and what follows it are kept.

    nbytes  size of the tensor's buffer     fill  what elements outside of the tensor become
    room    bytes that the image takes, if more than the box
    """
    data = pattern(nbytes, fields.dtype, len(name))
    region = extra + max(fields.box_bytes, room) + MARGIN
    images, masks, itemsize = [], [], fields.itemsize
    body = init_barriers(1) + f"add.s32 %r1, smem, {AT + extra};\n    "
    for number, coordinates in enumerate(boxes):
        image, mask = np.full(region, FILL, np.uint8), np.zeros(region, bool)
        for position, place in fields.elements(coordinates, extra):
            element = slice(position, position + itemsize)
            if place is None:
                image[element] = np.frombuffer(int(fill).to_bytes(itemsize, "little"), np.uint8)
                mask[element] = bool(fill)
            else:
                image[element] = data[place : place + itemsize]
        images.append(image)
        masks.append(mask | all_open)
        registers = ", ".join(f"%r{10 + i}" for i in range(fields.rank))
        body += fill_shared(AT, region, THREADS)
        body += "".join(f"mov.b32 %r{10 + i}, {c};" for i, c in enumerate(coordinates))
        body += f"@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {fields.box_bytes};"
        body += f"@%p0 cp.async.bulk.tensor.{fields.rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        body += f" [%r1], [m0, {{{registers}}}], [smem];" + wait("smem", number & 1)
        body += read_shared(AT, region, THREADS, to=region * number)
    out, mask = np.concatenate(images), np.concatenate(masks)
    return Case(
        f"tensor/{name}", kernel(body, buffers=2, maps=1, threads=THREADS),
        (np.zeros_like(out), data), (out, data), (fields,), block=(THREADS, 1, 1), shared=AT + region,
        open=(mask if mask.any() else None, None), question=question, refusal=refusal,
        section="cp.async.bulk.tensor",
    )  # fmt: skip


# --- loads -------------------------------------------------------------------------------------------------------


def ranks():
    """Every rank with sizes that no box divides; boxes inside, across each edge, and far outside."""
    far = ((1 << 31) - 1, -(1 << 31))
    # A box starts at a multiple of 16 bytes in dimension 0: an H200 takes any other start for an illegal instruction.
    for dtype, box in (("u8", 32), ("u16", 24), ("f32", 8), ("f64", 6)):
        fields = TensorMapFields(dtype, (101,), (), (box,))
        unit = 16 // fields.itemsize
        inside = 101 // unit * unit
        boxes = [(0,), (3 * unit,), (inside,), (-unit,), (-box,), (inside + unit,)]
        boxes += [(far[0] // unit * unit,), (far[1],)]
        yield load(f"1d {dtype}", fields, boxes, 112 * fields.itemsize)
    fields = TensorMapFields("bf16", (70, 13), (160,), (64, 8))
    edges = [(0, 0), (8, 5), (-8, -3), (64, 9), (72, 0), (0, 13), (0, far[0]), (far[1], 0)]
    yield load("2d", fields, edges, 13 * 160)
    fields = TensorMapFields("u32", (9, 5, 4), (48, 240), (8, 3, 2))
    boxes = [(0, 0, 0), (4, 3, 1), (-4, -1, -1), (8, 4, 3), (0, 5, 0), (0, 0, 4)]
    yield load("3d", fields, boxes, 4 * 240)
    fields = TensorMapFields("bf16", (40, 6, 3, 2), (96, 768, 2304), (32, 4, 1, 2))
    boxes = [
        (0, 0, 0, 0),
        (8, 2, 2, 0),
        (-8, -1, 1, 1),
        (24, 4, 2, -1),
        (0, 0, 3, 0),
        (0, 0, -1, 0),
    ]
    yield load("4d", fields, boxes, 2 * 2304)
    fields = TensorMapFields("u16", (10, 3, 4, 3, 2), (32, 112, 448, 1344), (8, 2, 3, 2, 2))
    boxes = [(0, 0, 0, 0, 0), (8, 1, 1, 1, 0), (-8, -1, -1, -1, -1), (8, 2, 3, 2, 1)]
    yield load("5d", fields, boxes, 2 * 1344)


def swizzles():
    """Boxes one span wide at the start of a 1024-byte pattern and inside of it: the address decides, not the box."""
    for span in (32, 64, 128):
        fields = TensorMapFields("bf16", (200, 20), (400,), (span // 2, 12), span)
        for extra in (0, 128, 640):
            boxes = [(0, 0), (16, 3), (-8, -2), (200 - span // 4, 12)]
            yield load(f"swizzle {span} at {extra}", fields, boxes, 20 * 400, extra)
    fields = TensorMapFields("u8", (150, 5, 3), (160, 800), (128, 3, 2), 128)
    yield load(
        "swizzle 128 of a 3d u8 box", fields, [(0, 0, 0), (32, 3, 2), (-16, -1, 0)], 3 * 800, 256
    )


NANS = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FFFFFFFFFFFFFFF}


def fills():
    """NaN instead of zeros outside of the tensor. PTX ISA names no bits; an H200 fills every 16 bits with 0x7ff7."""
    for dtype, nan in NANS.items():
        fields = TensorMapFields(dtype, (20, 6), (160,), (16, 4), nan=1)
        question = (
            f"which NaN fills {dtype} boxes? (emulator: {nan:#x}; H200: 0x7ff7 in every 16 bits)"
        )
        unit = 16 // fields.itemsize
        boxes = [(0, 0), (-unit, 4), (2 * unit, -2), (0, 6)]
        yield load(f"nan fill {dtype}", fields, boxes, 6 * 160, question=question, fill=nan)


def strides():
    """Element strides, dimensions without extent in memory, and two dimensions that walk the same rows."""
    fields = TensorMapFields("bf16", (64, 20), (128,), (64, 9), steps=(1, 3))
    boxes = [(0, 1), (0, -4), (0, -3), (0, 15), (0, 19), (-8, 2)]
    yield load("element stride 3", fields, boxes, 20 * 128)
    fields = TensorMapFields("f32", (8, 11, 7), (32, 352), (8, 5, 6), steps=(1, 2, 4))
    yield load(
        "element strides 2 and 4", fields, [(0, 0, 0), (0, 3, 1), (0, -3, -2), (4, 9, 5)], 7 * 352
    )
    fields = TensorMapFields("bf16", (64, 4, 6), (0, 128), (64, 4, 2))
    yield load("stride 0", fields, [(0, 0, 0), (0, 2, 3), (0, -1, 5)], 6 * 128)
    # Row c1 + c2 of 13: dimension 1 clips at 5 rows after the one that dimension 2 chooses.
    fields = TensorMapFields("bf16", (64, 5, 9), (128, 128), (64, 8, 1), 128)
    yield load("overlapping rows", fields, [(0, 0, 2), (0, 0, 8), (0, 3, 1), (0, -2, 4)], 13 * 128)
    # Loads whose map begins before its tensor: an H200 fills boxes that hold at least one row; the emulator refuses,
    # because Blackwell may touch memory at the base.
    boxes = [clipped(64, first, length) for first, length in ((0, 8), (3, 5), (10, 1))]
    yield load("base before the buffer", clipped_rows(64), boxes, 12 * 128,
               refusal="lies outside of the allocation that the box is in")  # fmt: skip
    # The same rows with the base at the buffer: the lap takes the extent of dimension 1 off again, modulo 2^64. Also
    # a box without any row, and one at the first row, whose end is less than a box away.
    for name, stride in (("128 bytes", 128), ("768 bytes", 768)):
        fields = lapped_rows(12, stride)
        lengths = ((0, 8), (0, 3), (3, 5), (10, 1), (11, 1), (4, 0), (12, 0), (0, 0))
        boxes = [lapped(first, length) for first, length in lengths]
        yield load(f"lap of rows of {name}", fields, boxes, 12 * stride)


EXTENT = 1 << 30


def lapped_rows(rows, stride):
    """Rows of 128 bytes, clipped at their end, in a map that begins at its buffer.

    Element (c0, c1, c2, c3) lies in row c1 + c2 - EXTENT where c3 is EXTENT: EXTENT (2^34 - stride) is
    2^64 - EXTENT stride.
    """
    sizes = (64, EXTENT, rows + 1, EXTENT + 1)
    return TensorMapFields("bf16", sizes, (stride, stride, (1 << 34) - stride), (64, 8, 1, 1), 128)


def lapped(first, length):
    """Coordinates of the box of ``length`` rows that begins with row ``first`` of the buffer."""
    return 0, EXTENT - length, first + length, EXTENT


def clipped_rows(rows, **options):
    """Rows of 128 bytes, clipped at their end: the map begins ``rows`` rows before the buffer.

    Element (c0, c1, c2) lies in row c1 + c2 - rows, and c1 must be below rows: a box at c1 = rows - n holds n rows.
    """
    return TensorMapFields(
        "bf16", (64, rows, 2 * rows), (128, 128), (64, 8, 1), 128, shift=-128 * rows, **options
    )


def clipped(rows, first, length):
    """Coordinates of the box of ``length`` rows that begins with row ``first`` of the buffer."""
    return 0, rows - length, first + length


def unspecified_loads():
    """Behavior that the documents leave open: the GPU's result is printed."""
    fields = TensorMapFields("bf16", (64, 20), (128,), (32, 8), 128)
    yield load("box narrower than the swizzle", fields, [(0, 0), (8, 3)], 20 * 128, all_open=True,
               room=8 * 128,  # H200: a row begins every 128 bytes, and 16-byte units swap as in full rows
               question="where do 64-byte rows lie under the 128-byte swizzle? (H200: a row every 128 bytes)",
               refusal="exactly the swizzle span")  # fmt: skip
    for dtype, flag, answer in (
        ("f32_ftz", "subnormals", "no"),
        ("tf32", "low mantissa bits", "yes, as cvt.rn.tf32"),
        ("tf32_ftz", "both", "low mantissa bits"),
    ):
        fields = TensorMapFields(dtype, (8, 4), (32,), (8, 4))
        case = load(f"data type {dtype}", fields, [(0, 0)], 128, all_open=True,
                    question=f"does a {dtype} load change {flag}? (emulator: no; H200: {answer})")  # fmt: skip
        data = case.buffers[1].view(np.uint32)
        data[:8] = [
            1,
            0x80000001,
            0x007FFFFF,
            0x3F800001,
            0x3F801000,
            0x3F803FFF,
            0x7F800001,
            0xFFFFFFFF,
        ]
        case.expected[0][:128] = case.buffers[1]
        yield case
    fields = TensorMapFields("bf16", (64, 20), (128,), (64, 4), steps=(2, 1))
    yield load("element stride of dimension 0", fields, [(0, 0)], 20 * 128, all_open=True,
               question="is the element stride of dimension 0 ignored? (driver documents: yes)")  # fmt: skip


# --- stores --------------------------------------------------------------------------------------------------------


def store(name, fields, boxes, nbytes, extra=0, reduce=None, combine=None):
    """Write shared images to boxes of a tensor whose other bytes stay; one box after the other."""
    tensor = pattern(nbytes, fields.dtype, 3)
    images = pattern(fields.box_bytes * len(boxes), fields.dtype, len(name))
    expected, itemsize = tensor.copy(), fields.itemsize
    opcode = (
        f"cp.reduce.async.bulk.tensor.{fields.rank}d.global.shared::cta.{reduce}.tile.bulk_group"
    )
    if reduce is None:
        opcode = f"cp.async.bulk.tensor.{fields.rank}d.global.shared::cta.tile.bulk_group"
    body = f"add.s32 %r1, smem, {AT + extra};\n    "
    registers = ", ".join(f"%r{10 + i}" for i in range(fields.rank))
    for number, coordinates in enumerate(boxes):
        start = fields.box_bytes * number
        for position, place in fields.elements(coordinates, extra):
            if place is not None:
                at = start + position - extra
                new, old = images[at : at + itemsize], expected[place : place + itemsize]
                expected[place : place + itemsize] = new if combine is None else combine(old, new)
        body += write_shared(AT + extra, fields.box_bytes, THREADS, "a0", start)
        body += "".join(f"mov.b32 %r{10 + i}, {c};" for i, c in enumerate(coordinates))
        body += f"@%p0 {opcode} [m0, {{{registers}}}], [%r1]; @%p0 cp.async.bulk.commit_group;"
        body += "@%p0 cp.async.bulk.wait_group 0; bar.sync 0;\n    "
    return Case(
        f"tensor/{name}", kernel(body, buffers=2, maps=1, threads=THREADS),
        (images, tensor), (images, expected), (fields,), block=(THREADS, 1, 1),
        shared=AT + extra + fields.box_bytes, section="cp.async.bulk.tensor",
    )  # fmt: skip


def stores():
    """Clipped at the far edges; padding between rows and everything outside the box stay unchanged.

    An H200 takes a negative start for an illegal instruction, and writes whole units of 16 bytes where dimension 0
    ends inside of one: no store here does either.
    """
    for span in (16, 32, 64, 128):
        fields = TensorMapFields(
            "bf16", (72, 13), (160,), (span // 2 if span > 16 else 40, 8), span
        )
        boxes = [(0, 0), (8, 9), (16, 5), (64, 2), (72, 0), (0, 13)]
        yield store(f"store 2d swizzle {span}", fields, boxes, 13 * 160, 128 if span > 16 else 0)
    fields = TensorMapFields("f32", (8, 5, 4), (48, 240), (8, 3, 2))
    yield store("store 3d", fields, [(0, 0, 0), (4, 3, 3), (0, 4, 1), (0, 0, 4)], 4 * 240)
    fields = TensorMapFields("u8", (96,), (), (48,))
    yield store("store 1d", fields, [(16,), (80,), (96,)], 112)
    fields = TensorMapFields("bf16", (64, 20), (128,), (64, 9), steps=(1, 3))
    yield store("store element stride 3", fields, [(0, 1), (0, 4), (0, 15)], 20 * 128)
    fields = TensorMapFields("bf16", (64, 5, 9), (128, 128), (64, 8, 1), 128)
    yield store("store overlapping rows", fields, [(0, 0, 2), (0, 3, 8), (0, 2, 4)], 13 * 128)
    for name, rows in (("near", 64), ("far", 1 << 24)):
        boxes = [clipped(rows, first, length) for first, length in ((0, 3), (4, 8), (3, 1), (5, 0))]
        yield store(f"store base {name} before the buffer", clipped_rows(rows), boxes, 12 * 128)


def reductions():
    """Integer operations, which no rounding touches, and an f32 sum of small integers."""
    for reduce, dtype, kind, function in (
        ("add", "u32", np.uint32, np.add), ("min", "s32", np.int32, np.minimum),
        ("max", "u64", np.uint64, np.maximum), ("and", "u32", np.uint32, np.bitwise_and),
        ("or", "u32", np.uint32, np.bitwise_or), ("xor", "u64", np.uint64, np.bitwise_xor),
    ):  # fmt: skip

        def combine(old, new, kind=kind, function=function):
            return function(old.copy().view(kind), new.copy().view(kind)).view(np.uint8)

        itemsize = np.dtype(kind).itemsize
        fields = TensorMapFields(dtype, (8, 5), (12 * itemsize,), (8, 3))
        boxes = [(0, 0), (4, 3), (0, 1)]
        yield store(
            f"reduce {reduce} {dtype}", fields, boxes, 5 * 12 * itemsize, 0, reduce, combine
        )
