"""The data structures of parsed PTX: operands, instructions, variables, kernels.

st.shared.v2.b32 [%r9+8], {%r1, _};
Instruction("st.shared.v2.b32", (Addr(Reg(9, 32), 8), Vec((Reg(1, 32), Sink()))), guard=None, ...)
"""

import linecache
from dataclasses import dataclass, field

RESERVED_SHARED_BYTES = 1024
"""First bytes of shared memory that the system keeps on sm_90 and later (CUDA Programming Guide,
"Technical Specifications per Compute Capability": reserved shared memory per thread block)."""


def place(source) -> str:
    """(file, line) for reports; the folder distinguishes files with the same name.

    >>> place(("/somewhere/cute_fa4/sm100/two_tiles/kernel.py", 88))
    'two_tiles/kernel.py:88'
    """
    file, line = source
    return f"{'/'.join(file.split('/')[-2:])}:{line}"


def source_text(source) -> str:
    """The present text of a (file, line); "" if it cannot be read."""
    return "" if source is None else linecache.getline(*source).strip()


def location_lines(ins) -> list:
    """Lines of a report about an instruction: PTX, Python, and the calling role, with their texts."""
    lines = [f"PTX line {ins.line}: {ins.text}"]
    sources = [("Python line", ins.source)]
    if ins.role_source != ins.source:
        sources.append(("called from", ins.role_source))
    for what, source in sources:
        if source is not None:
            lines.append(f"{what} {source[0]}:{source[1]}")
            text = source_text(source)
            if text:
                lines.append(f"    {text}")
    return lines


@dataclass(frozen=True, slots=True)
class Reg:
    """A register: first row in the warp's array, and width (16, 32, 64 or 128 bits)."""

    row: int
    bits: int

    def halves(self):
        """The two 64-bit halves of a 128-bit register, the less significant first."""
        return Reg(self.row, 64), Reg(self.row + 2, 64)


@dataclass(frozen=True, slots=True)
class Pred:
    """A predicate register, possibly negated (``!%p1`` as an operand)."""

    index: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Imm:
    """A constant; float literals (0f3F800000) are kept as raw bits with is_float_bits set."""

    value: int
    is_float_bits: bool = False


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable: space "shared", "param", "global", "const" or "local", and offset.

    In shared and local memory the offset counts from the start of the space, in param from the first
    parameter, in global and const from the start of the variable.
    """

    name: str
    space: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Addr:
    """``[base + offset]``; a tensor address ``[map, {c0, c1}]`` also has coords."""

    base: object
    offset: int = 0
    coords: tuple | None = None


@dataclass(frozen=True, slots=True)
class Vec:
    """``{a, b, c, d}``."""

    items: tuple


@dataclass(frozen=True, slots=True)
class Special:
    """A special register, with its percent sign: "%tid.x"."""

    name: str


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target; unique in the kernel."""

    target: str


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``: an unused result."""


@dataclass(frozen=True, slots=True)
class Pair:
    """``first|second``: the two results of shfl, elect, setp."""

    first: object
    second: object


@dataclass(frozen=True, slots=True)
class Instruction:
    """One PTX instruction.

    guard   (predicate index, negated) or None
    line    line in the PTX text, from 1
    source  (Python file, line) of the nearest .loc, or None
    role_source  the last location outside of helper files and of the DSL's own files, or None
    prepared     cached operand information of the function that executes it, see prepare()
    """

    opcode: str
    operands: tuple
    guard: tuple | None
    line: int
    source: tuple | None
    text: str
    role_source: tuple | None = None
    prepared: object = field(default=None, init=False, compare=False, repr=False)

    def prepare(self, what):
        """Cache a value that is the same at every execution; returns it."""
        object.__setattr__(self, "prepared", what)
        return what


@dataclass(frozen=True, slots=True)
class Variable:
    """A declared variable or parameter: offset in its space, size and alignment in bytes; kind: "f32", "b8", ..."""

    name: str
    space: str
    offset: int
    nbytes: int
    align: int
    data: bytes | None = None
    kind: str = ""


@dataclass
class Kernel:
    """One .entry of a module.

    rows, predicates     sizes of a warp's register array (rows of 32 x 32 bits) and predicate array
    labels               label -> index into instructions
    params               Variables of space "param", in order
    dynamic_shared_offset  shared offset of the first dynamic byte, after reserved and static bytes
    local_bytes          bytes of .local variables per lane
    directives           {".maxnreg": (64,), ".reqntid": (128, 1, 1), ...}
    tables               label of a .branchtargets list -> labels in it
    """

    name: str
    params: list = field(default_factory=list)
    instructions: list = field(default_factory=list)
    labels: dict = field(default_factory=dict)
    tables: dict = field(default_factory=dict)
    rows: int = 0
    predicates: int = 0
    variables: dict = field(default_factory=dict)
    dynamic_shared_offset: int = RESERVED_SHARED_BYTES
    local_bytes: int = 0
    directives: dict = field(default_factory=dict)

    @property
    def param_bytes(self):
        """Size of the parameter block."""
        return max((p.offset + p.nbytes for p in self.params), default=0)


@dataclass
class PtxModule:
    """A parsed PTX text: kernels by entry name, and module-level variables by name."""

    kernels: dict = field(default_factory=dict)
    variables: dict = field(default_factory=dict)
    target: str = ""
    text: str = ""


SPECIAL_REGISTERS = frozenset(
    "%clock %clock64 %clock_hi %globaltimer %globaltimer_lo %globaltimer_hi %laneid %warpid %nwarpid %smid %nsmid "
    "%gridid %clusterid.x %clusterid.y %clusterid.z %nclusterid.x %nclusterid.y %nclusterid.z "
    "%cluster_ctaid.x %cluster_ctaid.y %cluster_ctaid.z %cluster_nctaid.x %cluster_nctaid.y %cluster_nctaid.z "
    "%cluster_ctarank %cluster_nctarank %is_explicit_cluster %tid.x %tid.y %tid.z %ntid.x %ntid.y %ntid.z "
    "%ctaid.x %ctaid.y %ctaid.z %nctaid.x %nctaid.y %nctaid.z %lanemask_eq %lanemask_le %lanemask_lt "
    "%lanemask_ge %lanemask_gt %dynamic_smem_size %total_smem_size %aggr_smem_size".split()
)
