"""Conversions of 4- and 6-bit formats and of scales against exact fractions; ptxas accepts their spellings."""

import importlib.util
import os
import re
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tests.emulator.instructions.exact import BF16, E4M3, E5M2, F16, F32, exact_round, value
from tests.emulator.instructions.lane_cases import F32_SPECIAL, families, operation, run_numpy

E2M1, E2M3, E3M2 = (1, 0, 0x7, 4), (3, 0, 0x1F, 6), (2, -2, 0x1F, 6)
FORMAT = {"e2m1": E2M1, "e2m3": E2M3, "e3m2": E3M2, "e4m3": E4M3, "e5m2": E5M2}
HALF = {"f16": F16, "bf16": BF16}
TIES = [0x3E800000, 0x3F400000, 0x40200000, 0x40A00000, 0x40E00000, 0x41E80000, 0xC0F80000]
SINGLES = np.array([*F32_SPECIAL, *TIES], np.uint32)
SINGLES = np.resize(
    np.concatenate((SINGLES, np.random.default_rng(0).normal(0, 4, 417).astype("f4").view("u4"))),
    512,
)


def test_the_sixteen_values_of_e2m1_are_those_of_the_standard():
    """OCP Microscaling Formats 1.0, table 5."""
    written = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    (got,) = run_numpy(operation("cvt.rn.f16x2.e2m1x2"), [np.arange(256, dtype=np.uint32)])
    halves = got.astype(np.uint32).view(np.float16).reshape(256, 2)
    values = np.array([*written, *(-x for x in written)])
    assert np.array_equal(halves[:, 1], values[np.arange(256) >> 4])
    assert np.array_equal(halves[:, 0], values[np.arange(256) & 15])


def to_narrow(code, source, target):
    """Code in target of a float: beyond the largest, and infinities, the largest; NaN is positive."""
    v, fmt = value(code, source), FORMAT[target]
    if v == "nan":
        return 0x7F if target in ("e4m3", "e5m2") else fmt[2]
    if isinstance(v, str):
        return fmt[2] | (v == "-inf") << fmt[3] - 1
    return exact_round(v, fmt, ".rn", code >> source[3] - 1, True)


@pytest.mark.parametrize("target", ["e2m1", "e2m3", "e3m2"])
def test_singles_become_the_nearest_value(target):
    op = operation(f"cvt.rn.satfinite.{target}x2.f32")
    (got,) = run_numpy(op, [SINGLES, SINGLES[::-1].copy()])
    codes = [to_narrow(int(code), F32, target) for code in SINGLES]
    shift = 4 if target == "e2m1" else 8
    assert got.tolist() == [a << shift | b for a, b in zip(codes, codes[::-1], strict=True)]


@pytest.mark.parametrize("source", ["f16", "bf16"])
@pytest.mark.parametrize("target", ["e2m1", "e3m2", "e5m2"])
def test_halves_become_what_their_singles_become(target, source):
    halves = np.arange(0, 1 << 16, 5, dtype=np.uint32)
    pairs = halves << np.uint32(16) | halves[::-1]
    (got,) = run_numpy(operation(f"cvt.rn.satfinite.{target}x2.{source}x2"), [pairs])
    (upper,) = run_numpy(operation(f"cvt.f32.{source}"), [halves])
    wanted_op = operation(f"cvt.rn.satfinite.{target}x2.f32")
    (wanted,) = run_numpy(wanted_op, [upper, upper[::-1].copy()])
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("source", ["e2m1", "e2m3", "e3m2"])
def test_every_narrow_code_is_exact_in_a_half(source, half):
    fmt = FORMAT[source]
    codes = np.arange(1 << fmt[3], dtype=np.uint32)
    (got,) = run_numpy(operation(f"cvt.rn.{half}x2.{source}x2"), [codes])
    for code, word in zip(codes.tolist(), got.tolist(), strict=True):
        mantissa, low, _, width = fmt
        size = code & (1 << width - 1) - 1
        biased, units = size >> mantissa, size & (1 << mantissa) - 1
        units += (1 << mantissa) * (biased > 0)
        exact = Fraction(units) * Fraction(2) ** (max(biased, 1) - 1 + low - mantissa)
        exact = -exact if code >> width - 1 else exact
        lower = word & 0xFFFF
        if source == "e2m1":
            lower = (
                int(
                    run_numpy(operation(f"cvt.rn.{half}x2.e2m1x2"), [np.full(32, code, "u4")])[0][0]
                )
                & 0xFFFF
            )
        assert value(lower, HALF[half]) == exact


def test_a_scale_is_the_power_of_two_below_or_above():
    """2^e <= |x| < 2^(e+1): e, or e + 1 where .rp and x is between; below 2^-127 code 0; infinity, NaN: 255."""
    for r in (".rz", ".rp"):
        for satfinite in ("", ".satfinite"):
            op = operation(f"cvt{r}{satfinite}.ue8m0x2.f32")
            (got,) = run_numpy(op, [SINGLES, SINGLES])
            for word, code in zip(got.tolist(), SINGLES.tolist(), strict=True):
                v = value(code, F32)
                if isinstance(v, str):
                    expected = 254 if v != "nan" and satfinite else 255
                else:
                    below = [e for e in range(-127, 128) if Fraction(2) ** e <= abs(v)]
                    e = max(below, default=-127)
                    above = r == ".rp" and bool(below) and Fraction(2) ** e != abs(v)
                    expected = min(e + above + 127, 254 if satfinite else 255)
                assert word == expected << 8 | expected, (r, satfinite, hex(code))


@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
@pytest.mark.parametrize("source", ["e2m1", "e3m2", "e4m3", "e5m2", "s2f6"])
def test_scaled_elements_are_rounded_once(source, satfinite):
    """bf16(element * 2^(scale - 127)), each half with the scale of its half."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 256, 512).astype(np.uint32)
    scales = rng.integers(0, 256, (2, 512)).astype(np.uint32)
    scales[:, :8] = 0, 1, 126, 127, 128, 253, 254, 255
    shift = 4 if source == "e2m1" else 8
    pairs = codes >> 4 << 4 | codes & 15 if source == "e2m1" else codes << 8 | codes[::-1]
    op = operation(f"cvt.rn{satfinite}.scaled::n2::ue8m0.bf16x2.{source}x2")
    (got,) = run_numpy(op, [pairs, scales[0] << np.uint32(8) | scales[1]])
    for half, scale in ((0, scales[1]), (16, scales[0])):
        parts = pairs >> (shift if half else 0) & ((1 << shift) - 1)
        for word, code, s in zip(got.tolist(), parts.tolist(), scale.tolist(), strict=True):
            assert word >> half & 0xFFFF == scaled(code, s, source, bool(satfinite))


def scaled(code, scale, source, satfinite):
    if source == "s2f6":
        v = Fraction(code - (256 if code > 127 else 0), 64)
    else:
        fmt = FORMAT[source]
        code &= (1 << fmt[3]) - 1
        v = value(code, fmt) if source in ("e4m3", "e5m2") else None
        if v is None:
            size = code & (1 << fmt[3] - 1) - 1
            biased = size >> fmt[0]
            units = (size & (1 << fmt[0]) - 1) + (1 << fmt[0]) * (biased > 0)
            v = Fraction(units) * Fraction(2) ** (max(biased, 1) - 1 + fmt[1] - fmt[0])
            v = -v if code >> fmt[3] - 1 else v
    sign = code >> (7 if source == "s2f6" else FORMAT[source][3] - 1)
    if scale == 255 or v == "nan":
        return 0x7FFF
    if isinstance(v, str):
        return 0x7F80 - satfinite | sign << 15
    zero = sign if source != "s2f6" else 0
    return exact_round(v * Fraction(2) ** (scale - 127), BF16, ".rn", zero, satfinite)


@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
@pytest.mark.parametrize("half, bits", [("f16", 13), ("bf16", 16)])
def test_random_bits_decide_how_far_up_rounding_begins(half, bits, satfinite):
    """|x| + random / 2^bits of a unit in the last place, cut off; every special value, random numbers at both ends."""
    rng = np.random.default_rng(bits)
    x = np.resize(np.concatenate((SINGLES, rng.integers(0, 2**32, 512, np.uint32))), 1024)
    r = rng.integers(0, 2**32, 1024, np.uint32)
    r[::3] = np.resize([0, 0xFFFFFFFF, 0x00010001], len(r[::3]))
    (got,) = run_numpy(operation(f"cvt.rs{satfinite}.{half}x2.f32"), [x, x[::-1].copy(), r])
    fmt = HALF[half]
    for shift, source in ((16, x), (0, x[::-1])):
        noise = r >> np.uint32(shift) & np.uint32((1 << bits) - 1)
        for code, random, word in zip(source.tolist(), noise.tolist(), got.tolist(), strict=True):
            v, sign = value(code, F32), code >> 31
            if v == "nan":
                expected = 0x7FFF
            elif isinstance(v, str):
                expected = fmt[2] + (not satfinite) | sign << 15
            else:
                size = abs(v)
                exponent = fmt[1]
                while size >= Fraction(2) ** (exponent + 1):
                    exponent += 1
                size += Fraction(random, 1 << bits) * Fraction(2) ** (exponent - fmt[0])
                beyond = size >= Fraction(2) ** (1 - fmt[1] + 1)
                expected = exact_round(size, fmt, ".rz", 0, bool(satfinite)) | sign << 15
                expected += beyond and not satfinite  # the largest, cut off, to infinity
            assert word >> shift & 0xFFFF == expected, (hex(code), random)


def test_stochastic_rounding_has_the_right_mean():
    """A quarter of the way up, all 2^13 random numbers: a quarter of them round up."""
    x = np.full(1 << 13, 1 + 2.0**-12, np.float32).view(np.uint32)
    (got,) = run_numpy(operation("cvt.rs.f16x2.f32"), [x, x, np.arange(1 << 13, dtype=np.uint32)])
    assert np.bincount(got & 0xFFFF)[0x3C00:].tolist() == [6144, 2048]


def _ptxas():
    """A ptxas that knows PTX 9.2: of the environment, or of the CUDA wheels."""
    found = importlib.util.find_spec("nvidia")
    folders = map(Path, found.submodule_search_locations) if found else ()
    wheels = [p / "cu13" / "bin" / "ptxas" for p in folders]
    return next((str(p) for p in (Path(os.environ.get("PTXAS", "")), *wheels) if p.is_file()), None)


def test_ptxas_accepts_every_spelling(tmp_path):
    """In one kernel; 4-bit pairs are registers of 8 bits."""
    ptxas = _ptxas()
    if ptxas is None:
        pytest.skip("no ptxas of CUDA 13.2: nvidia-cuda-nvcc, or PTXAS=FILE")
    names = {"u8": "%b1", "b16": "%h1", "b32": "%r1", "f32": "%f1", "u16": "%h1", "u32": "%r1"}
    lines = []
    for op in families()["convert_narrow"] + families()["convert_stochastic"]:
        places = [names[kind.name] for kind in (*op.results, *op.sources)]
        lines.append(f"{op.opcode} {', '.join(places)};")
    assert len(lines) > 60 and all(re.match(r"cvt\.", line) for line in lines)
    body = "mov.b32 %r1, 0; mov.f32 %f1, 0f3F800000; mov.b32 {%h1, %h2}, %r1; cvt.u8.u16 %b1, %h1;"
    path = tmp_path / "all.ptx"
    path.write_text(
        ".version 9.2\n.target sm_100a\n.address_size 64\n.visible .entry k() {\n"
        ".reg .b8 %b<2>; .reg .b16 %h<3>; .reg .b32 %r<2>; .reg .f32 %f<2>;\n"
        + body + "\n" + "\n".join(lines) + "\nret; }\n"
    )  # fmt: skip
    command = [ptxas, "-arch", "sm_100a", "-O0", str(path), "-o", str(tmp_path / "all.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
