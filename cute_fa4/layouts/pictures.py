"""Layouts as text: every picture in this package's docstrings, drawn by evaluating the layout.

`python -m cute_fa4.layouts.pictures` prints them all as one Markdown document.
"""

from collections.abc import Sequence

from cute_fa4.layouts.operand_tiles import KMajorTile, MNMajorTile
from cute_fa4.layouts.swizzle import (
    CHUNK_BYTES,
    LINE_BYTES,
    SWIZZLE_32B,
    SWIZZLE_64B,
    SWIZZLE_128B,
    Swizzle,
)
from cute_fa4.layouts.tmem_fragments import THREADS_PER_WARP, Fragment32x32b, PackedOperand
from cute_fa4.layouts.umma_descriptors import (
    INSTRUCTION_FIELDS,
    SMEM_FIELDS,
    InstructionDescriptor,
    SmemDescriptor,
)


def table(rows, align="") -> str:
    """Rows of cells -> text columns, two spaces apart. `align`: "r" or "l" of each column, default "l"."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    align = align.ljust(len(widths), "l")
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, align, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _range(values) -> str:
    """Consecutive ints as "first-last". Raises ValueError if they are not consecutive."""
    values = sorted(set(values))
    first, last = values[0], values[-1]
    if values != list(range(first, last + 1)):
        raise ValueError(f"{values} are not consecutive: draw them one by one")
    return f"{first}-{last}" if last > first else str(first)


def swizzle_picture(swizzle: Swizzle) -> str:
    """Eight rows of the span, in 128-byte lines; each cell has the logical row:chunk stored there."""
    banks = ["banks", *(f"{4 * i}-{4 * i + 3}" for i in range(LINE_BYTES // CHUNK_BYTES))]
    rows = [banks]
    for line in range(swizzle.period_bytes // LINE_BYTES):
        cells = [f"line {line}"]
        for place in range(0, LINE_BYTES, CHUNK_BYTES):
            logical = swizzle.inverse(line * LINE_BYTES + place)
            row, byte = divmod(logical, swizzle.span_bytes)
            cells.append(f"{row}:{byte // CHUNK_BYTES}")
        rows.append(cells)
    return table(rows, "l" + 8 * "r")


def storage_picture(tile) -> str:
    """Which rows and columns each chunk of a tile holds, and which TMA box writes it."""
    rows = [("bytes", "rows", "columns", "written by")]
    for box in range(tile.num_boxes):
        first = tile.box_offset(box)
        offsets = range(first, first + tile.chunk_bytes, tile.bits // 8)
        elements = [tile.element(offset) for offset in offsets]
        held = _range(row for row, _ in elements), _range(col for _, col in elements)
        columns, height = tile.tma_box
        last = first + tile.chunk_bytes - 1
        rows.append((f"{first}-{last}", *held, f"TMA box {box}: {columns} x {height} elements"))
    return table(rows, "r")


def steps_picture(k_tile, mn_tile) -> str:
    """Start of the descriptor and extent of the contraction for every MMA step, both majors side by side."""
    rows: list[Sequence] = [("step", "K-major: depth", "from byte", "MN-major: keys", "from byte")]
    for step in range(max(k_tile.num_steps, mn_tile.num_steps)):
        cells: list = [step]
        for tile in (k_tile, mn_tile):
            if step >= tile.num_steps:
                cells += ["", ""]
                continue
            span = range(step * tile.step_elements, (step + 1) * tile.step_elements)
            cells += [_range(span), tile.step_offset(step)]
        rows.append(cells)
    offsets = [f"LBO {tile.leading_bytes}, SBO {tile.stride_bytes}" for tile in (k_tile, mn_tile)]
    rows.append(("", offsets[0], "", offsets[1], ""))
    return table(rows, "rlrlr")


def block_picture(swizzle: Swizzle = SWIZZLE_128B, bits: int = 16) -> str:
    """The meaning of each line of a swizzle block to the MMA, by the descriptor's address formula."""
    span = swizzle.span_bytes
    descriptor = SmemDescriptor(0, 64 * swizzle.period_bytes, swizzle.period_bytes, swizzle)
    extent = range(span * 8 // bits)
    rows: list[Sequence] = [("line", "K-major (Q, K)", "", "MN-major (V)", "")]
    held: dict[tuple[bool, int], list] = {}
    for mn_major in (False, True):
        for n in extent:
            for k in extent:
                address = swizzle.inverse(descriptor.element_address(n, k, bits, mn_major))
                held.setdefault((mn_major, address // span), []).append((n, k))
    for line in range(8):
        cells: list = [line]
        for mn_major in (False, True):
            cells += [
                f"n {_range(n for n, _ in held[mn_major, line])}",
                f"k {_range(k for _, k in held[mn_major, line])}",
            ]
        rows.append(cells)
    return table(rows)


def _with_gaps(last: int):
    """0, 1, then None for the rows left out, then `last`."""
    return (0, 1, None, last)


def fragment_picture(fragment: Fragment32x32b) -> str:
    """Threads of the four warps down, registers across; a cell is lane,column."""
    registers = _with_gaps(fragment.registers - 1)
    rows = [("", *("..." if r is None else f"register {r}" for r in registers), "address operand")]
    for warp in range(4):
        for thread in _with_gaps(THREADS_PER_WARP - 1)[:: 1 if warp == 0 else 3]:
            if thread is None:
                rows.append(("...", *([""] * 4), ""))
                continue
            cells = [f"warp {warp} thread {thread}"]
            for r in registers:
                where = None if r is None else fragment.element(warp, thread, r)
                cells.append("..." if where is None else f"{where[0]},{where[1]}")
            rows.append((*cells, f"{fragment.address(warp):#010x}"))
    return table(rows)


def packed_picture(operand: PackedOperand, row: int = 0) -> str:
    """One lane of a packed operand: which k are in the low and the high part of each column."""
    shown = (0, 1, 2, None, operand.columns - 1)
    bits = operand.bits
    rows: list[Sequence] = [
        (
            f"lane {row}",
            *("..." if c is None else f"column {operand.first_column + c}" for c in shown),
        )
    ]
    for first in range(0, 32, bits):
        cells = [f"bits {first}-{first + bits - 1}"]
        for column in shown:
            if column is None:
                cells.append("...")
                continue
            _, k = operand.element(row, operand.first_column + column, first)
            cells.append(f"P[{row}, {k}]")
        rows.append(cells)
    return table(rows)


def fields_picture(fields, bits: int) -> str:
    """The fields of a descriptor, with their values in `bits`."""
    rows = [("bits", "field", f"{bits:#x}")]
    rows += [
        (f"[{field.low}:{field.low + field.width})", field.means, field.get(bits))
        for field in fields
    ]
    return table(rows)


_K_TILE = KMajorTile(128, 128)
_V_TILE = MNMajorTile(128, 128)
_QK = InstructionDescriptor(128, 128, "bf16", "bf16")

# name -> (title, picture); the docstrings hold exactly these
PICTURES = {
    "swizzle128": ("Swizzle, 128-byte span", swizzle_picture(SWIZZLE_128B)),
    "swizzle64": ("Swizzle, 64-byte span", swizzle_picture(SWIZZLE_64B)),
    "swizzle32": ("Swizzle, 32-byte span", swizzle_picture(SWIZZLE_32B)),
    "storage": ("A tile of 128 x 128 16-bit elements", storage_picture(_K_TILE)),
    "steps": (
        "MMA steps of that tile as K (K-major) and as V (MN-major)",
        steps_picture(_K_TILE, _V_TILE),
    ),
    "block": ("One swizzle block as operand B", block_picture()),
    "smem_fields": (
        "Shared-memory descriptor",
        fields_picture(SMEM_FIELDS, _K_TILE.descriptor().encode()),
    ),
    "instruction_fields": (
        "Instruction descriptor",
        fields_picture(INSTRUCTION_FIELDS, _QK.encode()),
    ),
    "fragment": (
        "tcgen05.ld.32x32b.x32: lane,column of each register",
        fragment_picture(Fragment32x32b(32)),
    ),
    "packed": ("P of 128 keys in tensor memory", packed_picture(PackedOperand(128))),
}


def document() -> str:
    """All pictures as Markdown."""
    parts = ["# Layouts", "Drawn by `python -m cute_fa4.layouts.pictures`; do not edit."]
    for title, picture in PICTURES.values():
        parts += [f"## {title}", f"```text\n{picture}\n```"]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(document(), end="")
