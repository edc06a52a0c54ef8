"""RowsEvents: the one-barrier events of the kernel, those of the widening among them."""

from dataclasses import dataclass

from ...sync.kernel_args import Events
from ...sync.pipelines import Event


@dataclass(frozen=True)
class RowsEvents(Events):
    """barriers.py is their table."""

    slab_wide: Event
    slab_free: Event
    k_free: Event
