"""SlotEvents: the one-barrier events of the kernel, that of the rows of 8 bits among them."""

from dataclasses import dataclass

from ...sync.kernel_args import Events
from ...sync.pipelines import Event


@dataclass(frozen=True)
class SlotEvents(Events):
    """barriers.py is their table. raw_full has a barrier for every slot of the ring."""

    raw_full: Event
