"""Executes a grid: clusters one after another, the CTAs of a cluster together; more clusters join if CTAs wait.

    grid (gx, gy, gz) -> clusters -> CTAs (rank = position in the cluster) -> warps of 32 threads

If no CTA waits for a CTA of another cluster, one cluster exists at a time, so memory is bounded by the cluster. Its
CTAs reuse the shared memory arrays of the previous one, reset to 0xFF and unwritten. Later clusters are pending: a
running CTA may cancel their launch and run their work (clusterlaunchcontrol.try_cancel). If nothing can run and a
warp spins on global memory (machine/polls.py), the next pending cluster joins, as long as the chip has room for it.
So grid barriers, semaphores and decoupled look-back terminate, as on hardware.
"""

import functools
import itertools
import math
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from cute_fa4.emulator.checks import LEVELS, Ordering, causes
from cute_fa4.emulator.checks.regions import GlobalRegions
from cute_fa4.emulator.checks.shadow import ByteShadow
from cute_fa4.emulator.checks.tensor import new_shadow
from cute_fa4.emulator.machine import observer as observers
from cute_fa4.emulator.machine.cta import CTA, Cluster, Machine
from cute_fa4.emulator.machine.memory import MAX_SHARED_BYTES, SharedMemory
from cute_fa4.emulator.machine.warp import FULL, WARP_SIZE, Warp
from cute_fa4.emulator.ptx.errors import BarrierError, EmulatorError, IllegalAccess
from cute_fa4.emulator.ptx.labels import naming_hint
from cute_fa4.emulator.ptx.syntax import RESERVED_SHARED_BYTES
from cute_fa4.emulator.run import second_core
from cute_fa4.emulator.run.warp_scheduler import Scheduler
from cute_fa4.system import progress
from cute_fa4.system.frames import with_room

MAX_THREADS = 1024
MAX_CLUSTER = 16
SMS = 148  # of a B200
MAX_CTAS_PER_SM, THREADS_PER_SM, SHARED_BYTES_PER_SM = 32, 2048, 228 << 10
REGISTERS_PER_SM = 65536
MAX_REGISTERS_PER_THREAD = 255
SCHEDULERS = 4  # of an SM, which take its warps in turn

CHECKS = {
    "phase_passed_twice": "a phase of an mbarrier completed before anybody looked at the one before",
    "bytes_missing_at_end": "a CTA ended while an mbarrier was still waiting for bytes",
    "uneven_arrivals_at_end": "a CTA ended while an mbarrier had some, but not all, of its arrivals",
    "store_at_end": "a CTA ended while a bulk store of it was still to read its shared memory",
    "cluster_barrier": "a thread arrived twice at the barrier of the cluster before it waited",
    "fewer_registers": "setmaxnreg.inc to fewer registers than the warp had",
    "lanes": "lanes of a warp touched the same shared memory with no bar.warp.sync between (checks/lanes.py)",
    "ordered_additions": "bulk additions of floats to the same global bytes had no order: sums could change",
    "mixed_products": "products of two kinds or shapes wrote one accumulator with no commit awaited between them",
    "unfenced_barrier": "a copy or commit signalled an mbarrier of its CTA, and no fence followed its mbarrier.init",
    "operand_layout": "an MMA read an operand with another swizzle or float than TMA wrote (checks/operand_boxes.py)",
    "reserved_bit": "an MMA of kind::f16 had reserved bit 29 of its instruction descriptor set",
    "equal_writes": "two warps wrote the same bytes to the same place without order (checks/equal_writes.py)",
}
"""Names accepted by use(checks=...): notes of these kinds are raised at the end of the launch."""

INCLUDED = {
    "ptx": frozenset({"bytes_missing_at_end", "uneven_arrivals_at_end"}),
    # Published kernels leave barriers with pending arrivals: a last expect_tx without its copy.
    "hardware": frozenset(),
    None: frozenset(),
}
"""CHECKS that a level includes."""


def split_checks(checks):
    """(level or None, names of CHECKS) of an argument ``checks``: a level, names, or both, or None.

    >>> split_checks("hardware")[0], split_checks({"phase_passed_twice"})
    ('hardware', (None, frozenset({'phase_passed_twice'})))
    """
    names = frozenset((checks,) if isinstance(checks, str) else checks or ())
    unknown = names - set(CHECKS) - set(LEVELS)
    levels = names & set(LEVELS)
    if unknown or len(levels) > 1:
        raise ValueError(
            f"checks {sorted(unknown or levels)}: accepted are None, one of {', '.join(LEVELS)}, and names out of "
            f"{', '.join(CHECKS)}"
        )
    level = next(iter(levels), None)
    return level, (names - levels) | INCLUDED[level]


def level_name(checks):
    """The level of an argument ``checks``, for reports.

    >>> level_name(("ptx", "phase_passed_twice")), level_name(None)
    ('ptx', 'none')
    """
    return split_checks(checks)[0] or "none"


@dataclass
class GridResult:
    """Counts of one launch; regions: global memory with its accesses, if they were checked."""

    instructions: int = 0
    opcodes: Counter = field(default_factory=Counter)
    counters: Counter = field(default_factory=Counter)
    notes: list = field(default_factory=list)
    seconds: float = 0.0
    regions: tuple = ()


@with_room
def execute_grid(
    program, *, params=b"", grid=(1, 1, 1), block=(WARP_SIZE, 1, 1), dynamic_shared_bytes=0, cluster=(1, 1, 1),
    memory=None, labels=None, mode="in_order", seed=0, budget=None, checks=None, claims=None, cores=1,
    written_before=(), unwaited=(),
):  # fmt: skip
    """Execute a decoded kernel. Raises EmulatorError for errors of the kernel or the launch.

    params  bytes of the parameter block      memory  GlobalMemory that the kernel may access
    mode, seed, budget  see warp_scheduler    checks  "ptx" or "hardware", names of CHECKS to raise, or both
    claims  largest number of pending clusters that a CTA can cancel; None: decided by the schedule
    cores   2: the second half of the grid runs in a separate process if second_core.py allows it
    written_before  regions of the previous launch, which may still run: its writes are visible only to threads that
                    have executed griddepcontrol.wait, and only these may overwrite what it reads
    unwaited        regions of earlier launches that it did not wait for: no access to their writes is allowed
    """
    level, checks = split_checks(checks)
    kernel = program.kernel
    threads = block[0] * block[1] * block[2]
    _check_launch(kernel, grid, block, threads, cluster, dynamic_shared_bytes)
    machine = Machine(memory, params, labels)
    machine.grid, machine.block, machine.dynamic_shared_bytes = (
        tuple(grid),
        tuple(block),
        dynamic_shared_bytes,
    )
    machine.target = program.target
    machine.observer = machine.engine.observer = observer = observers.current()
    start = time.perf_counter()
    scheduler = Scheduler(machine, program, mode, seed, budget)
    static = kernel.dynamic_shared_offset - RESERVED_SHARED_BYTES
    pool = [
        SharedMemory(static, dynamic_shared_bytes)
        for _ in range(cluster[0] * cluster[1] * cluster[2])
    ]
    registers = _registers_per_thread(kernel, threads)
    most = resident_clusters(kernel, threads, static + dynamic_shared_bytes, len(pool))
    register_arrays = {}  # (rank, warp) -> R
    placed, half = [], None
    try:
        program.place_variables(machine, placed)
        if level is not None:
            machine.ordering = Ordering(level, machine.notes, "lanes" in checks)
            machine.ordering.orders_additions = "ordered_additions" in checks
            machine.ordering.global_regions = GlobalRegions(machine.memory)
            machine.ordering.global_regions.note_grid_before(
                machine.ordering, written_before, unwaited
            )
        if observer is not None:
            observer.launch(machine, program)
        clusters = tuple(g // c for g, c in zip(grid, cluster, strict=True))
        with progress.bar(math.prod(clusters), "emulator", "cluster") as step:
            pending = PendingClusters(clusters, scheduler.schedule, claims, machine.counters, step)
            machine.claim_cluster = pending.claim

            def execute(index, others=True):
                """One cluster, and those that join it; others=False: those run in another process."""
                running = []

                def warps_of(index, pool, register_arrays):
                    warps = _make_cluster(
                        machine, kernel, index, cluster, threads, pool, registers, register_arrays
                    )
                    if machine.ordering is not None:
                        machine.ordering.begin_cluster(machine.cluster, joins=bool(running))
                    running.append(machine.cluster)
                    return warps

                def is_full():
                    return sum(any(not cta.finished for cta in c.ctas) for c in running) >= most

                def more():
                    if not others or is_full():
                        return ()
                    if not indices and half is not None:
                        indices.extend(half.give_up())
                    if not indices:
                        return ()
                    memory = [SharedMemory(static, dynamic_shared_bytes) for _ in pool]
                    step()
                    return warps_of(indices.popleft(), memory, {})

                def why_no_more():
                    return (
                        _waiting(len(indices), most) if machine.polls_freely and is_full() else ""
                    )

                scheduler.run(warps_of(index, pool, register_arrays), more, why_no_more)
                # Operations that may outlive their CTA (global stores) complete before the next cluster starts.
                machine.engine.drain()

            def execute_all():
                while indices:
                    execute(indices.popleft())
                    step()

            indices = pending.indices
            if cores > 1 and second_core.may_split(program, machine, mode, claims, len(indices)):
                later = [indices.pop() for _ in range(len(indices) // 2)][::-1]
                half = second_core.SecondHalf(
                    machine, scheduler, later, functools.partial(execute, others=False)
                )
            execute_all()
            regions = half.finish() if half is not None else None
            if regions is None:  # there is no second half, or it runs here
                indices.extend(half.give_up() if half is not None else ())
                execute_all()
                regions = second_core.regions(machine)
    except EmulatorError as error:
        text = f"{error}{causes.explained(error, machine)}"
        error.args = (f"{text}{naming_hint(text)}", *error.args[1:])
        raise
    finally:
        if half is not None:
            half.abandon()
        for allocation in placed:
            machine.memory.unregister(allocation)
        if observer is not None:
            observer.finished(program, scheduler.executions)
            observer.roles(program, scheduler.executions_of)
    opcodes = program.opcode_counts(scheduler.executions)
    wrong = [note for note in machine.notes if note.check in checks]
    if wrong:
        more = f"\n  and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise BarrierError("\n  ".join(wrong[:3]) + more)
    return GridResult(
        scheduler.instructions,
        opcodes,
        machine.counters,
        machine.notes,
        time.perf_counter() - start,
        regions,
    )


class PendingClusters:
    """The clusters of a grid that have not started, and the requests to cancel them.

    indices  (x, y, z) of each in the grid of clusters, in launch order

    A cancelled cluster is counted in ``counters`` and by ``step()``. A CTA that was refused once gets no more.
    """

    def __init__(self, clusters, schedule, claims, counters, step):
        order = itertools.product(*map(range, clusters[::-1]))
        self.indices = deque(index[::-1] for index in order)
        self.schedule, self.claims, self.counters, self.step = schedule, claims, counters, step
        self._granted = Counter()
        self._refused = set()

    def claim(self, cta):
        """(x, y, z) of the first CTA of a cluster that from now on never runs, or None."""
        if self.claims is None:
            refused = bool(self.indices) and self.schedule.refuses_cluster()
        else:
            refused = self._granted[cta.id] >= self.claims
        if refused or not self.indices:
            self._refused.add(cta.id)
        if cta.id in self._refused:
            return None
        self._granted[cta.id] += 1
        self.counters["clusters cancelled"] += 1
        self.step()
        picked = self.schedule.pick_cluster(len(self.indices))
        index = self.indices[picked]
        del self.indices[picked]
        return tuple(i * d for i, d in zip(index, cta.cluster.dims, strict=True))


def _make_cluster(machine, kernel, index, dims, threads, pool, registers, register_arrays):
    """Its warps; pool and register_arrays: memory of the previous cluster, for reuse."""
    cluster = Cluster(machine, dims, index)
    warps = []
    for rank, (z, y, x) in enumerate(itertools.product(*(range(d) for d in dims[::-1]))):
        cta_index = tuple(i * d + c for i, d, c in zip(index, dims, (x, y, z), strict=True))
        pool[rank].clear()
        cta = CTA(cluster, rank, cta_index, threads=threads, shared=pool[rank])
        cta.tmem = _tensor_memory(machine, cta_index)
        for first in range(0, threads, WARP_SIZE):
            live = FULL if threads - first >= WARP_SIZE else (1 << threads - first) - 1
            number = first // WARP_SIZE
            used = register_arrays.get((rank, number))
            warp = Warp(cta, number, kernel.rows, kernel.predicates, live, used)
            register_arrays[rank, number] = warp.R
            warp.registers_per_thread = registers
            warp.local_bytes = kernel.local_bytes
            cta.warps.append(warp)
        warps += cta.warps
        cta.shared.shadow = None
        if machine.ordering is not None:
            cta.shared.shadow = ByteShadow(len(cta.shared.bytes))
            cta.tmem.shadow = new_shadow()
    return warps


def _tensor_memory(machine, index):
    from cute_fa4.emulator.machine.tensor_memory import TensorMemory

    return TensorMemory(machine.labels, f"CTA {index}")


def resident_clusters(kernel, threads, shared_bytes, ctas):
    """Clusters of this many CTAs that a B200 holds at the same time, by threads and shared memory.

    Registers count only if the PTX has .maxnreg; otherwise ptxas chooses their number.
    """
    per_sm = min(
        MAX_CTAS_PER_SM,
        THREADS_PER_SM // (-(-threads // WARP_SIZE) * WARP_SIZE),
        SHARED_BYTES_PER_SM // (shared_bytes + RESERVED_SHARED_BYTES),
    )
    if ".maxnreg" in kernel.directives:
        per_sm = min(per_sm, REGISTERS_PER_SM // (kernel.directives[".maxnreg"][0] * threads))
    return max(SMS * per_sm // ctas, 1)


def _waiting(pending, most):
    """A note on clusters that have not started, for deadlock reports; "" if there are none."""
    if not pending:
        return ""
    return (
        f"{pending:,} clusters of the grid have not started: a B200 holds {most:,} of these at a time (by threads and "
        "shared memory), so nobody may wait for a later one"
    )


def _registers_per_thread(kernel, threads):
    """Registers per thread at launch: .maxnreg, else a quarter of 64K registers divided by its scheduler's warps.

    ptxas gives 576 threads 96: one of the four schedulers has five of the 18 warps.
    """
    if ".maxnreg" in kernel.directives:
        return kernel.directives[".maxnreg"][0]
    per_sm = max(kernel.directives.get(".minnctapersm", (1,))[0], 1)
    warps_of_scheduler = -(-threads // (SCHEDULERS * WARP_SIZE)) * per_sm
    most = REGISTERS_PER_SM // SCHEDULERS // (warps_of_scheduler * WARP_SIZE) // 8 * 8
    return min(most, MAX_REGISTERS_PER_THREAD // 8 * 8)


def _check_launch(kernel, grid, block, threads, cluster, dynamic_shared_bytes):
    if min(grid) < 1 or not 1 <= threads <= MAX_THREADS or min(block) < 1:
        raise EmulatorError(f"launch of grid {grid}, block {block}: every size must be at least 1, and a CTA at most "
                            f"{MAX_THREADS} threads")  # fmt: skip
    required = kernel.directives.get(".reqntid")
    if required and (*required, 1, 1)[:3] != tuple(block):
        raise EmulatorError(
            f"launch with block {tuple(block)}; the kernel was compiled for .reqntid {required}"
        )
    size = cluster[0] * cluster[1] * cluster[2]
    if not 1 <= size <= MAX_CLUSTER or any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise EmulatorError(
            f"launch of grid {tuple(grid)} with clusters {tuple(cluster)}: the grid must be a multiple of the cluster, "
            f"which has at most {MAX_CLUSTER} CTAs"
        )
    shared = kernel.dynamic_shared_offset - RESERVED_SHARED_BYTES + dynamic_shared_bytes
    if shared > MAX_SHARED_BYTES:
        raise IllegalAccess(
            f"launch with {shared} bytes of shared memory per CTA; a CTA has at most {MAX_SHARED_BYTES} on sm_100"
        )
