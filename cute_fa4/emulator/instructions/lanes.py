"""Straight-line register arithmetic in C: one call executes a sequence of instructions for one warp.

    run = compile_run(instructions)                  once per run, at decode
    run.execute(R_ptr, P_ptr, active_mask)           per warp and visit

    instruction table --> one C function per operation, loops over the 32 lanes   (compiled on first execution)
    instructions      --> packed records: function, guard, operand offsets        (an immediate is a row of constants)

For each record: mask = active & guard. If all 32 lanes are active, the function writes to the registers directly.
Otherwise it writes to a scratch row, and only the lanes in the mask are copied. Register rows are 128 bytes, so an
operand is an offset from one of four bases: registers, predicates, constants, or a sink for ``_``.

The C is compiled for this machine's processor and is bit-exact: no contraction, no reassociation, subnormals on.
"""

import ctypes
import functools
import re
from pathlib import Path

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import form_of, is_lanes
from cute_fa4.emulator.ptx.errors import UnknownInstruction
from cute_fa4.emulator.ptx.lane_types import C_ELEMENT, LANES
from cute_fa4.system.c_compiler import build_shared_library

__all__ = ["Run", "compile_run", "is_lanes"]

FLAGS = (
    "-O3",
    "-fPIC",
    "-march=native",
    "-ffp-contract=off",  # a * b + c rounds twice unless the opcode is fma
    "-fno-math-errno",
    "-fno-trapping-math",  # lets comparisons become vector selects; values are unchanged
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fopenmp-simd",
)

REGISTERS, PREDICATES, CONSTANTS, BIN = range(4)
ROW_BYTES = 4 * LANES

OPERAND = np.dtype([("base", "<u4"), ("flip", "<u4"), ("offset", "<i8")])
RECORD = np.dtype(
    [
        ("function", "<u8"),
        ("guard", "<i4"),  # predicate index, or -1
        ("guard_flip", "<u4"),  # all ones for @!p
        ("results", "<u4"),
        ("rows", "u1", 4),  # of each result: 0 for a predicate, 1, 2
        ("to", OPERAND, 4),
        ("from", OPERAND, 4),
    ]
)

EXECUTE = """
typedef struct { u32 base, flip; s64 offset; } Operand;
typedef struct Record Record;
typedef void Function(const Record *, void *const *, char *const *);
struct Record {
    Function *function;
    s32 guard;
    u32 guard_flip, results;
    u8 rows[4];
    Operand to[4], from[4];
};
#define FROM(n) (base[i->from[n].base] + i->from[n].offset)

/* Copy the lanes in mask of a result from scratch to its register. */
static void merge(char *to, const char *scratch, int rows, u32 mask) {
    if (rows == 0) {
        u32 *p = (u32 *)to;
        *p = (*p & ~mask) | (*(const u32 *)scratch & mask);
    } else if (rows == 1) {
        u32 *r = (u32 *)to;
        const u32 *s = (const u32 *)scratch;
        #pragma omp simd
        for (int l = 0; l < 32; l++) r[l] = mask >> l & 1 ? s[l] : r[l];
    } else {
        u64 *r = (u64 *)to;
        const u64 *s = (const u64 *)scratch;
        #pragma omp simd
        for (int l = 0; l < 32; l++) r[l] = mask >> l & 1 ? s[l] : r[l];
    }
}

void execute(const Record *i, s64 count, char *constants, char *R, char *P, u32 active) {
    __typeof__(ieee_mode()) mode = ieee_mode();
    _Alignas(64) char scratch[4][256];
    _Alignas(64) char bin[256];
    char *const base[4] = {R, P, constants, bin};
    for (const Record *end = i + count; i < end; i++) {
        u32 mask = active;
        if (i->guard >= 0) mask &= ((const u32 *)P)[i->guard] ^ i->guard_flip;
        if (mask == 0) continue;
        void *to[4];
        int whole = mask == 0xffffffffu;
        for (u32 n = 0; n < i->results; n++)
            to[n] = whole ? base[i->to[n].base] + i->to[n].offset : scratch[n];
        i->function(i, to, base);
        if (!whole)
            for (u32 n = 0; n < i->results; n++)
                merge(base[i->to[n].base] + i->to[n].offset, scratch[n], i->rows[n], mask);
    }
    restore_mode(mode);
}
"""


class Run:
    """A straight-line sequence of lanes instructions, packed for execution.

    R is a C-contiguous uint32 array (rows, 32), P a uint32 array (predicates,); execute takes their addresses.
    """

    def __init__(self, instructions):
        self._constants = _Constants()
        self._operations = []
        records = np.zeros(len(instructions), RECORD)
        for record, ins in zip(records, instructions, strict=True):
            operation = _pack(record, ins, self._constants)
            self._operations.append(operation)
        self._records = records
        self._constant_rows = self._constants.array()
        self._linked = None
        _pending.append(self)

    def __len__(self):
        return len(self._records)

    def execute(self, R_ptr, P_ptr, active_mask):
        """Execute all instructions for the lanes in active_mask (a 32-bit int); addresses are ints."""
        if self._linked is None:
            link()
        self._linked(R_ptr, P_ptr, active_mask)

    def _bind(self, functions, execute):
        self._records["function"] = [functions[operation.name] for operation in self._operations]
        self._linked = functools.partial(
            execute,
            self._records.ctypes.data,
            len(self._records),
            self._constant_rows.ctypes.data,
        )
        self.execute = self._linked  # later calls go to C without a Python frame between


def compile_run(instructions):
    """Run of a list of lanes instructions (see ptx_parser.Instruction).

    Raises UnknownInstruction when an operand is a special register or a symbol, or when a register's width
    does not fit the opcode's type.
    """
    return Run(list(instructions))


# --- operands ---------------------------------------------------------------------------------------


class _Constants:
    """Rows of 32 equal values for immediates; equal immediates share one."""

    def __init__(self):
        self.rows = []
        self.offsets = {}

    def offset(self, value, rows):
        bits = (0, 32, 64)[rows]
        key = value & (1 << bits) - 1 if bits else bool(value)
        if (key, rows) not in self.offsets:
            self.offsets[key, rows] = len(self.rows) * ROW_BYTES
            if rows == 2:
                self.rows += list(np.full(LANES, key, np.uint64).view(np.uint32).reshape(2, LANES))
            else:
                self.rows.append(np.full(LANES, key if rows else -int(key) & 0xFFFFFFFF, np.uint32))
        return self.offsets[key, rows]

    def array(self):
        """The rows as one array that starts on a 64-byte boundary, for vector loads."""
        rows = np.array(self.rows, np.uint32).reshape(-1, LANES)
        raw = np.zeros(rows.size + 16, np.uint32)
        start = -raw.ctypes.data % 64 // 4
        aligned = raw[start : start + rows.size].reshape(rows.shape)
        aligned[:] = rows
        return aligned


def _pack(record, ins, constants):
    operation, results, sources = form_of(ins)
    record["guard"] = -1
    if ins.guard is not None:
        record["guard"] = ins.guard[0]
        record["guard_flip"] = 0xFFFFFFFF if ins.guard[1] else 0
    record["results"] = len(results)
    for n, (kind, operand) in enumerate(zip(operation.results, results, strict=True)):
        record["rows"][n] = kind.rows
        record["to"][n] = _place(ins, kind, operand, constants, result=True)
    for n, (kind, operand) in enumerate(zip(operation.sources, sources, strict=True)):
        record["from"][n] = _place(ins, kind, operand, constants, result=False)
    return operation


def _place(ins, kind, operand, constants, result):
    """(base, flip, offset) of an operand; UnknownInstruction when it does not fit the type."""
    from cute_fa4.emulator.ptx.parser import Imm, Pred, Reg, Sink

    if isinstance(operand, Reg) and _fits(kind, operand.bits, result):
        return REGISTERS, 0, operand.row * ROW_BYTES
    if isinstance(operand, Pred) and kind.rows == 0 and not (result and operand.negated):
        return PREDICATES, 0xFFFFFFFF if operand.negated else 0, 4 * operand.index
    if isinstance(operand, Imm) and not result:
        return CONSTANTS, 0, constants.offset(operand.value, kind.rows)
    if isinstance(operand, Sink) and result:
        return BIN, 0, 0
    raise UnknownInstruction(
        f"{ins.opcode}: the {'result' if result else 'source'} {operand} does not fit type {kind.name}\n"
        f"  PTX line {ins.line}: {ins.text}\n"
        f"  accepted: a register of {kind.register_bits} bits"
        + ("" if result else ", an immediate")
        + "; special registers and symbols are moved by the Python handler"
    )


def _fits(kind, bits, result):
    if kind.register_bits == bits:
        return True
    # cvt may read the low part of a wider register and zero-extend into one (PTX ISA, "Operand
    # Size Exceeding Instruction-Type Size"); a signed
    # narrow result in a 32-bit register would need another extension than the table's
    return kind.register_bits == 16 and bits == 32 and not (result and kind.name in ("s8", "s16"))


# --- C ----------------------------------------------------------------------------------------------

RESULT_NAMES = "defg"
SOURCE_NAMES = "abch"


def c_function(operation):
    """C source of the function that executes one operation for 32 lanes."""
    logic = all(kind.rows == 0 for kind in operation.results + operation.sources)
    body = _predicate_logic(operation) if logic else _lane_loop(operation)
    lines = "\n".join("    " + line for line in body)
    head = f"static void {operation.name}(const Record *i, void *const *to, char *const *base) {{"
    return f"/* {operation.opcode} */\n{head}\n{lines}\n}}\n"


def _predicate_logic(operation):
    """Predicates are words of 32 lanes: logic on them needs no loop."""
    for n, _ in enumerate(operation.sources):
        yield f"u32 {SOURCE_NAMES[n]} = *(const u32 *)FROM({n}) ^ i->from[{n}].flip;"
    yield f"u32 d; {operation.c};"
    yield "*(u32 *)to[0] = d;"


def _lane_loop(operation):
    load, store, after, reduced = [], [], [], []
    for n, kind in enumerate(operation.results):
        name = RESULT_NAMES[n]
        if kind.rows == 0:
            yield f"u32 {name.upper()} = 0;"
            reduced.append(name.upper())
            load.append(f"int {name};")
            store.append(f"{name.upper()} |= {name} ? 1u << l : 0u;")
            after.append(f"*(u32 *)to[{n}] = {name.upper()};")
        else:
            yield f"{C_ELEMENT[kind.element.name]} *{name.upper()} = to[{n}];"
            load.append(f"{kind.c_result} {name};")
            value = re.sub(r"\bx\b", name, kind.store)
            store.append(f"{name.upper()}[l] = {value};")
    for n, kind in enumerate(operation.sources):
        name = SOURCE_NAMES[n]
        if kind.rows == 0:
            yield f"u32 {name.upper()} = *(const u32 *)FROM({n}) ^ i->from[{n}].flip;"
            load.append(f"int {name} = {name.upper()} >> l & 1;")
        else:
            yield f"const {C_ELEMENT[kind.element.name]} *{name.upper()} = (const void *)FROM({n});"
            element = re.sub(r"\bx\b", f"{name.upper()}[l]", kind.load)
            load.append(f"{kind.c} {name} = {element};")
    yield "#pragma omp simd" + (f" reduction(|:{', '.join(reduced)})" if reduced else "")
    yield f"for (int l = 0; l < {operation.count}; l++) {{"
    yield "    " + " ".join(load)
    yield f"    {operation.c};"
    yield "    " + " ".join(store)
    yield "}"
    yield from after


def _header(name):
    return (Path(__file__).parent / name).read_text()


def c_source(operations):
    """The C file for a list of operations: arithmetic, one function each, their table, and execute."""
    functions = "\n".join(c_function(operation) for operation in operations)
    table = ",\n".join("    " + operation.name for operation in operations)
    return (
        "/* Generated from the instruction table. */\n"
        f"{_header('lane_arithmetic.h')}\n{_header('lane_f64.h')}\n{_header('../machine/float_mode.h')}\n"
        f"{EXECUTE}\n{functions}\n"
        f"Function *const functions[] = {{\n{table}\n}};\n"
    )


# --- linking: operations are compiled when the first run that needs them executes -----------------------

_pending: list = []
_functions: dict = {}
_execute = None


def link():
    """Compile the missing functions of all existing runs into one library, and bind the runs.

    Execution does this on demand. Calling it earlier lets a caller keep ``run.execute`` as a bare C call. An
    exception may occur at any line: a run stays pending until it is bound.
    """
    global _execute
    runs = list(_pending)
    wanted = {op.name: op for run in runs for op in run._operations if op.name not in _functions}
    if wanted or _execute is None:
        operations = [wanted[name] for name in sorted(wanted)]
        library = ctypes.PyDLL(str(build_shared_library("lanes", c_source(operations), FLAGS)))
        addresses = (ctypes.c_void_p * len(operations)).in_dll(library, "functions")
        _functions.update(
            (op.name, address) for op, address in zip(operations, addresses, strict=True)
        )
        if _execute is None:
            execute, pointer = library.execute, ctypes.c_void_p
            execute.restype = None
            execute.argtypes = [pointer, ctypes.c_int64, *(pointer,) * 3, ctypes.c_uint32]
            _execute = execute
    for run in runs:
        run._bind(_functions, _execute)
    del _pending[: len(runs)]
