"""WidenedEvents: the one-barrier events of the kernel, those of the widening among them."""

from dataclasses import dataclass

from ...sync.kernel_args import Events
from ...sync.pipelines import Event


@dataclass(frozen=True)
class WidenedEvents(Events):
    """barriers.py is their table."""

    q_wide: Event
    k_wide: Event
    k_free: Event
    v_wide: Event
    v_free: Event
