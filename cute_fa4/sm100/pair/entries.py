"""Sizes of a pair's work queue, as its shared-memory map needs them."""

from ..blueprint.entries import CHECKED_ENTRIES, CHECKED_QUEUE_BYTES

LATEST = (
    CHECKED_ENTRIES  # after the peer's verdicts: the work tile whose verdict was exchanged last
)
PEER_WORDS = LATEST + 1  # Int32
CHECKED_PAIR_BYTES = CHECKED_QUEUE_BYTES + 4 * PEER_WORDS
