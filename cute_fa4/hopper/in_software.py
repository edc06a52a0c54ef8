"""Instructions replaced by calls of tcgen05.cu: tensor memory, claims of blocks, loads of CTA pairs."""

from __future__ import annotations

import re

from cute_fa4.hopper.ptx_blocks import UnsupportedInstruction, address_of, block, call, refuse
from cute_fa4.hopper.ptx_text import Token, elements

FUNCTIONS = """
.extern .func (.param .b32 r) cute_fa4_begin();
.extern .func cute_fa4_alloc(.param .b32 address, .param .b32 columns);
.extern .func cute_fa4_dealloc(.param .b32 taddr, .param .b32 columns);
.extern .func (.param .b64 r) cute_fa4_lane(.param .b32 taddr, .param .b32 last, .param .b32 shape);
.extern .func cute_fa4_mma(.param .b32 d, .param .b64 a, .param .b64 b, .param .b32 idesc, .param .b32 accumulate,
                           .param .b32 mode);
.extern .func cute_fa4_scaled_mma(.param .b32 d, .param .b64 a, .param .b64 b, .param .b32 idesc,
                                  .param .b32 accumulate, .param .b32 mode, .param .b32 a_scales, .param .b32 b_scales);
.extern .func cute_fa4_copy_scales(.param .b32 taddr, .param .b64 source);
.extern .func cute_fa4_all_lanes(.param .b32 disabled);
.extern .func cute_fa4_commit(.param .b32 barrier, .param .b32 ctas);
.extern .func cute_fa4_try_cancel(.param .b32 answer, .param .b32 barrier, .param .b32 multicast);
.extern .func (.param .b32 r) cute_fa4_box_bytes(.param .b64 map);
.extern .func (.param .b32 r) cute_fa4_load_begin(.param .b32 scratch, .param .b64 map, .param .b32 ctas);
.extern .func cute_fa4_load_end(.param .b32 scratch, .param .b32 destination, .param .b32 barrier,
                                .param .b32 bytes, .param .b32 ctas);
"""

# `mode` of cute_fa4_mma
CTA_GROUP, KIND_SHIFT, WARP_WIDE, A_IN_TMEM = 15, 4, 1 << 8, 1 << 9
KINDS = {"kind::f16": 0, "kind::f8f6f4": 1, "kind::tf32": 2}

SCRATCH_BYTES = 256
"""Of dynamic shared memory, at its end: 8 for each of at most 32 warps that issue loads for a pair of CTAs."""

# A CTA whose cluster was claimed by another exits.
BEGIN = (
    "{\n.reg .pred tc_go; .reg .b32 tc_n;\n"
    + call("begin", result=("b32", "tc_n"))
    + "\nsetp.ne.u32 tc_go, tc_n, 0;\n@tc_go bra tc_start;\nret;\ntc_start:\n}\n"
)


def alloc(token: Token) -> str:
    address, columns = token.operands
    body = (
        ".reg .b32 tc_a;",
        address_of(address, "tc_a"),
        call("alloc", ("b32", "tc_a"), ("b32", columns)),
    )
    return block(token.guard, *body)  # fmt: skip


def dealloc(token: Token) -> str:
    taddr, columns = token.operands
    return block(token.guard, call("dealloc", ("b32", taddr), ("b32", columns)))


def load(token: Token) -> str:
    registers, address, *_ = token.operands
    return _lanes(token, address, registers, "ld.volatile.global.b32 {register}, [tc_p+{bytes}];")


def store(token: Token) -> str:
    address, *_, registers = token.operands
    return _lanes(token, address, registers, "st.volatile.global.b32 [tc_p+{bytes}], {register};")


SHAPES = {
    "32x32b": lambda r: (0, r),
    "16x64b": lambda r: (0, 2 * r),
    "16x128b": lambda r: (8 * (r % 2), 4 * (r // 2)),
    "16x256b": lambda r: (8 * (r // 2 % 2), r % 2 + 8 * (r // 4)),
}
"""Register r -> (lane, column) of tensor memory, counted from those of the thread's register 0, which
cute_fa4_lane knows. PTX ISA, "tcgen05 Data Movement Shape"."""


def _lanes(token: Token, address: str, registers: str, access: str) -> str:
    """One access per register; a column of tensor memory is 512 bytes, a lane 4."""
    shape = next((name for name in SHAPES if f".{name}." in token.opcode), None)
    if shape is None or re.search(r"\.(red|pack|unpack|spcompress)", token.opcode):
        refuse(token)
    names = elements(registers)
    places = [SHAPES[shape](r) for r in range(len(names))]
    accesses = [
        access.format(register=name, bytes=4 * lane + 512 * column)
        for name, (lane, column) in zip(names, places, strict=True)
    ]
    last = max(column for _, column in places)
    number = list(SHAPES).index(shape)
    return block(
        token.guard,
        ".reg .b32 tc_a; .reg .b64 tc_p;",
        address_of(address, "tc_a"),
        call("lane", ("b32", "tc_a"), ("b32", last), ("b32", number), result=("b64", "tc_p")),
        *accesses,
    )


def mma(token: Token, wide: bool) -> str:
    """wide: all lanes of the warp execute it and share the work."""
    opcode, operands = token.opcode, list(token.operands)
    kind = next((k for k in KINDS if k in opcode.split(".")), None)
    if kind is None or opcode.startswith(("tcgen05.mma.ws", "tcgen05.mma.sp")):
        refuse(token)
    if len(operands) == 6 and operands[4].startswith("{"):
        disabled = elements(operands.pop(4))
    else:
        disabled = []
    if len(operands) != 5:
        raise UnsupportedInstruction(f"{opcode} with {len(operands)} operands: {token.text}")
    d, a, b, idesc, accumulate = operands
    in_tmem = a.startswith("[")
    mode = (2 if "cta_group::2" in opcode else 1) | KINDS[kind] << KIND_SHIFT
    mode |= WARP_WIDE * wide | A_IN_TMEM * in_tmem
    body = [".reg .b32 tc_d, tc_e, tc_t;", ".reg .b64 tc_a;", address_of(d, "tc_d")]
    if disabled:
        body += ["mov.b32 tc_t, 0;", *(f"or.b32 tc_t, tc_t, {lanes};" for lanes in disabled)]
        body += [call("all_lanes", ("b32", "tc_t"))]
    if in_tmem:
        body += [address_of(a, "tc_t"), "cvt.u64.u32 tc_a, tc_t;"]
    else:
        body += [f"mov.b64 tc_a, {a};"]
    body += [
        _accumulates(accumulate),
        call("mma", ("b32", "tc_d"), ("b64", "tc_a"), ("b64", b), ("b32", idesc), ("b32", "tc_e"), ("b32", mode)),
    ]  # fmt: skip
    return block("" if wide else token.guard, *body)


def _accumulates(operand: str) -> str:
    """tc_e: whether the MMA accumulates."""
    if re.fullmatch(r"-?\d+", operand):
        return f"mov.b32 tc_e, {int(int(operand) != 0)};"
    return f"selp.b32 tc_e, 1, 0, {operand};"


SCALED = re.compile(
    r"tcgen05\.mma\.cta_group::1\.kind::mxf8f6f4\.block_scale(\.(scale_vec::1X|block32))?"
)


def scaled_mma(token: Token, wide: bool) -> str:
    """An MMA of one CTA with a scale per 32 values; others are refused. wide: as in mma."""
    if not SCALED.fullmatch(token.opcode) or len(token.operands) != 7:
        refuse(token)
    d, a, b, idesc, *scales, accumulate = token.operands
    return block(
        "" if wide else token.guard,
        ".reg .b32 tc_d, tc_e, tc_a, tc_b;",
        address_of(d, "tc_d"),
        *map(address_of, scales, ("tc_a", "tc_b")),
        _accumulates(accumulate),
        call(
            "scaled_mma",
            *(("b32", "tc_d"), ("b64", a), ("b64", b), ("b32", idesc), ("b32", "tc_e")),
            *(("b32", 1 | WARP_WIDE * wide), ("b32", "tc_a"), ("b32", "tc_b")),
        ),
    )


def copy_scales(token: Token) -> str:
    """tcgen05.cp of the lines that block-scaled MMAs read; other shapes are refused."""
    if token.opcode != "tcgen05.cp.cta_group::1.32x128b.warpx4":
        refuse(token)
    address, source = token.operands
    return block(
        token.guard,
        ".reg .b32 tc_a;",
        address_of(address, "tc_a"),
        call("copy_scales", ("b32", "tc_a"), ("b64", source)),
    )


def commit(token: Token) -> str:
    ctas = "mov.b32 tc_m, 0;"
    if "multicast" in token.opcode:
        ctas = f"cvt.u32.u16 tc_m, {token.operands[1]};"
    return block(
        token.guard,
        ".reg .b32 tc_b, tc_m;",
        address_of(token.operands[0], "tc_b"),
        ctas,
        call("commit", ("b32", "tc_b"), ("b32", "tc_m")),
    )


def try_cancel(token: Token) -> str:
    if ".shared::cta" not in token.opcode:
        refuse(token)
    answer, barrier = token.operands
    multicast = int(".multicast::cluster::all" in token.opcode)
    return block(
        token.guard,
        ".reg .b32 tc_a, tc_b;",
        address_of(answer, "tc_a"),
        address_of(barrier, "tc_b"),
        call("try_cancel", ("b32", "tc_a"), ("b32", "tc_b"), ("b32", multicast)),
    )


def load_for_a_pair(token: Token, shared: str) -> str:
    """A load that completes on a scratch barrier of this CTA; the bytes are then credited to the real barrier.

    shared   the symbol at the start of dynamic shared memory
    """
    destination, source, barrier, *rest = token.operands
    map_address = source.strip("[] ").partition(",")[0].strip()
    ctas = f"cvt.u32.u16 tc_m, {rest[0]};" if "multicast" in token.opcode else "mov.b32 tc_m, 0;"
    opcode = token.opcode.replace(".cta_group::2", "")
    if "multicast" in opcode:  # cute_fa4_load_end does it
        opcode, rest = opcode.replace(".multicast::cluster", ""), rest[1:]
    operands = ", ".join((destination, source, "[tc_s]", *rest))
    return block(
        token.guard,
        ".reg .b32 tc_s, tc_b, tc_d, tc_m, tc_n, tc_w;",
        # the scratch barrier of this warp, in the last SCRATCH_BYTES of dynamic shared memory
        f"mov.b32 tc_s, {shared};",
        "mov.u32 tc_w, %dynamic_smem_size;",
        "add.u32 tc_s, tc_s, tc_w;",
        f"sub.u32 tc_s, tc_s, {SCRATCH_BYTES};",
        "mov.u32 tc_w, %tid.x;",
        "shr.u32 tc_w, tc_w, 5;",
        "mad.lo.u32 tc_s, tc_w, 8, tc_s;",
        address_of(barrier, "tc_b"),
        ctas,
        call("load_begin", ("b32", "tc_s"), ("b64", map_address), ("b32", "tc_m"), result=("b32", "tc_n")),
        f"{opcode} {operands};",
        address_of(destination, "tc_d"),
        call(
            "load_end",
            *(("b32", register) for register in ("tc_s", "tc_d", "tc_b", "tc_n", "tc_m")),
        ),
    )  # fmt: skip
