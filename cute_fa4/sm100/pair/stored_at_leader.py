"""Cross-CTA signals, as in pair/sync.py, for kernels that keep P in shared memory.

    who                  raises                                                   in
    load warp of CTA 0   q_full, kv_full, rope_full: the bytes of both CTAs       its own CTA
    TMA of either CTA    its bytes, on these                                      CTA 0
    a softmax warp       p_ready                                                  CTA 0
    MMAs of CTA 0        s_ready, pv_done, q_free, kv_empty, rope_empty           both

p_ready covers tensor memory (S has been read, O rescaled) and shared memory (P). Only shared-memory fences stand
before the arrival and after the wait, and every thread that wrote P has fenced its writes to the async proxy.
"""

from dataclasses import dataclass, replace

from ..blueprint.barriers import BarrierTable
from ..instructions import mbarriers
from ..sync.kernel_args import Events
from .sync import LoadedForBoth, RaisedAtLeader, RaisedInBoth, arrive_at_leader


@dataclass(frozen=True)
class StoredAtLeader(RaisedAtLeader):
    """Raised by a warp of either CTA, for the mma warp of CTA 0; it covers shared memory, too."""

    def arrive(self, i):
        arrive_at_leader(self.mbarriers + i, of_shared=True)

    def wait(self, i, phase):
        mbarriers.wait_for_cluster(self.mbarriers + i, phase)
        mbarriers.acquire_shared()


def events_of(table: BarrierTable, first) -> Events:
    """The events of a pair, from its first mbarrier: each is raised in the CTA that awaits it."""
    events = Events.of(table, first)
    kinds = {
        "q_full": LoadedForBoth,
        "p_ready": StoredAtLeader,
        "q_free": RaisedInBoth,
        "s_ready": RaisedInBoth,
        "pv_done": RaisedInBoth,
    }
    return replace(
        events, **{name: kind(getattr(events, name).mbarriers) for name, kind in kinds.items()}
    )
