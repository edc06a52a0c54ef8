"""Machine, cluster and CTA: the owners of memories, and address resolution.

Machine   global memory, parameters, asynchronous engine, counters, notes
  Cluster   CTAs of one cluster: a shared::cluster address is  rank << 24 | offset
    CTA       shared memory, tensor memory, named barriers, register pool, warps
"""

import time
from collections import Counter

import numpy as np

from cute_fa4.emulator.machine.async_engine import AsyncEngine
from cute_fa4.emulator.machine.deadlock import phase_report
from cute_fa4.emulator.machine.mbarrier import Note
from cute_fa4.emulator.machine.memory import GlobalMemory, ParamMemory, SharedMemory
from cute_fa4.emulator.machine.thread_barriers import ClusterBarrier
from cute_fa4.emulator.machine.warp import (
    LANE_INDEX,
    LOCAL_BASE,
    PARAM_BASE,
    SHARED_BASE,
    WARP_SIZE,
)
from cute_fa4.emulator.ptx.errors import BarrierError, EmulatorError, IllegalAccess
from cute_fa4.emulator.ptx.labels import NO_LABELS

OFFSET_BITS = 24
OFFSET_MASK = (1 << OFFSET_BITS) - 1
NO_RANK = 255
"""The rank in addresses of mapa for an invalid rank: an address has 8 bits for it, a cluster at most 16 CTAs."""
_WINDOW = 1 << 32


class Machine:
    """All state of one launch.

    memory    GlobalMemory          params   ParamMemory         engine  AsyncEngine
    counters  executions by opcode, and free keys
    notes     remarks that are not errors (an unobserved phase, ...)
    progress  incremented by every effect that another warp may wait for
    polls_freely  spinning warps keep polling, because nothing else can run (polls.py)
    joined    clusters that joined running ones              others_join   whether more may
    cluster   of the warp that runs
    """

    def __init__(self, memory=None, params=b"", labels=None):
        self.memory = GlobalMemory() if memory is None else memory
        self.params = ParamMemory(params)
        self.engine = AsyncEngine()
        self.labels = NO_LABELS if labels is None else labels
        self.counters = Counter()
        self.notes = []
        self.observer = None  # observer.Observer
        self.ordering = None  # checks.Ordering
        self.progress = 0
        self.polls_freely = self.others_join = False
        self.joined = 0
        self.gives_up = lambda: (
            False
        )  # does a try_wait that would block return false immediately? (schedules.py)
        self.claim_cluster = lambda cta: None  # launch.PendingClusters.claim
        self.cluster = None
        self.tensor_maps = {}  # global address -> checks.tensor_maps.MapState
        self.symbols = {}  # module variable in global or const memory -> host address
        self.target = ""  # of the module, "sm_100a"; "" if unknown
        self.grid = (1, 1, 1)
        self.block = (WARP_SIZE, 1, 1)
        self.dynamic_shared_bytes = 0
        self.started = time.perf_counter_ns()

    def state(self):
        """Changes with everything that another warp may wait for."""
        return (self.progress, self.engine.submitted, self.engine.completed)

    def resolve_generic(self, address):
        """("shared", cta, offset), ("param", offset), ("local", offset) or ("global", address)."""
        if address < LOCAL_BASE:
            return ("global", address)
        if SHARED_BASE <= address < SHARED_BASE + _WINDOW:
            return ("shared", *self.cluster.resolve(address - SHARED_BASE))
        if PARAM_BASE <= address < PARAM_BASE + _WINDOW:
            return ("param", address - PARAM_BASE)
        if LOCAL_BASE <= address < LOCAL_BASE + _WINDOW:
            return ("local", address - LOCAL_BASE)
        raise IllegalAccess(f"generic address 0x{address:x} lies in no memory")


class Cluster:
    """The CTAs that share one shared::cluster window."""

    def __init__(self, machine, dims=(1, 1, 1), index=(0, 0, 0)):
        self.machine = machine
        self.dims = tuple(dims)
        self.size = dims[0] * dims[1] * dims[2]
        self.id = tuple(index)
        self.ctas = []
        self.barrier = ClusterBarrier(self)
        machine.cluster = self

    def resolve(self, address):
        """(CTA, offset) of a 32-bit shared::cluster address. Raises IllegalAccess for a rank outside."""
        rank, offset = int(address) >> OFFSET_BITS, int(address) & OFFSET_MASK
        if rank >= len(self.ctas):
            named = f"{rank} or above" if rank == NO_RANK else rank
            raise IllegalAccess(
                f"shared::cluster address 0x{int(address):x}: rank {named}, but the cluster has {len(self.ctas)} CTAs; "
                "look for the mapa, or the arithmetic, that this address comes from"
            )
        if self.ctas[rank].finished:
            raise IllegalAccess(
                f"shared::cluster address 0x{int(address):x}: the CTA of rank {rank} has ended; a CTA must not end "
                "before the last access of its peers"
            )
        return self.ctas[rank], offset


class CTA:
    """One thread block: shared memory, tensor memory, barriers and warps."""

    def __init__(
        self,
        cluster,
        rank=0,
        index=(0, 0, 0),
        static_bytes=0,
        dynamic_bytes=0,
        threads=128,
        shared=None,
    ):
        self.cluster = cluster
        self.machine = cluster.machine
        self.labels = self.machine.labels
        self.rank = rank
        self.id = tuple(index)
        name = f"CTA {self.id}" + (f" (rank {rank})" if cluster.size > 1 else "")
        self.shared = SharedMemory(static_bytes, dynamic_bytes) if shared is None else shared
        self.shared.name = f"the shared memory of {name}"
        self.shared.labels = self.labels
        self.tmem = None
        self.warps = []
        self.threads = self.live_threads = threads
        self.named_barriers = {}
        self.free_registers = 0
        self.finished = False
        self.saw_refusal = False  # of a request to cancel a cluster (cluster_launch_control.py)
        cluster.ctas.append(self)

    def peer(self, rank):
        """The CTA of a rank in this cluster."""
        return self.cluster.ctas[rank]

    # -- mbarriers -----------------------------------------------------------------------------------------

    def mbarrier(self, offset):
        """The MBarrier at a shared offset. Raises BarrierError if none was initialized, or if the CTA has exited."""
        if self.finished:
            raise BarrierError(
                f"mbarrier at shared offset {self.shared.describe(offset)} of {self.shared.name}, which has ended; "
                "a CTA must not end before the last arrival from its peers (barrier.cluster, or wait for it)"
            )
        barrier = self.shared.mbarriers.get(offset)
        if barrier is None:
            raise BarrierError(
                f"no mbarrier is initialised at shared offset {self.shared.describe(offset)} of {self.shared.name}"
            )
        return barrier

    def barrier_name(self, offset):
        """(name, BarrierLabel or None) of the mbarrier at a shared offset."""
        label = self.labels.barrier(offset - self.shared.dynamic_base)
        if label is not None:
            return label.name, label
        return f"mbarrier at shared {self.shared.describe(offset)}", None

    # -- addresses and special registers ----------------------------------------------------------------------

    def symbol_address(self, symbol):
        """Address of a variable as returned by mov: space address for shared, generic for other spaces."""
        if symbol.space == "shared":
            return (self.rank << OFFSET_BITS) + symbol.offset
        if symbol.space == "param":
            return PARAM_BASE + symbol.offset
        if symbol.space == "local":
            return LOCAL_BASE + symbol.offset
        address = self.machine.symbols.get(symbol.name)
        if address is None:
            raise EmulatorError(f"variable {symbol.name} has no address")
        return address + symbol.offset

    def special(self, warp, name):
        """uint64[32] of a special register."""
        getter = _SPECIAL.get(name)
        if getter is None:
            raise EmulatorError(f"special register {name} has no value in the emulator")
        value = getter(self, warp)
        return (
            value.astype(np.uint64)
            if isinstance(value, np.ndarray)
            else np.full(WARP_SIZE, value, np.uint64)
        )

    def finish(self):
        """The last warp has exited: nothing of this CTA may be in flight, tensor memory must be free.

        Exception below level "ptx": reads of its bulk stores complete, and the checks add a note.
        """
        engine, ordering = self.machine.engine, self.machine.ordering
        self.finished = True
        for operation in engine.operations():
            if operation.cta is self and not operation.outlives_cta:
                if operation.kept_for and not (ordering is not None and ordering.ptx):
                    engine.complete(operation)
                    continue
                raise EmulatorError(
                    f"CTA {self.id} ended while an operation of it was in flight: {operation.label}; wait for its "
                    f"completion before the last thread returns\n{operation.issuer.where()}"
                )
        if self.tmem is not None:
            self.tmem.check_freed()
        for barrier in self.shared.mbarriers.values():
            uneven = 0 < barrier.pending < barrier.count
            if barrier.tx or uneven:
                text = f"CTA {self.id} ended while {barrier.name} phase {barrier.phase} {barrier.lacks()}"
                if barrier.events:
                    text = "\n  ".join((f"{text}; in this phase:", *phase_report(barrier)[1:]))
                check = "bytes_missing_at_end" if barrier.tx else "uneven_arrivals_at_end"
                self.machine.notes.append(Note.of(check, text))
        if ordering is not None:
            ordering.end_cta(self)

    def lanes_exited(self, mask):
        """Threads of this CTA returned: named barriers without a count no longer wait for them."""
        self.live_threads -= mask.bit_count()
        self.machine.progress += 1


def _thread_index(axis):
    def get(cta, warp):
        x, y, _ = cta.machine.block
        linear = warp.index * WARP_SIZE + LANE_INDEX
        return (linear % x, linear // x % y, linear // (x * y))[axis]

    return get


def _lanemask(function):
    one = np.ones(WARP_SIZE, np.uint64) << LANE_INDEX.astype(np.uint64)
    values = function(one) & np.uint64(0xFFFFFFFF)
    return lambda cta, warp: values


def _nclusters(axis):
    return lambda cta, warp: -(-cta.machine.grid[axis] // cta.cluster.dims[axis])


_SPECIAL = {
    "%laneid": lambda cta, warp: LANE_INDEX,
    "%warpid": lambda cta, warp: warp.index,
    "%nwarpid": lambda cta, warp: 64,
    "%smid": lambda cta, warp: cta.rank,
    "%nsmid": lambda cta, warp: 148,  # B200
    "%gridid": lambda cta, warp: 0,
    "%cluster_ctarank": lambda cta, warp: cta.rank,
    "%cluster_nctarank": lambda cta, warp: cta.cluster.size,
    "%is_explicit_cluster": lambda cta, warp: int(cta.cluster.size > 1),
    "%dynamic_smem_size": lambda cta, warp: cta.machine.dynamic_shared_bytes,
    "%total_smem_size": lambda cta, warp: cta.shared.size,
    "%aggr_smem_size": lambda cta, warp: cta.shared.size,
    # Time advances with the instructions of the warp: the same run gives the same values.
    "%clock": lambda cta, warp: warp.instructions & 0xFFFFFFFF,
    "%clock64": lambda cta, warp: warp.instructions,
    "%clock_hi": lambda cta, warp: warp.instructions >> 32,
    "%globaltimer": lambda cta, warp: warp.instructions,
    "%globaltimer_lo": lambda cta, warp: warp.instructions & 0xFFFFFFFF,
    "%globaltimer_hi": lambda cta, warp: warp.instructions >> 32,
    "%lanemask_eq": _lanemask(lambda one: one),
    "%lanemask_lt": _lanemask(lambda one: one - np.uint64(1)),
    "%lanemask_le": _lanemask(lambda one: one * np.uint64(2) - np.uint64(1)),
    "%lanemask_gt": _lanemask(lambda one: ~(one * np.uint64(2) - np.uint64(1))),
    "%lanemask_ge": _lanemask(lambda one: ~(one - np.uint64(1))),
}
for _axis, _letter in enumerate("xyz"):
    _SPECIAL |= {
        f"%tid.{_letter}": _thread_index(_axis),
        f"%ntid.{_letter}": lambda cta, warp, a=_axis: cta.machine.block[a],
        f"%ctaid.{_letter}": lambda cta, warp, a=_axis: cta.id[a],
        f"%nctaid.{_letter}": lambda cta, warp, a=_axis: cta.machine.grid[a],
        f"%clusterid.{_letter}": lambda cta, warp, a=_axis: cta.cluster.id[a],
        f"%nclusterid.{_letter}": _nclusters(_axis),
        f"%cluster_ctaid.{_letter}": lambda cta, warp, a=_axis: cta.id[a] % cta.cluster.dims[a],
        f"%cluster_nctaid.{_letter}": lambda cta, warp, a=_axis: cta.cluster.dims[a],
    }
