"""RopeEvents: the one-barrier events of the kernel, that of the columns of 8 bits among them."""

from dataclasses import dataclass

from ...sync.kernel_args import Events
from ...sync.pipelines import Event


@dataclass(frozen=True)
class RopeEvents(Events):
    """barriers.py is their table. rope_raw has a barrier for every slot of the ring."""

    rope_raw: Event
