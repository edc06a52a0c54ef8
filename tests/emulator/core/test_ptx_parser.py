"""The parser's results, statement by statement, and its refusals."""

import pytest

from cute_fa4.emulator.ptx.errors import UnknownInstruction
from cute_fa4.emulator.ptx.parser import (
    Addr,
    Imm,
    Label,
    Pair,
    Pred,
    Reg,
    Sink,
    Special,
    Symbol,
    Vec,
    parse,
)
from tests.emulator.core.ptx_bench import module_text


def kernel_of(body, **options):
    return parse(module_text(body, **options)).kernels["bench"]


def one(text, **options):
    """The first instruction of a body."""
    return kernel_of(text, **options).instructions[0]


def test_registers_get_rows_of_their_width():
    """16- and 32-bit registers take one row, 64-bit ones two that start on an even row."""
    kernel = kernel_of(
        "{ .reg .b32 a; .reg .b64 b, c; .reg .b16 d; mov.b64 b, c; mov.b32 a, a; mov.b16 d, d; }"
    )
    (b, c), (a, _), (d, _) = (ins.operands for ins in kernel.instructions[:3])
    assert (a.bits, b.bits, d.bits) == (32, 64, 16)
    assert b.row % 2 == 0 and c.row == b.row + 2
    rows = [{a.row}, {b.row, b.row + 1}, {c.row, c.row + 1}, {d.row}]
    assert len(set.union(*rows)) == sum(map(len, rows))
    assert kernel.rows > max(set.union(*rows))


def test_operand_forms():
    ins = one("shfl.sync.idx.b32 %r1|%p1, %r2, 0, 31, -1;")
    pair, source, lane, clamp, mask = ins.operands
    assert isinstance(pair, Pair) and isinstance(pair.first, Reg) and isinstance(pair.second, Pred)
    assert isinstance(source, Reg)
    assert (lane, clamp, mask) == (Imm(0), Imm(31), Imm(-1))


@pytest.mark.parametrize(
    "literal, value, is_float",
    [
        ("0f3F800000", 0x3F800000, True),
        ("0d3FF0000000000000", 0x3FF0000000000000, True),
        ("-0f3F800000", 0xBF800000, True),
        ("-7", -7, False),
        ("0x10", 16, False),
        ("017", 15, False),
        ("0b101", 5, False),
        ("42U", 42, False),
        ("1.5", 0x3FC00000, True),
    ],
)
def test_constants(literal, value, is_float):
    """PTX ISA, "Constants": hexadecimal, octal, binary and decimal integers, raw and decimal floats."""
    assert one(f"mov.b32 %r1, {literal};").operands[1] == Imm(value, is_float)


def test_addresses():
    base = one("mov.b32 %r1, %r2;").operands[0]
    assert one("ld.shared.b32 %r2, [%r1+16];").operands[1] == Addr(base, 16)
    assert one("ld.shared.b32 %r2, [%r1+-8];").operands[1] == Addr(base, -8)
    assert one("ld.shared.b32 %r2, [%r1 - 0x8];").operands[1] == Addr(base, -8)
    assert one("ld.shared.b32 %r2, [%r1];").operands[1] == Addr(base, 0)
    assert one("ld.shared.b32 %r2, [2048];").operands[1] == Addr(Imm(2048), 0)
    symbol = one("ld.param.b64 %rd1, [p1+4];", pointers=2).operands[1]
    assert symbol == Addr(Symbol("p1", "param", 8), 4)


def test_tensor_address_has_coordinates():
    ins = one("cp.async.bulk.tensor.2d.x [%r1], [%rd1, {%r2, %r3}], [%r4];")
    assert [len(a.coords or ()) for a in ins.operands] == [0, 2, 0]
    assert ins.operands[1].base.bits == 64


def test_vectors_sinks_specials():
    ins = one("mov.b64 {%r1, _}, %rd1;")
    assert isinstance(ins.operands[0], Vec) and ins.operands[0].items[1] == Sink()
    assert one("mov.u32 %r1, %ctaid.y;").operands[1] == Special("%ctaid.y")


def test_guards():
    p3 = one("@%p3 mov.b32 %r1, %r2;")
    assert one("@!%p3 mov.b32 %r1, %r2;").guard == (p3.guard[0], True)
    assert p3.guard[1] is False
    assert one("mov.b32 %r1, %r2;").guard is None


def test_two_inline_asm_blocks_have_labels_and_registers_of_their_own():
    """The waiting loop that CUTLASS emits, twice: same names, different registers and targets."""
    block = """{
        .reg .pred P1;
        LAB_WAIT: mbarrier.try_wait.parity.shared.b64 P1, [%r1], %r2, 10000000;
        @P1 bra.uni DONE; bra.uni LAB_WAIT;
        DONE:
        }"""
    kernel = kernel_of(block + block)
    waits = [ins for ins in kernel.instructions if "try_wait" in ins.opcode]
    assert waits[0].operands[0] != waits[1].operands[0]
    jumps = [ins.operands[0] for ins in kernel.instructions if ins.opcode.startswith("bra")]
    assert all(isinstance(jump, Label) for jump in jumps)
    assert [kernel.labels[jump.target] for jump in jumps] == [3, 0, 6, 3]


def test_an_inner_register_hides_an_outer_one():
    outer, inner, after = (
        ins.operands[0]
        for ins in kernel_of(
            "mov.b32 %r1, 1; { .reg .b32 %r1; mov.b32 %r1, 2; } mov.b32 %r1, 3;"
        ).instructions[:3]
    )
    assert outer == after != inner


def test_parameters_are_laid_out_by_size_and_alignment():
    """PTX ISA, "Kernel Function Parameters": in order, each at a multiple of its alignment."""
    text = module_text("").replace(
        "bench()",
        "bench(.param .u8 a, .param .align 64 .b8 map[128], .param .f32 s, .param .u64 .ptr .global .align 16 q)",
    )
    kernel = parse(text).kernels["bench"]
    assert [(p.offset, p.nbytes) for p in kernel.params] == [(0, 1), (64, 128), (192, 4), (200, 8)]
    assert kernel.param_bytes == 208


def test_dynamic_shared_memory_starts_after_reserved_and_static_bytes():
    """1024 reserved bytes, 48 static ones, then the next multiple of the extern array's alignment."""
    symbols = [
        ins.operands[1]
        for ins in kernel_of(
            "mov.b32 %r1, dyn; mov.b32 %r1, a; mov.b32 %r1, b;",
            module_variables=".shared .align 4 .b8 a[5]; .shared .align 16 .b32 b[8];",
        ).instructions[:3]
    ]
    assert [s.offset for s in symbols] == [2048, 1024, 1040]


def test_lines_and_python_sources():
    text = (
        module_text(
            """
        .loc 1 10 3
        mov.b32 %r1, 1;
        .loc 2 77 1
        mov.b32 %r1, 2;
        """
        )
        + '\n.file 1 "/src/load.py"\n.file 2 "/src/pipelines.py"\n'
    )
    kernel = parse(text, helper_files=("pipelines.py",)).kernels["bench"]
    first, second = kernel.instructions[:2]
    assert first.source == ("/src/load.py", 10)
    assert second.source == ("/src/pipelines.py", 77)
    assert second.role_source == first.source, "the last line of a file that is not a helper"
    lines = text.split("\n")
    assert "mov.b32 %r1, 2" in lines[second.line - 1]


def test_a_location_without_a_column_keeps_the_last_statement():
    """The compiler writes `.loc F L 0`, the line of the kernel's `def`, where it knows no statement."""
    text = module_text(".loc 1 10 3\nmov.b32 %r1, 1;\n.loc 1 2 0\nmov.b32 %r1, 2;")
    text += '\n.file 1 "/src/load.py"\n'
    sources = [ins.source for ins in parse(text).kernels["bench"].instructions[:2]]
    assert sources == [("/src/load.py", 10)] * 2


def test_directives_and_comments():
    kernel = kernel_of("// a comment; with { and }\n /* bra nowhere; \n */ mov.b32 %r1, 1;",
                       directives=".reqntid 128, 1, 1\n.maxnreg 64")  # fmt: skip
    assert kernel.directives == {".reqntid": (128, 1, 1), ".maxnreg": (64,)}
    assert [ins.opcode for ins in kernel.instructions] == ["mov.b32", "ret"]


@pytest.mark.parametrize(
    "body, reason",
    [
        ("mov.b32 %r1, %nosuch;", "%nosuch"),
        ("bra NOWHERE;", "NOWHERE"),
        ("{ .reg .b256 wide; }", "b256"),
        ("@%r1 bra X; X:", "not a predicate"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(body, reason):
    with pytest.raises(UnknownInstruction, match=reason) as error:
        kernel_of("\n\n" + body)
    assert "PTX line" in str(error.value)


def test_a_vector_may_follow_the_opcode_without_a_space():
    """CUTLASS's inline assembly writes it so."""
    [kernel] = parse(
        ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k() {\n.reg .b32 %r<4>;\n"
        "tcgen05.ld.sync.aligned.32x32b.x2.b32{%r0, %r1},[%r2];\nret;\n}"
    ).kernels.values()
    ins = kernel.instructions[0]
    assert ins.opcode == "tcgen05.ld.sync.aligned.32x32b.x2.b32" and len(ins.operands) == 2
