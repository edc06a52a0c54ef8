"""Small raw-PTX kernels with their inputs and the memory that an independent oracle expects after the launch.

    case = Case(name, kernel(body, buffers=2), buffers=(out, data), expected=(out_after, data))
    run_on_emulator(case)      -> the buffers after the launch, to compare with case.expected

Every buffer is an input and an output: what a kernel must not touch is compared like what it must write. The
kernels are for sm_90a, so the same text runs on a Hopper GPU. Families are in *_cases.py in this folder.
"""

import mmap
from dataclasses import dataclass

import numpy as np

FULL = 0xFFFFFFFF
FRESH = 0xDEADBEEF
"""What result words hold before the launch: a thread that has exited leaves it."""
FILL = 0xC5
"""What shared memory holds before a copy lands in it."""
PATIENCE_NS = 1_000_000_000
"""How long a kernel polls an mbarrier before it traps: no case needs a thousandth of it. (On the emulator the
clock counts instructions, and a wait that never ends is its Deadlock.)"""


@dataclass(frozen=True)
class Case:
    """One launch of the kernel ``bench`` and what is known about its result.

    maps      TensorMapFields of the parameters map0, map1, ...
    open      per buffer: None, or bool mask of the bytes that PTX ISA leaves open (not compared with the GPU)
    question  what the GPU's open bytes answer
    refusal   pattern of the message with which the emulator refuses the kernel, "" when it runs it
    disagreement  what the emulator does otherwise than the expectation, "" when it agrees
    section   PTX ISA section that defines the result
    """

    name: str
    text: str
    buffers: tuple
    expected: tuple
    maps: tuple = ()
    grid: tuple = (1, 1, 1)
    block: tuple = (32, 1, 1)
    cluster: tuple = (1, 1, 1)
    shared: int = 0
    open: tuple = ()
    question: str = ""
    refusal: str = ""
    disagreement: str = ""
    section: str = ""

    def differences(self, got, masked=True):
        """Lines: words of each buffer that differ from the expectation, the first four of each.

        masked  leave out the open bytes
        """
        lines = []
        for number, (g, e) in enumerate(zip(got, self.expected, strict=True)):
            g, e = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (g, e))
            differs = g != e
            if masked and self.open and self.open[number] is not None:
                differs &= ~self.open[number]
            size = 4 if len(g) % 4 == 0 else 1
            words = np.flatnonzero(differs.reshape(-1, size).any(1))
            if len(words):
                g, e = (x.view(f"u{size}") for x in (g, e))
                lines.append(
                    f"buffer {number}: {len(words)} of {len(g)} {8 * size}-bit words differ"
                )
                lines += [
                    f"    [{w}] got {int(g[w]):#x}, expected {int(e[w]):#x}" for w in words[:4]
                ]
        return lines

    def open_values(self, got):
        """The open 32-bit words of every buffer, without repetition: text."""
        found = []
        for g, mask in zip(got, self.open, strict=True):
            if mask is not None:
                words = np.ascontiguousarray(g).reshape(-1).view(np.uint32)
                chosen = mask.reshape(-1, 4).any(1)
                found += [hex(int(w)) for w in np.unique(words[chosen])]
        return " ".join(found[:12]) + (" ..." if len(found) > 12 else "")


# --- text ---------------------------------------------------------------------------------------------------

_MODULE = """.version 8.4
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 dyn[];
.visible .entry bench({parameters})
{directives}
{{
    .reg .pred %p<16>;
    .reg .b16 %h<16>;
    .reg .b32 %r<64>;
    .reg .b64 %d<64>;
    .reg .f32 %f<16>;
    .reg .b32 tid, lane, warp, cta, thread, smem, one;
    .reg .b64 mine{addresses};
    {load}
    mov.u32 lane, %laneid;
    mov.u32 tid, %tid.z; mov.u32 one, %ntid.y; mul.lo.s32 tid, tid, one;
    mov.u32 one, %tid.y; add.s32 tid, tid, one; mov.u32 one, %ntid.x; mul.lo.s32 tid, tid, one;
    mov.u32 one, %tid.x; add.s32 tid, tid, one; shr.u32 warp, tid, 5;
    mov.u32 cta, %ctaid.z; mov.u32 one, %nctaid.y; mul.lo.s32 cta, cta, one;
    mov.u32 one, %ctaid.y; add.s32 cta, cta, one; mov.u32 one, %nctaid.x; mul.lo.s32 cta, cta, one;
    mov.u32 one, %ctaid.x; add.s32 cta, cta, one;
    mad.lo.s32 thread, cta, {threads}, tid;
    mul.wide.u32 mine, thread, 4; add.s64 mine, mine, a0;
    mov.u32 smem, dyn;
    setp.eq.b32 %p0, tid, 0;
    {body}
END:
    ret;
}}
"""


def kernel(body, buffers=1, maps=0, threads=32, cluster=None):
    """PTX of ``bench``. Ready for the body: tid and cta (linear), thread (in the grid), lane, warp, smem (dynamic
    shared memory, aligned to 1024), a0, a1, ... (addresses of the buffers), m0, ... (tensor maps), mine (this
    thread's word in buffer 0), %p0 (tid is 0), and the registers %p %h %r %d %f. The label END ends the thread.
    """
    parameters = [f".param .align 64 .b8 map{i}[128]" for i in range(maps)]
    parameters += [f".param .u64 p{i}" for i in range(buffers)]
    load = [f"ld.param.u64 a{i}, [p{i}];" for i in range(buffers)]
    load += [f"mov.b64 m{i}, map{i}; cvta.param.u64 m{i}, m{i};" for i in range(maps)]
    names = [f"a{i}" for i in range(buffers)] + [f"m{i}" for i in range(maps)]
    size = ", ".join(map(str, cluster or ()))
    return _MODULE.format(
        parameters=", ".join(parameters),
        directives=f".explicitcluster .reqnctapercluster {size}" if cluster else "",
        addresses="".join(f", {name}" for name in names),
        load="\n    ".join(load),
        body=body,
        threads=threads,
    )


class Results:
    """Words that threads store in buffer 0, one row of ``threads`` words per saved register."""

    def __init__(self, threads=32):
        self.threads = threads
        self.rows = []

    def save(self, register, expected):
        """PTX that stores a 32-bit register; expected: one word, or a word per thread of the grid."""
        offset = 4 * self.threads * len(self.rows)
        values = np.broadcast_to(np.asarray(expected, np.int64), (self.threads,))
        self.rows.append((values & FULL).astype(np.uint32))
        return f"st.global.b32 [mine+{offset}], {register};\n    "

    def save_pred(self, predicate, expected):
        """PTX that stores a predicate as 0 or 1; expected: bool, one or per thread."""
        value = self.save("%r63", np.asarray(expected).astype(np.int64))
        return f"selp.b32 %r63, 1, 0, {predicate}; {value}"

    @property
    def expected(self):
        return np.stack(self.rows)

    @property
    def fresh(self):
        return np.full((len(self.rows), self.threads), FRESH, np.uint32)


def wait(address, parity, semantics=""):
    """PTX: wait for the phase of a parity of an mbarrier, trap after PATIENCE_NS."""
    return f"""{{ .reg .pred done; .reg .b64 start, now; mov.u64 start, %globaltimer;
    POLL: mbarrier.try_wait.parity{semantics}.shared::cta.b64 done, [{address}], {parity};
    @done bra PASSED; mov.u64 now, %globaltimer; sub.s64 now, now, start;
    setp.lt.u64 done, now, {PATIENCE_NS}; @done bra POLL; trap;
    PASSED: }}
    """


def fill_shared(offset, nbytes, threads):
    """PTX: all threads set shared bytes [offset, offset + nbytes) to FILL and order that before copies."""
    return f"""{{ .reg .pred over; .reg .b32 at, to, value; mov.b32 value, {FILL * 0x01010101:#x};
    mad.lo.s32 at, tid, 4, {offset};
    NEXT: setp.ge.u32 over, at, {offset + nbytes}; @over bra LAST; add.s32 to, smem, at;
    st.shared.b32 [to], value; add.s32 at, at, {4 * threads}; bra NEXT;
    LAST: }}
    fence.proxy.async.shared::cta; bar.sync 0;
    """


def read_shared(offset, nbytes, threads, address="a0", to=0):
    """PTX: all threads copy shared bytes [offset, offset + nbytes) to a buffer at byte ``to``."""
    return f"""{{ .reg .pred over; .reg .b32 at, from, value; .reg .b64 place; mul.lo.s32 at, tid, 4;
    NEXT: setp.ge.u32 over, at, {nbytes}; @over bra LAST; add.s32 from, smem, at;
    ld.shared.b32 value, [from+{offset}]; cvt.u64.u32 place, at; add.s64 place, place, {address};
    st.global.b32 [place+{to}], value; add.s32 at, at, {4 * threads}; bra NEXT;
    LAST: }}
    bar.sync 0;
    """


def write_shared(offset, nbytes, threads, address="a1", start=0):
    """PTX: all threads copy bytes of a buffer to shared [offset, offset + nbytes), ordered before copies."""
    return f"""{{ .reg .pred over; .reg .b32 at, to, value; .reg .b64 place; mul.lo.s32 at, tid, 4;
    NEXT: setp.ge.u32 over, at, {nbytes}; @over bra LAST; cvt.u64.u32 place, at;
    add.s64 place, place, {address}; ld.global.b32 value, [place+{start}]; add.s32 to, smem, at;
    st.shared.b32 [to+{offset}], value; add.s32 at, at, {4 * threads}; bra NEXT;
    LAST: }}
    fence.proxy.async.shared::cta; bar.sync 0;
    """


def init_barriers(*counts):
    """PTX: thread 0 initialises mbarriers at smem, smem + 8, ...; visible to copies and to the cluster."""
    inits = "".join(
        f"@%p0 mbarrier.init.shared::cta.b64 [smem+{8 * i}], {count}; "
        for i, count in enumerate(counts)
    )
    return (
        inits
        + "fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta; bar.sync 0;\n    "
    )


CLUSTER_SYNC = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n    "


# --- running on the emulator ------------------------------------------------------------------------------------


def aligned_copy(array):
    """A copy in a separate page: aligned as device allocations are, and far from address 0, where the heap may be."""
    array = np.ascontiguousarray(array)
    storage = np.frombuffer(mmap.mmap(-1, max(array.nbytes, 1)), np.uint8)
    copy = storage[: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def run_on_emulator(case, mode="in_order", seed=0):
    """The buffers after the launch. Raises what the emulator raises."""
    # Imported here: the process that runs the cases on the GPU does without the emulator.
    from cute_fa4.emulator.machine.memory import GlobalMemory
    from cute_fa4.emulator.ptx.parser import parse
    from cute_fa4.emulator.run.launch import execute_grid
    from cute_fa4.emulator.run.program import Program

    module = parse(case.text)
    program = Program(module.kernels["bench"], module)
    buffers = [aligned_copy(buffer) for buffer in case.buffers]
    memory = GlobalMemory()
    for number, buffer in enumerate(buffers):
        memory.register(buffer.ctypes.data, buffer.nbytes, f"buffer {number}", keep=buffer)
    addresses = [buffer.ctypes.data for buffer in buffers]
    maps = b"".join(fields.encode(addresses[fields.buffer]) for fields in case.maps)
    execute_grid(
        program,
        params=maps + np.array(addresses, np.uint64).tobytes(),
        grid=case.grid,
        block=case.block,
        cluster=case.cluster,
        dynamic_shared_bytes=case.shared,
        memory=memory,
        mode=mode,
        seed=seed,
    )
    return buffers


def all_cases():
    """name -> Case, of all families."""
    from tests.emulator.gpu import (
        barrier_cases,
        cluster_cases,
        copy_cases,
        memory_cases,
        tensor_copy_cases,
        warp_cases,
    )

    families = (
        warp_cases,
        barrier_cases,
        memory_cases,
        copy_cases,
        tensor_copy_cases,
        cluster_cases,
    )
    cases = [case for family in families for case in family.cases()]
    named = {case.name: case for case in cases}
    if len(named) != len(cases):
        raise ValueError("two cases have the same name")
    return named
