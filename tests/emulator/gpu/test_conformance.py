"""Register arithmetic of the emulator against a real GPU, bit for bit; approximations against their bounds.

    python tests/emulator/gpu/test_conformance.py                   all opcodes that the GPU's assembler accepts
    python tests/emulator/gpu/test_conformance.py convert min_max   these families only
    python tests/emulator/gpu/test_conformance.py --ptxas sm_100a   no GPU: which opcodes does ptxas accept

Each opcode becomes one kernel: a thread loads its operands as 64-bit words, executes the opcode once, and
stores the results as 64-bit words. Opcodes that the GPU does not have (f32x2 arithmetic before sm_100, say) are
listed as such and are no difference. The driver is called through ctypes; NumPy is all the script needs.
"""

import ctypes
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from cute_fa4.emulator.instructions import instruction_table  # noqa: E402
from cute_fa4.emulator.instructions.approximate import BOUNDS  # noqa: E402
from cute_fa4.emulator.ptx.parser import Pair, Pred, Vec  # noqa: E402
from tests.emulator.gpu.driver import Driver  # noqa: E402
from tests.emulator.instructions.lane_cases import families, instruction, operands, run_numpy  # noqa: E402

LANES = 4096  # half of them special values against each other
BLOCK = 128

# Operands that PTX wants as constants: opcode -> {source: value}.
CONSTANT_SOURCES = {"lop3.b32": {3: 0xB4}}

# Opcodes that may differ, each with its reason: reported, but no failure. (Approximations have BOUNDS.)
KNOWN_DIFFERENCES = {}

# --- PTX --------------------------------------------------------------------------------------------


def kernel_ptx(name, operation):
    """One .entry: results[n][thread] = opcode(sources[n][thread]), all as 64-bit words."""
    ins, _, _ = instruction(operation)
    names, declare, body = {}, [], []
    for n, place in enumerate(instruction_table.flatten(ins.operands)):
        names[id(place)] = f"x{n}"
        declare.append(
            f".reg .pred x{n};" if isinstance(place, Pred) else f".reg .b{place.bits} x{n};"
        )
    results = instruction_table.flatten(ins.operands)[: len(operation.results)]
    sources = instruction_table.flatten(ins.operands)[len(operation.results) :]
    constants = CONSTANT_SOURCES.get(operation.opcode, {})
    for n, place in enumerate(sources):
        body.append(f"ld.global.b64 w, [source + {8 * LANES * n}];")
        body.append(_from_word(place, names[id(place)]))
        if n in constants:
            names[id(place)] = hex(constants[n])
    body.append(
        f"{operation.opcode} {', '.join(_text(operand, names) for operand in ins.operands)};"
    )
    for n, place in enumerate(results):
        body.append(_to_word(place, names[id(place)]))
        body.append(f"st.global.b64 [result + {8 * LANES * n}], w;")
    lines = "\n    ".join([*declare, *body])
    return f"""
.visible .entry {name}(.param .u64 sources, .param .u64 results) {{
    .reg .b64 source, result, w, byte;
    .reg .b32 thread, block;
    mov.u32 thread, %tid.x;
    mov.u32 block, %ctaid.x;
    mad.lo.s32 thread, block, {BLOCK}, thread;
    mul.wide.u32 byte, thread, 8;
    ld.param.u64 source, [sources];
    ld.param.u64 result, [results];
    add.u64 source, source, byte;
    add.u64 result, result, byte;
    {lines}
    ret;
}}
"""


def _text(operand, names):
    if isinstance(operand, Vec):
        return "{" + ", ".join(names[id(item)] for item in operand.items) + "}"
    if isinstance(operand, Pair):
        return f"{names[id(operand.first)]}|{names[id(operand.second)]}"
    return names[id(operand)]


def _from_word(place, name):
    if isinstance(place, Pred):
        return f"setp.ne.u64 {name}, w, 0;"
    return f"mov.b64 {name}, w;" if place.bits == 64 else f"cvt.u{place.bits}.u64 {name}, w;"


def _to_word(place, name):
    if isinstance(place, Pred):
        return f"selp.u64 w, 1, 0, {name};"
    return f"mov.b64 w, {name};" if place.bits == 64 else f"cvt.u64.u{place.bits} w, {name};"


def module_ptx(operations, target, version):
    """A PTX module with kernels k0, k1, ... for the operations."""
    kernels = "".join(kernel_ptx(f"k{n}", operation) for n, operation in enumerate(operations))
    return f".version {version}\n.target {target}\n.address_size 64\n{kernels}"


def accepted(operations, assemble):
    """Yield (module, operations) for the operations that ``assemble(operations)`` takes, halving where it refuses.

    assemble returns a module, or None when it refuses the PTX; a refused single operation yields (None, [operation]).
    """
    module = assemble(operations)
    if module is not None or len(operations) == 1:
        yield module, operations
        return
    middle = len(operations) // 2
    yield from accepted(operations[:middle], assemble)
    yield from accepted(operations[middle:], assemble)


# --- the GPU, through the driver API --------------------------------------------------------------


class Gpu(Driver):
    """The first CUDA device: loads PTX, launches kernels on arrays of 64-bit words."""

    def __init__(self):
        super().__init__()
        # PTX ISA of the CUDA release that the driver belongs to (PTX ISA, "Release Notes")
        releases = ((13000, "9.0"), (12080, "8.7"), (12040, "8.4"), (12000, "8.0"))
        newest = self.driver_version
        self.version = next((ptx for release, ptx in releases if newest >= release), "7.8")
        self.sources, self.results = (self.allocate(8 * LANES * 4) for _ in range(2))

    def load(self, ptx):
        """The loaded module, or None when the driver's assembler refuses the PTX."""
        try:
            return super().load(ptx)
        except OSError:
            return None

    def unload(self, module):
        self.check("cuModuleUnload", module)

    def run(self, module, name, words, results):
        """Launch kernel ``name`` on the source words, uint64[n][LANES]; the result words, uint64[results][LANES]."""
        function = ctypes.c_void_p()
        entry = ctypes.c_char_p(name.encode())
        self.check("cuModuleGetFunction", ctypes.byref(function), module, entry)
        self.to_device(self.sources.value, words)
        self.to_device(self.results.value, np.zeros((results, LANES), np.uint64))
        pointers = (ctypes.c_void_p * 2)(
            ctypes.addressof(self.sources), ctypes.addressof(self.results)
        )
        grid = (LANES // BLOCK, 1, 1, BLOCK, 1, 1, 0)
        self.check("cuLaunchKernel", function, *map(ctypes.c_uint, grid), None, pointers, None)
        self.check("cuCtxSynchronize")
        out = self.from_device(self.results.value, 8 * LANES * results)
        return out.view(np.uint64).reshape(results, LANES)


# --- comparison -----------------------------------------------------------------------------------


def to_words(register):
    """A register array (uint32, uint64 or bool) as 64-bit words."""
    return register.astype(np.uint64)


def compare(operation, registers, got):
    """bool[LANES]: where the GPU's words are outside of what the emulator's result allows."""
    wanted = run_numpy(operation, registers)
    wrong = np.zeros(LANES, bool)
    bound = BOUNDS.get(bound_key(operation.opcode))
    for kind, g, w in zip(operation.results, got, wanted, strict=True):
        differs = g != to_words(w)
        if bound is not None:
            differs &= ~within_bound(operation, bound, registers[0], kind, g, w)
        elif kind.name == "f64":  # PTX does not say which NaN f64 arithmetic returns
            differs &= ~(np.isnan(g.view(np.float64)) & np.isnan(w.view(np.float64)))
        wrong |= differs
    return wrong & ~unspecified(operation, registers)


def unspecified(operation, registers):
    """bool[LANES]: operands for which the PTX ISA leaves the result open."""
    opcode = operation.opcode
    if opcode.startswith(("div", "rem")) and opcode.split(".")[1][0] in "us":
        return operation.sources[1].decode(registers[1]) == 0
    if opcode == "fns.b32":
        return registers[1] > 31
    if bound_key(opcode) in ("sin.f32", "cos.f32"):
        return ~(np.abs(registers[0].view(np.float32)) <= 2 * np.pi)
    if (
        bound_key(opcode) == "div.approx.f32"
    ):  # the bound holds for |b| in [2^-126, 2^126]; beyond, 0 or NaN
        return np.abs(registers[1].view(np.float32)) < np.float32(2.0**-126)
    return np.zeros(LANES, bool)


def bound_key(opcode):
    """Opcode -> key of approximate.BOUNDS: "ex2.approx.ftz.f32" -> "ex2.f32", "div.full.f32" stays."""
    parts = [part for part in opcode.removesuffix("x2").split(".") if part not in ("ftz",)]
    if "approx" not in parts and "full" not in parts:
        return None
    return ".".join(parts if parts[0] == "div" else [part for part in parts if part != "approx"])


def within_bound(operation, bound, register, kind, got, wanted):
    """bool[LANES]: finite results no further than the bound from the emulator's, which is within half an ulp."""
    element = kind.element
    narrow = np.uint64 if kind.rows == 2 else np.uint32
    ok = np.ones(len(wanted) * (narrow().itemsize // element.itemsize), bool)
    g = kind.decode(got.astype(narrow)).astype(np.float64)
    w = kind.decode(wanted).astype(np.float64)
    size, (measure, limit) = np.abs(w), bound
    half_ulp = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}[kind.name.removesuffix("x2")]
    ulp = 2.0 ** np.floor(np.log2(np.maximum(size, 2.0**-126))) * 2 * half_ulp
    allowed = {"ulp": limit * ulp, "relative": limit * size, "absolute": np.full_like(size, limit)}
    if measure.startswith("absolute in (0.5, 2)"):
        a = register.view(np.float32)
        error = np.where((a > 0.5) & (a < 2), allowed["absolute"], allowed["relative"])
    else:
        error = allowed[measure.split()[0]]
    with np.errstate(invalid="ignore"):
        ok = np.abs(g - w) <= error + ulp / 2
    ok |= (g == w) | (np.isnan(g) & np.isnan(w))  # infinities and NaNs have no distance
    # results at the edge of the format: flushed subnormals, and infinity against the largest value
    tiny = {"f16": 2.0**-14}.get(kind.name.removesuffix("x2"), 2.0**-126)
    ok |= (np.abs(g) <= tiny) & (np.abs(w) <= tiny)
    return ok.reshape(len(wanted), -1).all(1)


def chosen(names=()):
    """family -> operations, of all or of the named families."""
    grouped = families()
    unknown = set(names) - set(grouped)
    if unknown:
        raise SystemExit(f"unknown families {sorted(unknown)}; there are {sorted(grouped)}")
    return {name: grouped[name] for name in (names or sorted(grouped))}


def check_family(gpu, operations, seed=0):
    """(opcodes compared, opcodes the GPU lacks, lines that describe differences)."""
    rng = np.random.default_rng(seed)
    compared, missing, lines = [], [], []
    for start in range(0, len(operations), 64):

        def assemble(some):
            return gpu.load(module_ptx(some, gpu.target, gpu.version))

        for module, some in accepted(operations[start : start + 64], assemble):
            if module is None:
                missing += [operation.opcode for operation in some]
                continue
            for n, operation in enumerate(some):
                lines += check_operation(gpu, module, f"k{n}", operation, rng)
                compared.append(operation.opcode)
            gpu.unload(module)
    return compared, missing, lines


def check_operation(gpu, module, name, operation, rng):
    """Lines that describe differences of one opcode: how many lanes, and the first three."""
    registers = operands(operation, rng, LANES)
    for n, value in CONSTANT_SOURCES.get(operation.opcode, {}).items():
        registers[n][:] = value
    got = gpu.run(module, name, np.stack([to_words(r) for r in registers]), len(operation.results))
    wrong = np.flatnonzero(compare(operation, registers, got))
    if not len(wrong):
        return []
    if operation.opcode in KNOWN_DIFFERENCES:
        print(f"known: {operation.opcode}: {KNOWN_DIFFERENCES[operation.opcode]}")
        return []
    lines = [
        f"{operation.opcode} ({len(operation.sources)} sources): {len(wrong)} of {LANES} lanes differ"
    ]
    wanted = run_numpy(operation, registers)
    for lane in wrong[:3]:
        sources = " ".join(f"{int(register[lane]):#x}" for register in registers)
        pairs = zip(got, wanted, strict=True)
        results = "; ".join(f"GPU {int(g[lane]):#x}, emulator {int(w[lane]):#x}" for g, w in pairs)
        lines.append(f"    {sources} -> {results}")
    return lines


# --- pytest and command line ------------------------------------------------------------------------

try:
    import pytest
except ImportError:
    pytest = None

if pytest is not None:

    @pytest.fixture(scope="module")
    def gpu():
        try:
            return Gpu()
        except OSError as why:
            pytest.skip(f"no CUDA device ({why})")

    @pytest.mark.gpu
    @pytest.mark.parametrize("family", sorted(families()))
    def test_the_gpu_computes_what_the_emulator_computes(gpu, family):
        compared, missing, lines = check_family(gpu, families()[family])
        assert compared, f"{gpu.name} accepts none of the {len(missing)} opcodes"
        assert not lines, "\n".join(lines)


class NumpyGpu:
    """Stands in for Gpu: computes with the NumPy meanings, with ``flip`` wrong in bit 0 of lane 7."""

    def __init__(self, operation, registers, flip=False):
        self.words = np.stack([to_words(result) for result in run_numpy(operation, registers)])
        if flip:
            self.words[0, 7] ^= np.uint64(1)

    def run(self, module, name, words, results):
        return self.words


def test_the_comparison_finds_one_wrong_bit():
    for operation in (families()["arithmetic"][0], families()["half_precision"][0]):
        registers = operands(operation, np.random.default_rng(0), LANES)
        for flip, expected in ((False, 0), (True, 1)):
            gpu = NumpyGpu(operation, registers, flip)
            lines = check_operation(gpu, None, "k0", operation, np.random.default_rng(0))
            assert len(lines[:1]) == expected
            assert not flip or "1 of 4096 lanes differ" in lines[0]


def test_approximations_may_differ_by_their_bound_and_no_more():
    operation = next(op for op in families()["approximate"] if op.opcode == "rcp.approx.f32")
    x = np.full(LANES, np.float32(3)).view(np.uint32)
    (result,) = run_numpy(operation, [x])
    for ulps, wrong in ((0, False), (1, False), (3, True)):  # the bound is 1 ulp of the exact value
        moved = to_words(result + np.uint32(ulps))[None]
        assert compare(operation, [x], moved).all() == wrong == compare(operation, [x], moved).any()


def test_refused_opcodes_are_found_by_halving():
    refused = {3, 4, 60}
    parts = list(accepted(list(range(64)), lambda some: None if refused & set(some) else some))
    assert {some[0] for module, some in parts if module is None} == refused
    assert sorted(x for _, some in parts for x in some) == list(range(64))


def ptxas_refusals(target, operations):
    """The operations that ptxas (of PATH) refuses for a target such as "sm_100a"."""
    version = "8.4" if target == "sm_90a" else "8.8"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kernels.ptx"

        def assemble(some):
            path.write_text(module_ptx(some, target, version))
            command = [
                "ptxas",
                "-arch",
                target,
                "-O0",
                str(path),
                "-o",
                str(path.with_suffix(".cubin")),
            ]
            return (
                True
                if subprocess.run(command, capture_output=True, check=False).returncode == 0
                else None
            )

        return [
            op for module, some in accepted(operations, assemble) if module is None for op in some
        ]


def ptxas_report(target, names):
    """Print, per family, the opcodes that ptxas refuses for a target."""
    if shutil.which("ptxas") is None:
        raise SystemExit("no ptxas in PATH; it comes with the CUDA toolkit")
    for family, operations in chosen(names).items():
        refused = ptxas_refusals(target, operations)
        print(
            f"{family}: {len(operations) - len(refused)} of {len(operations)} accepted for {target}"
        )
        for operation in refused:
            print(f"    refused: {operation.opcode} with {len(operation.sources)} sources")


def main(arguments):
    if arguments[:1] == ["--ptxas"]:
        ptxas_report(arguments[1], arguments[2:])
        return 0
    try:
        gpu = Gpu()
    except OSError as why:
        print(f"no CUDA device: {why}")
        return 2
    print(f"{gpu.name}, {gpu.target}, PTX ISA {gpu.version}, {LANES} lanes per opcode")
    total, all_missing, all_lines = 0, [], []
    for family, operations in chosen(arguments).items():
        compared, missing, lines = check_family(gpu, operations)
        differing = sum(not line.startswith(" ") for line in lines)
        print(
            f"{family:16} {len(compared):5} opcodes compared, {differing:4} differ, {len(missing):4} not on this GPU"
        )
        total += len(compared)
        all_missing += missing
        all_lines += lines
    print(f"\nnot accepted by this GPU's assembler: {' '.join(sorted(set(all_missing))) or 'none'}")
    print("\ndifferences:" if all_lines else "\nno differences", *all_lines, sep="\n")
    print(
        f"\n{total} opcodes compared, {sum(not line.startswith(' ') for line in all_lines)} differ"
    )
    return 1 if all_lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
