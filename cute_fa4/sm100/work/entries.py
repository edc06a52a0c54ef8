"""Sizes of the work queue (queue.py), as shared-memory maps and barrier tables need them."""

WORK_ENTRIES = 2  # work tiles that are announced and not read by every role yet
WORK_WORDS = 12  # Int32 of an entry: a multiple of four, which one instruction reads
CLAIM_ANSWER_BYTES = 16  # what clusterlaunchcontrol.try_cancel writes
WORK_QUEUE_BYTES = WORK_ENTRIES * WORK_WORDS * 4 + CLAIM_ANSWER_BYTES
