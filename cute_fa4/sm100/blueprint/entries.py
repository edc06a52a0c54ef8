"""Sizes of the work queue (`queue.py`, `checked.py`), as shared-memory maps and barrier tables need them."""

WORK_ENTRIES = 2  # work tiles announced but not yet read by every role
WORK_WORDS = 12  # Int32 of an entry: a multiple of four, which one instruction reads
CLAIM_ANSWER_BYTES = 16  # what clusterlaunchcontrol.try_cancel writes
WORK_QUEUE_BYTES = WORK_ENTRIES * WORK_WORDS * 4 + CLAIM_ANSWER_BYTES

# Where work tiles are checked (`checked.py`): one more entry, which is reused only after its verdict has arrived.
CHECKED_ENTRIES = WORK_ENTRIES + 1
VERDICT_WORDS = 8  # Int32 of an entry: one per softmax warp
AGAIN_WORDS = 4  # Int32: a flag per entry, and one of padding
CHECKED_QUEUE_BYTES = (
    (WORK_WORDS + VERDICT_WORDS) * CHECKED_ENTRIES + AGAIN_WORDS
) * 4 + CLAIM_ANSWER_BYTES

SUMS_OF_ACCESS = 4  # float32 of 16 bytes: columns that a thread keeps or reads at once from part to part (own_parts.py)
