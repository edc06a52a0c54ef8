"""Ctrl-C at any moment of a launch: nothing of it is left behind, and the next launch is as if it had not been.

A trace function raises KeyboardInterrupt at one line of the emulator after the other (initialisation is the subject
of tests/aot/test_interruptions.py). An interrupt of the clean-up itself may leave memory registered or a use() in
force, which changes no later result. The kernel has what a launch can leave half done: tensor memory, a product and
bulk copies in flight, an mbarrier, threads that wait, memory that is registered for the launch.
"""

import ast
import functools
import gc
import sys

import pytest
import torch

from cute_fa4 import emulator
from cute_fa4.emulator.host import driver_api, ptx_files
from cute_fa4.emulator.machine import observer
from cute_fa4.system import progress
from tests import pairwise

KERNEL = """.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 dyn[];
.visible .entry product(.param .u64 out, .param .u64 source) {
    .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<8>;
    mov.u32 %r1, dyn; mov.u32 %r2, %tid.x; ld.param.b64 %rd1, [out]; ld.param.b64 %rd2, [source];
    setp.eq.u32 %p1, %r2, 0; setp.lt.u32 %p2, %r2, 32;
    add.u32 %r3, %r1, 8192; add.u32 %r4, %r1, 8208;
    @%p1 mbarrier.init.shared::cta.b64 [%r3], 1;
    @%p1 fence.mbarrier_init.release.cluster;
    @!%p2 bra ready;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 32;
ready:
    bar.sync 0;
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 %rd3, [%r3], 4096;
    @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd2], 4096, [%r3];
full:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3], 0;
    @!%p3 bra full;
    tcgen05.fence::after_thread_sync;
    ld.shared.b32 %r5, [%r4];
    shr.u32 %r6, %r1, 4; cvt.u64.u32 %rd4, %r6; or.b64 %rd4, %rd4, {descriptor};
    setp.ne.u32 %p3, %r1, %r1;
    @%p1 tcgen05.mma.cta_group::1.kind::f16 [%r5], %rd4, %rd4, {instruction}, %p3;
    @%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3];
done:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3], 1;
    @!%p3 bra done;
    tcgen05.fence::after_thread_sync;
    and.b32 %r6, %r2, 0x60; shl.b32 %r6, %r6, 16; add.u32 %r6, %r6, %r5;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 %r7, [%r6];
    tcgen05.wait::ld.sync.aligned;
    st.shared.b32 [%r1], 0;
    mul.wide.u32 %rd5, %r2, 4; add.s64 %rd5, %rd5, %rd1;
    st.global.b32 [%rd5], %r7;
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    @!%p2 bra end;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r5, 32;
end:
    ret;
}
"""

ROWS, COLUMNS = 128, 32
# No swizzle, K-major: 8 rows of 16 bytes are 128 bytes; the second half of K follows after all rows.
DESCRIPTOR = (16 * ROWS >> 4) << 16 | (128 >> 4) << 32 | 1 << 46
INSTRUCTION = 1 << 4 | 1 << 7 | 1 << 10 | COLUMNS // 8 << 17 | ROWS // 16 << 24
PACKAGE = emulator.__path__[0]


@functools.cache
def kernel():
    body = KERNEL.replace("{descriptor}", str(DESCRIPTOR)).replace(
        "{instruction}", str(INSTRUCTION)
    )
    return ptx_files.load(body, checks="ptx")


def launch(source, out):
    out.fill_(-1)
    kernel().launch(out, source, grid=2, block=ROWS, shared=8320)


@functools.cache
def lines_of_cleanup(filename):
    """Lines of ``finally``: what they undo is left when they are interrupted themselves."""
    with open(filename) as file:
        tries = [node for node in ast.walk(ast.parse(file.read())) if isinstance(node, ast.Try)]
    parts = [part for node in tries for part in node.finalbody]
    return {line for part in parts for line in range(part.lineno, part.end_lineno + 1)}


def callers(frame):
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_cleanup(frame):
    name = frame.f_code.co_filename
    return name.startswith(PACKAGE) and frame.f_lineno in lines_of_cleanup(name)


class Interrupter:
    """Raises KeyboardInterrupt at the next line of the emulator that has not been interrupted before.

    seen     lines: (file, line) -> whether a launch was interrupted there
    cleanup  the latest interrupt came while the launch was cleaning up
    """

    def __init__(self, stride):
        self.seen, self.stride, self.fired, self.cleanup = {}, stride, None, False

    def on_call(self, frame, event, argument):
        return self.on_line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def on_line(self, frame, event, argument):
        key = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and key not in self.seen:
            self.seen[key] = len(self.seen) % self.stride == 0
            if self.seen[key]:
                self.fired, self.cleanup = key, any(map(is_cleanup, callers(frame)))
                raise KeyboardInterrupt
        return self.on_line

    def interrupt(self, function):
        """Call it; returns the line at which it was interrupted, None when it went through."""
        self.fired = None
        sys.settrace(self.on_call)
        try:
            function()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        return self.fired


@pytest.mark.parametrize(
    "stride", [40, pytest.param(1, marks=pairwise.sweep_only("interruptions", seconds=120))]
)
def test_a_launch_after_an_interrupted_one_is_as_if_it_had_not_been(stride):
    torch.manual_seed(0)
    halves = torch.randint(-8, 8, (2, ROWS, 8)).to(torch.bfloat16)
    source, out = halves.clone(), torch.empty(ROWS)
    rows = halves.transpose(0, 1).reshape(ROWS, 16).float()
    exact = rows @ rows[0]
    with emulator.use(mode="hostile", seed=1) as run:
        launch(source, out)
    assert torch.equal(out, exact) and run.level == "ptx"
    expected = run.instructions, run.opcodes, run.counters
    before = driver_api.global_memory.allocations
    interrupter = Interrupter(stride)

    def once():
        with emulator.use(mode="hostile", seed=1):
            launch(source, out)

    while (line := interrupter.interrupt(once)) is not None:
        # The next launch executes the same instructions. Nothing is left but what a clean-up could not end.
        # (What tests before this one had registered may go meanwhile.)
        left = driver_api.global_memory.allocations
        settings = len(driver_api._settings) == 1
        clean = not set(left) - set(before) and settings and not observer._active
        assert interrupter.cleanup or clean, line
        assert not progress._bars
        with emulator.use(mode="hostile", seed=1) as run:
            launch(source, out)
        assert torch.equal(out, exact), line
        assert (run.instructions, run.opcodes, run.counters) == expected, line
        for allocation in set(left) - set(before):
            driver_api.global_memory.unregister(allocation)
        del driver_api._settings[1:]
    gc.collect()
    files = {name for name, _ in interrupter.seen}
    wanted = (
        "run/launch",
        "run/warp_scheduler",
        "instructions/tcgen05",
        "instructions/tcgen05_registers",
        "machine/async_engine",
        "checks/memory",
        "host/ptx_files",
    )
    assert all(f"{PACKAGE}/{name}.py" in files for name in wanted), sorted(files)
    assert sum(interrupter.seen.values()) >= 1000 // stride
