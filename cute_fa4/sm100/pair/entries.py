"""Sizes of a pair's work queue, as its shared-memory map needs them."""

from ..blueprint.entries import JUDGED_ENTRIES, JUDGED_QUEUE_BYTES

LATEST = JUDGED_ENTRIES  # after the peer's verdicts: the work tile whose verdict was exchanged last
PEER_WORDS = LATEST + 1  # Int32
JUDGED_PAIR_BYTES = JUDGED_QUEUE_BYTES + 4 * PEER_WORDS
