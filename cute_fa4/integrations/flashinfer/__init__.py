"""FlashInfer's attention over paged and ragged keys, with its parameters: change the import, keep the calls.

latent.py     trtllm_batch_decode_with_kv_cache_mla
batches.py    trtllm_batch_decode_with_kv_cache, trtllm_batch_context_with_kv_cache
decode.py     BatchDecodeWithPagedKVCacheWrapper
prefill.py    BatchPrefillWithPagedKVCacheWrapper, BatchPrefillWithRaggedKVCacheWrapper
plans.py      what plan keeps, and what the wrappers share
words.py      what all share: caches, scales, log-sum-exps

flashinfer/mla/_core.py, decode.py, prefill.py   have the signatures (flashinfer-ai/flashinfer at fb28d724, 0.6.18)

FlashInfer's log-sum-exps are to base 2 and lie (tokens, heads). A query without keys has minus infinity, and a sink is
part of the sum. Workspaces, counters, choices of a backend and of programmatic dependent launch are accepted and not
needed. What has no kernel is accepted at its neutral value alone (calls/operands/foreign.py). Nothing of FlashInfer
is imported.
"""

from cute_fa4.integrations.flashinfer.batches import (
    trtllm_batch_context_with_kv_cache,
    trtllm_batch_decode_with_kv_cache,
)
from cute_fa4.integrations.flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper
from cute_fa4.integrations.flashinfer.latent import trtllm_batch_decode_with_kv_cache_mla
from cute_fa4.integrations.flashinfer.prefill import (
    BatchPrefillWithPagedKVCacheWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
)

__all__ = [
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
    "trtllm_batch_context_with_kv_cache",
    "trtllm_batch_decode_with_kv_cache",
    "trtllm_batch_decode_with_kv_cache_mla",
]
