"""sm_100a PTX -> sm_90a PTX that computes the same on a Hopper GPU, with what Hopper lacks done in software.

    stays, and runs on the chip as it was compiled
        TMA copies, mbarriers, clusters, named barriers, elect, shared memory, arithmetic

    becomes a call of tcgen05.cu
        tcgen05.alloc, .dealloc, .ld, .st, .mma, .commit     tensor memory is global memory there
        clusterlaunchcontrol.try_cancel                      claims look into a table in global memory
        cp.async.bulk.tensor...cta_group::2                  may signal the peer's barrier

    becomes other instructions
        cp.async.bulk.tensor...tile::gather4                 four copies of a box of one row of 128 bytes or more
        redux.sync.max, .min of f32                          shuffles: each lane takes over its neighbours' five times
        fma, add, mul, sub .f32x2                            two scalar operations with the same rounding
        max, min with three inputs                           two of them with two
        clusterlaunchcontrol.query_cancel                    reads the software's own answer
        tcgen05.wait, tcgen05.fence                          fence.acq_rel.gpu, where they order memory

    is dropped
        setmaxnreg (a call needs registers of its own), tcgen05.relinquish_alloc_permit

What is none of this and starts with tcgen05 or clusterlaunchcontrol is refused by name. Whatever else Hopper
does not know is refused by ptxas.

A replaced instruction becomes a block of its own, so that its registers and labels need no unique names:

    @%p1 tcgen05.commit...b64 [%r8];        {
                                                @!%p1 bra tc_skip;
                                                ... call.uni cute_fa4_commit, (tc_0, tc_1);
                                            tc_skip: }
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from cute_fa4.hopper.ptx_text import Token, elements, tokens

TARGET = "sm_90a"
# The DSL writes a version as new as its toolkit, which an older ptxas refuses; what is left after the rewriting needs
# no newer one than this, which CUDA 12.9 knows.
PTX_VERSION = "8.8"

FUNCTIONS = """
.extern .func (.param .b32 r) cute_fa4_begin();
.extern .func cute_fa4_alloc(.param .b32 address, .param .b32 columns);
.extern .func cute_fa4_dealloc(.param .b32 taddr, .param .b32 columns);
.extern .func (.param .b64 r) cute_fa4_lane(.param .b32 taddr, .param .b32 last, .param .b32 shape);
.extern .func cute_fa4_mma(.param .b32 d, .param .b64 a, .param .b64 b, .param .b32 idesc, .param .b32 accumulate,
                           .param .b32 mode);
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

GRANTED = 1
"""The fourth word of an answer of cute_fa4_try_cancel that grants a cluster; the others are its ctaid."""


class UnsupportedInstruction(ValueError):
    """An instruction that Hopper lacks and that is not modelled either; the text names it."""


@dataclass(frozen=True)
class Rewritten:
    """ptx: for sm_90a, to be linked with tcgen05.cu. entries: names of its kernels.

    threads        of a CTA, the largest number that an entry declares, or 1024
    scratch_bytes  of dynamic shared memory that a launch must add
    """

    ptx: str
    entries: tuple[str, ...]
    threads: int
    scratch_bytes: int


def rewrite(ptx: str) -> Rewritten:
    """Rewrite a module. UnsupportedInstruction names what cannot be."""
    return _Rewriter().module(ptx)


def rewrite_instructions(ptx: str) -> str:
    """The same for statements that are no module: only they change."""
    return _Rewriter().text(ptx)


class _Rewriter:
    """One pass over a module.

    elected  predicates that elect.sync of the whole warp has set since the last label or branch: an instruction
             under one of them is reached by all 32 lanes, which can then share its work
    """

    def __init__(self):
        self._elected: set[str] = set()
        self._scratch = 0
        self._shared = ""  # the symbol where dynamic shared memory begins
        self._entry_begins = False

    def module(self, ptx: str) -> Rewritten:
        out = self.text(ptx)
        entries = tuple(re.findall(r"\.entry\s+([\w$]+)", ptx))
        threads = [_product(match) for match in re.findall(r"\.(?:req|max)ntid\s+([\d, ]+)", ptx)]
        return Rewritten(out, entries, max(threads, default=1024), self._scratch)

    def text(self, ptx: str) -> str:
        return "".join(map(self._token, tokens(ptx)))

    def _token(self, token: Token) -> str:
        if token.kind == "instruction":
            return self._instruction(token)
        if token.kind == "directive":
            return self._directive(token.text)
        if token.kind == "label":
            self._elected.clear()
        if token.text == "{" and self._entry_begins:
            self._entry_begins = False
            return "{\n" + _BEGIN
        return token.text

    def _directive(self, text: str) -> str:
        if text.startswith(".version"):
            return f".version {min(text.split()[1], PTX_VERSION, key=_version_key)}"
        if text.startswith(".target"):
            return re.sub(r"sm_\w+", TARGET, text)
        if text.startswith(".address_size"):
            return text + FUNCTIONS
        if text.startswith(".reg"):
            self._elected -= set(re.findall(r"[\w$%]+", text))
        dynamic = re.match(r"\.extern\s+\.shared\b.*?([\w$]+)\s*\[\s*\]", text, re.DOTALL)
        if dynamic:
            self._shared = dynamic[1]
        if ".entry" in text:
            self._entry_begins = True
        return text

    def _instruction(self, token: Token) -> str:
        opcode = token.opcode
        if (
            opcode.startswith("elect.sync")
            and not token.guard
            and int(token.operands[1], 0) & 0xFFFFFFFF == 0xFFFFFFFF
        ):
            self._elected.add(token.operands[0].partition("|")[2])
            return token.text
        if opcode.startswith(("bra", "brx", "ret", "exit", "call")):
            self._elected.clear()
            return token.text
        for prefix, suffix, rule in self._rules():
            if opcode.startswith(prefix) and opcode.endswith(suffix):
                body = rule(token)
                return token.text if body is None else body
        return token.text

    def _rules(self):
        """(what an opcode begins with, ends with, rule): the first that fits; a rule may return None to keep it."""
        return (
            ("tcgen05.alloc", "", _alloc),
            ("tcgen05.dealloc", "", _dealloc),
            ("tcgen05.relinquish_alloc_permit", "", _drop),
            ("tcgen05.wait::ld", "", _drop),
            ("tcgen05.wait::st", "", _fence),
            ("tcgen05.fence", "", _fence),
            ("tcgen05.ld", "", _load),
            ("tcgen05.st", "", _store),
            ("tcgen05.mma", "", self._mma),
            ("tcgen05.commit", "", _commit),
            ("tcgen05.", "", _refuse),
            ("clusterlaunchcontrol.try_cancel", "", _try_cancel),
            ("clusterlaunchcontrol.query_cancel.is_canceled", "", _is_canceled),
            ("clusterlaunchcontrol.query_cancel.get_first_ctaid", "", _first_ctaid),
            ("clusterlaunchcontrol.", "", _refuse),
            ("cp.async.bulk.tensor", "", self._bulk_load),
            ("setmaxnreg", "", _drop),
            ("", ".f32x2", _packed),
            ("redux.sync", ".f32", _reduction),
            ("max", ".f32", _three_inputs),
            ("min", ".f32", _three_inputs),
        )

    def _mma(self, token: Token) -> str:
        opcode, operands = token.opcode, list(token.operands)
        kind = next((k for k in KINDS if k in opcode.split(".")), None)
        if (
            kind is None
            or opcode.startswith(("tcgen05.mma.ws", "tcgen05.mma.sp"))
            or "block_scale" in opcode
        ):
            _refuse(token)
        if len(operands) == 6 and operands[4].startswith("{"):
            disabled = elements(operands.pop(4))
        else:
            disabled = []
        if len(operands) != 5:
            raise UnsupportedInstruction(f"{opcode} with {len(operands)} operands: {token.text}")
        d, a, b, idesc, accumulate = operands
        wide = token.guard in self._elected
        in_tmem = a.startswith("[")
        mode = (2 if "cta_group::2" in opcode else 1) | KINDS[kind] << KIND_SHIFT
        mode |= WARP_WIDE * wide | A_IN_TMEM * in_tmem
        body = [".reg .b32 tc_d, tc_e, tc_t;", ".reg .b64 tc_a;", _address(d, "tc_d")]
        if disabled:
            body += ["mov.b32 tc_t, 0;", *(f"or.b32 tc_t, tc_t, {lanes};" for lanes in disabled)]
            body += [_call("all_lanes", ("b32", "tc_t"))]
        if in_tmem:
            body += [_address(a, "tc_t"), "cvt.u64.u32 tc_a, tc_t;"]
        else:
            body += [f"mov.b64 tc_a, {a};"]
        constant = re.fullmatch(r"-?\d+", accumulate)
        body += [
            f"mov.b32 tc_e, {int(int(accumulate) != 0)};" if constant else f"selp.b32 tc_e, 1, 0, {accumulate};",
            _call("mma", ("b32", "tc_d"), ("b64", "tc_a"), ("b64", b), ("b32", idesc), ("b32", "tc_e"), ("b32", mode)),
        ]  # fmt: skip
        return _block("" if wide else token.guard, *body)

    def _bulk_load(self, token: Token) -> str | None:
        """A load for a pair may signal the barrier of the other CTA, which Hopper's TMA cannot."""
        if ".tile::scatter4" in token.opcode:
            _refuse(token)
        if ".tile::gather4" in token.opcode:
            return _gather(token, self._load_for_a_pair)
        if ".cta_group::2" in token.opcode:
            return self._load_for_a_pair(token)
        return token.text.replace(".cta_group::1", "") if ".cta_group::1" in token.opcode else None

    def _load_for_a_pair(self, token: Token) -> str:
        """One that completes on a barrier of this CTA, in the scratch bytes; the bytes are credited to the real one."""
        self._scratch = SCRATCH_BYTES
        destination, source, barrier, *rest = token.operands
        map_address = source.strip("[] ").partition(",")[0].strip()
        ctas = (
            f"cvt.u32.u16 tc_m, {rest[0]};" if "multicast" in token.opcode else "mov.b32 tc_m, 0;"
        )
        opcode = token.opcode.replace(".cta_group::2", "")
        if "multicast" in opcode:  # done by cute_fa4_load_end
            opcode, rest = opcode.replace(".multicast::cluster", ""), rest[1:]
        operands = ", ".join((destination, source, "[tc_s]", *rest))
        return _block(
            token.guard,
            ".reg .b32 tc_s, tc_b, tc_d, tc_m, tc_n, tc_w;",
            # the scratch barrier of this warp, in the last SCRATCH_BYTES of dynamic shared memory
            f"mov.b32 tc_s, {self._shared};",
            "mov.u32 tc_w, %dynamic_smem_size;",
            "add.u32 tc_s, tc_s, tc_w;",
            f"sub.u32 tc_s, tc_s, {SCRATCH_BYTES};",
            "mov.u32 tc_w, %tid.x;",
            "shr.u32 tc_w, tc_w, 5;",
            "mad.lo.u32 tc_s, tc_w, 8, tc_s;",
            _address(barrier, "tc_b"),
            ctas,
            _call("load_begin", ("b32", "tc_s"), ("b64", map_address), ("b32", "tc_m"), result=("b32", "tc_n")),
            f"{opcode} {operands};",
            _address(destination, "tc_d"),
            _call(
                "load_end",
                *(("b32", register) for register in ("tc_s", "tc_d", "tc_b", "tc_n", "tc_m")),
            ),
        )  # fmt: skip


# --- rules: a token -> its replacement


def _refuse(token: Token):
    raise UnsupportedInstruction(
        f"{token.opcode} has no counterpart on {TARGET} and is not modelled; accepted: what the "
        "head of cute_fa4/hopper/rewrite.py lists"
    )


def _drop(token: Token) -> str:
    return ""


def _fence(token: Token) -> str:
    return _block(token.guard, "fence.acq_rel.gpu;")


def _alloc(token: Token) -> str:
    address, columns = token.operands
    body = (
        ".reg .b32 tc_a;",
        _address(address, "tc_a"),
        _call("alloc", ("b32", "tc_a"), ("b32", columns)),
    )
    return _block(token.guard, *body)  # fmt: skip


def _dealloc(token: Token) -> str:
    taddr, columns = token.operands
    return _block(token.guard, _call("dealloc", ("b32", taddr), ("b32", columns)))


def _load(token: Token) -> str:
    registers, address, *_ = token.operands
    return _lanes(token, address, registers, "ld.volatile.global.b32 {register}, [tc_p+{bytes}];")


def _store(token: Token) -> str:
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
    """One access a register; a column of tensor memory is 512 bytes, a lane 4."""
    shape = next((name for name in SHAPES if f".{name}." in token.opcode), None)
    if shape is None or re.search(r"\.(red|pack|unpack|spcompress)", token.opcode):
        _refuse(token)
    names = elements(registers)
    places = [SHAPES[shape](r) for r in range(len(names))]
    accesses = [
        access.format(register=name, bytes=4 * lane + 512 * column)
        for name, (lane, column) in zip(names, places, strict=True)
    ]
    last = max(column for _, column in places)
    number = list(SHAPES).index(shape)
    return _block(
        token.guard,
        ".reg .b32 tc_a; .reg .b64 tc_p;",
        _address(address, "tc_a"),
        _call("lane", ("b32", "tc_a"), ("b32", last), ("b32", number), result=("b64", "tc_p")),
        *accesses,
    )


def _commit(token: Token) -> str:
    ctas = "mov.b32 tc_m, 0;"
    if "multicast" in token.opcode:
        ctas = f"cvt.u32.u16 tc_m, {token.operands[1]};"
    return _block(
        token.guard,
        ".reg .b32 tc_b, tc_m;",
        _address(token.operands[0], "tc_b"),
        ctas,
        _call("commit", ("b32", "tc_b"), ("b32", "tc_m")),
    )


def _try_cancel(token: Token) -> str:
    if ".shared::cta" not in token.opcode:
        _refuse(token)
    answer, barrier = token.operands
    multicast = int(".multicast::cluster::all" in token.opcode)
    return _block(
        token.guard,
        ".reg .b32 tc_a, tc_b;",
        _address(answer, "tc_a"),
        _address(barrier, "tc_b"),
        _call("try_cancel", ("b32", "tc_a"), ("b32", "tc_b"), ("b32", multicast)),
    )


_ANSWER = (
    ".reg .b64 tc_l, tc_h; .reg .b32 tc_0, tc_1, tc_2, tc_3;",
    "mov.b128 {{tc_l, tc_h}}, {};",
    "mov.b64 {{tc_0, tc_1}}, tc_l;",
    "mov.b64 {{tc_2, tc_3}}, tc_h;",
)


def _is_canceled(token: Token) -> str:
    predicate, handle = token.operands
    answer = "\n".join(_ANSWER).format(handle)
    return _block(token.guard, answer, f"setp.eq.u32 {predicate}, tc_3, {GRANTED};")


def _first_ctaid(token: Token) -> str:
    to, handle = token.operands
    answer = "\n".join(_ANSWER).format(handle)
    axis = re.search(r"::([xyz])\.", token.opcode)
    if axis:
        return _block(token.guard, answer, f"mov.b32 {to}, tc_{'xyz'.index(axis[1])};")
    moves = [f"mov.b32 {r}, tc_{i};" for i, r in enumerate(elements(to)[:3]) if r != "_"]
    return _block(token.guard, answer, *moves)


def _packed(token: Token) -> str:
    """An operation on two packed floats: unpack, one operation each with the same modifiers, pack."""
    operation = token.opcode.removesuffix("x2")
    count = len(token.operands)
    halves = ", ".join(f"tc_l{i}, tc_h{i}" for i in range(count))
    unpack = [f"mov.b64 {{tc_l{i}, tc_h{i}}}, {token.operands[i]};" for i in range(1, count)]
    each = [f"{operation} {', '.join(f'tc_{half}{i}' for i in range(count))};" for half in "lh"]
    pack = f"mov.b64 {token.operands[0]}, {{tc_l0, tc_h0}};"
    return _block(token.guard, f".reg .b32 {halves};", *unpack, *each, pack)


def _three_inputs(token: Token) -> str | None:
    if len(token.operands) != 4:
        return None
    to, a, b, c = token.operands
    first, second = f"{token.opcode} tc_m, {a}, {b};", f"{token.opcode} {to}, tc_m, {c};"
    return _block(token.guard, ".reg .b32 tc_m;", first, second)


def _gather(token: Token, load_for_a_pair) -> str:
    """Four rows are four boxes of one, each behind the other: the swizzle follows from the address alone."""
    destination, source, *rest = token.operands
    opcode = token.opcode.replace(".tile::gather4", ".tile").replace(".cta_group::1", "")
    the_map, _, coordinates = source.strip("[] ").partition(",")
    column, *rows = elements(coordinates)
    if len(rows) != 4:
        _refuse(token)
    copies = []
    for row in rows:
        operands = ("[tc_g]", f"[{the_map}, {{{column}, {row}}}]", *rest)
        copy = f"{opcode} {', '.join(operands)};"
        if ".cta_group::2" in opcode:
            copy = load_for_a_pair(replace(token, guard="", opcode=opcode, operands=operands))
        copies.append(copy)
        copies.append("add.u32 tc_g, tc_g, tc_o;")
    return _block(
        token.guard,
        ".reg .b32 tc_g, tc_o;",
        _address(destination, "tc_g"),
        _call("box_bytes", ("b64", the_map), result=("b32", "tc_o")),
        *copies,
    )


def _reduction(token: Token) -> str:
    """redux.sync.max or .min of float32 by a butterfly of shuffles."""
    operation = token.opcode.split(".")[2]
    if operation not in ("max", "min"):
        _refuse(token)
    modifiers = token.opcode.split(".")[3:-1]  # .abs, .NaN
    if "abs" in modifiers:
        _refuse(token)
    combine = ".".join((operation, *modifiers, "f32"))
    to, value, members = token.operands
    steps = [
        f"shfl.sync.bfly.b32 tc_y, tc_x, {distance}, 31, {members}; {combine} tc_x, tc_x, tc_y;"
        for distance in (16, 8, 4, 2, 1)
    ]
    if int(members, 0) & 0xFFFFFFFF != 0xFFFFFFFF:
        _refuse(token)
    return _block(
        token.guard,
        ".reg .f32 tc_x, tc_y;",
        f"mov.f32 tc_x, {value};",
        *steps,
        f"mov.f32 {to}, tc_x;",
    )


# --- PTX that is written


def _block(guard: str, *lines: str) -> str:
    """Statements in a scope of their own, skipped where the guard is false: a call takes several of them."""
    if not guard:
        return "\n".join(("{", *lines, "}"))
    inverse = guard[1:] if guard.startswith("!") else "!" + guard
    return "\n".join(("{", f"@{inverse} bra tc_skip;", *lines, "tc_skip:", "}"))


def _call(name: str, *arguments: tuple[str, object], result: tuple[str, str] | None = None) -> str:
    """A call of a function of tcgen05.cu; arguments and result are (type, register or number)."""
    lines = [
        f".param .{kind} tc_p{i}; st.param.{kind} [tc_p{i}], {value};"
        for i, (kind, value) in enumerate(arguments)
    ]
    passed = "(" + ", ".join(f"tc_p{i}" for i in range(len(arguments))) + ")"
    if result is None:
        return "\n".join(("{", *lines, f"call.uni cute_fa4_{name}, {passed};", "}"))
    kind, register = result
    lines += [
        f".param .{kind} tc_r;",
        f"call.uni (tc_r), cute_fa4_{name}, {passed};",
        f"ld.param.{kind} {register}, [tc_r];",
    ]
    return "\n".join(("{", *lines, "}"))


def _address(operand: str, register: str) -> str:
    """register = the value of a 32-bit address operand.

    >>> _address("[%r1+8]", "tc_a")
    'mov.b32 tc_a, %r1; add.u32 tc_a, tc_a, 8;'
    """
    inner = operand.strip("[] \t\n")
    base, plus, offset = inner.partition("+")
    move = f"mov.b32 {register}, {base.strip()};"
    return f"{move} add.u32 {register}, {register}, {offset.strip()};" if plus else move


def _product(numbers: str) -> int:
    result = 1
    for number in numbers.split(","):
        result *= int(number)
    return result


# A CTA whose cluster was claimed by another one has nothing to do.
_BEGIN = (
    "{\n.reg .pred tc_go; .reg .b32 tc_n;\n"
    + _call("begin", result=("b32", "tc_n"))
    + "\nsetp.ne.u32 tc_go, tc_n, 0;\n@tc_go bra tc_start;\nret;\ntc_start:\n}\n"
)


def _version_key(version: str) -> tuple[int, ...]:
    """
    >>> _version_key("9.4") < _version_key("10.0")
    True
    """
    return tuple(map(int, version.split(".")))
