"""Barriers of a CTA (bar, barrier) and of a cluster (barrier.cluster).

    barrier 1, count 128        warp 4: sync  +32      warp 5: sync  +32      warps 6, 7: arrive  +64
                                the 128th thread opens it and starts the next generation

PTX ISA, "bar, barrier", "barrier.cluster". ``bar`` is ``barrier`` with .aligned.
"""

from cute_fa4.emulator.checks.scopes import CLUSTER
from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.machine.thread_barriers import NamedBarrier
from cute_fa4.emulator.machine.warp import FULL, WARP_SIZE, Wait
from cute_fa4.emulator.ptx.errors import BarrierError


@instruction(
    "bar.sync", "bar.cta.sync", "barrier.sync.aligned", "barrier.cta.sync.aligned", aligned=True
)
def bar_sync(warp, ins):
    """Arrive and wait until all threads of the barrier have arrived; whole warps."""
    return _sync(warp, ins, aligned=True)


@instruction("barrier.sync", "barrier.cta.sync")
def barrier_sync(warp, ins):
    """Arrive and wait until all threads of the barrier have arrived; single threads."""
    return _sync(warp, ins, aligned=False)


@instruction(
    "bar.arrive",
    "bar.cta.arrive",
    "barrier.arrive.aligned",
    "barrier.cta.arrive.aligned",
    aligned=True,
)
def bar_arrive(warp, ins):
    """Arrive without waiting; whole warps."""
    _arrive(warp, ins, ins.operands, aligned=True)


@instruction("barrier.arrive", "barrier.cta.arrive")
def barrier_arrive(warp, ins):
    """Arrive without waiting; single threads."""
    _arrive(warp, ins, ins.operands, aligned=False)


@instruction(pattern=r"(?:bar|barrier)(?:\.cta)?\.red\.(popc|and|or)(?:\.aligned)?\.(?:u32|pred)")
def bar_red(warp, ins, match):
    """bar.sync that also counts (popc) or combines (and, or) a predicate over all threads."""
    if _is_arriving(warp):
        aligned = ins.opcode.startswith("bar.") or ".aligned" in ins.opcode
        barrier, generation = _arrive(warp, ins, ins.operands[1:-1], aligned)
        result = barrier.results.setdefault(generation, [0, 0])
        result[0] += (warp.read_pred(ins.operands[-1]) & warp.mask).bit_count()
        result[1] += warp.mask.bit_count()
        wait = Wait(lambda: barrier.passed(generation), barrier.lacks())
        wait.payload = result
        return wait
    true, threads = warp.resumed.payload
    _acquire(warp, warp.cta.named_barriers[warp.uniform(warp.read32(ins.operands[1]))])
    if match[1] == "popc":
        warp.write32(ins.operands[0], true)
    else:
        warp.write_pred(
            ins.operands[0], FULL if (true == threads if match[1] == "and" else true) else 0
        )
    return None


def _is_arriving(warp):
    """The first call of a barrier instruction, or the first after its lanes have converged (.aligned)."""
    return warp.resumed is None or bool(warp.resumed.required)


def _sync(warp, ins, aligned):
    if not _is_arriving(warp):
        _acquire(warp, warp.resumed.payload)
        return None
    barrier, generation = _arrive(warp, ins, ins.operands, aligned)
    if barrier.passed(generation):
        _acquire(warp, barrier)
        return None
    wait = Wait(lambda: barrier.passed(generation), barrier.lacks)
    wait.payload = barrier
    return wait


def _acquire(warp, barrier):
    """The barrier has opened: the warp receives the clocks of all arrivals."""
    order = warp.cta.machine.ordering
    if order is not None:
        order.acquire(barrier, warp)


def _arrive(warp, ins, operands, aligned):
    """Count the executing threads. Returns (barrier, generation)."""
    cta = warp.cta
    number = warp.uniform(warp.read32(operands[0])) if operands else 0
    count = warp.uniform(warp.read32(operands[1])) if len(operands) > 1 else None
    if number > 15:
        warp.fault(f"barrier {number}; a CTA has the barriers 0 to 15", BarrierError)
    if count is not None and (count == 0 or count % WARP_SIZE or count > cta.threads):
        warp.fault(
            f"barrier {number} with {count} threads; accepted are multiples of {WARP_SIZE} up to the {cta.threads} "
            f"threads of the CTA",
            BarrierError,
        )
    if count is None and "arrive" in ins.opcode:
        warp.fault(f"{ins.opcode} needs the number of threads of the barrier", BarrierError)
    barrier = cta.named_barriers.get(number)
    if barrier is None:
        barrier = cta.named_barriers[number] = NamedBarrier(cta, number)
    # With a count, an .aligned barrier counts whole warps (PTX ISA: the count is a multiple of 32).
    threads = WARP_SIZE if aligned and count is not None else warp.mask.bit_count()
    warp.note_progress()
    order = cta.machine.ordering
    if order is not None:
        order.publish(barrier, order.outgoing(warp))
    return barrier, barrier.arrive(threads, count, warp.issuer())


@instruction(pattern=r"barrier\.cluster\.arrive(\.release|\.relaxed)?")
def cluster_arrive(warp, ins, match):
    """The executing threads arrive at the barrier of the cluster."""
    barrier, order = warp.cta.cluster.barrier, warp.cta.machine.ordering
    if order is not None:
        order.publish(barrier, order.outgoing(warp, CLUSTER, match[1] == ".relaxed"))
    barrier.arrive(warp)
    warp.note_progress()


@instruction(pattern=r"barrier\.cluster\.arrive(\.release|\.relaxed)?\.aligned", aligned=True)
def cluster_arrive_aligned(warp, ins, match):
    """The threads of the warp arrive at the barrier of the cluster."""
    return cluster_arrive(warp, ins, match)


@instruction(pattern=r"barrier\.cluster\.wait(\.acquire)?")
def cluster_wait(warp, ins, match):
    """The executing threads wait until all threads of the cluster have arrived."""
    barrier = warp.cta.cluster.barrier
    generation = barrier.generation
    if barrier.wait(warp):
        _acquire(warp, barrier)
        return None
    return Wait(lambda: barrier.opened(generation), barrier.lacks)


@instruction(pattern=r"barrier\.cluster\.wait(\.acquire)?\.aligned", aligned=True)
def cluster_wait_aligned(warp, ins, match):
    """The threads of the warp wait until all threads of the cluster have arrived."""
    return cluster_wait(warp, ins, match)
