"""FlashInfer's attention over paged and ragged keys, with its parameters: only the import changes.

latent.py     trtllm_batch_decode_with_kv_cache_mla
sparse_latent.py   trtllm_batch_decode_sparse_mla_dsv4
batches.py    trtllm_batch_decode_with_kv_cache, trtllm_batch_context_with_kv_cache
decode.py     BatchDecodeWithPagedKVCacheWrapper
prefill.py    BatchPrefillWithPagedKVCacheWrapper, BatchPrefillWithRaggedKVCacheWrapper
plans.py      the stored plan, and the common base of the wrappers
words.py      common conversions: caches, scales, log-sum-exps

flashinfer/mla/_core.py, decode.py, prefill.py   have the signatures (flashinfer-ai/flashinfer at fb28d724, 0.6.18)

FlashInfer's log-sum-exps are to base 2 and have the layout (tokens, heads). A query without keys has minus
infinity, and sinks are included. Workspaces, counters, and the choice of a backend and of programmatic dependent
launch are accepted without effect. Unsupported arguments are accepted only with their neutral value
(calls/operands/foreign.py). Nothing of FlashInfer is imported.
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
from cute_fa4.integrations.flashinfer.sparse_latent import trtllm_batch_decode_sparse_mla_dsv4

__all__ = [
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
    "trtllm_batch_context_with_kv_cache",
    "trtllm_batch_decode_sparse_mla_dsv4",
    "trtllm_batch_decode_with_kv_cache",
    "trtllm_batch_decode_with_kv_cache_mla",
]
