"""The fields of each kind of entry, in a catalogue and on a command line: names, how values are written, and help."""

from __future__ import annotations

from dataclasses import dataclass

from cute_fa4.aot.models import CALLS, ON_REQUEST
from cute_fa4.compiler.policy import BEFORE, QUANTIZE
from cute_fa4.layouts.cache_scales import LAYOUTS, LINEAR
from cute_fa4.operands import LENGTHS, NAMES, OPERANDS
from cute_fa4.sm100.choose.choose_config import FAMILIES
from cute_fa4.sm100.work.lists.config import MAKES


@dataclass(frozen=True)
class Field:
    """One field of an entry.

    kind     "number", "real", "switch", "text", "texts", "numbers", "switches", or how a list or a call is written:
             "aux", "windows", "mask", "function", "warps"
    help     for a command line; ends with the default
    """

    kind: str
    help: str


# Fields that several kinds of entries have.
_HEAD_DIM = Field("number", "of q and k; required")
_FOUR = Field("switch", "blocks of new rows of e2m1 have the better of two scales; default: off")
_V_LAYOUT = Field("text", f"of v_block_scale of e2m1: {' or '.join(LAYOUTS)}; default: {LINEAR}")
_ARCH = Field("text", "sm_100a or sm_103a; default: sm_100a")
_INVARIANT = "of calls with batch_invariant=True; default: as CUTE_FA4_BATCH_INVARIANT says"


def _fields_of_lengths() -> dict[str, Field]:
    """Fields that say which lengths and pages a call has, from the table of operands: a new one needs no line here."""
    found: dict[str, Field] = {}
    values: dict[str, list] = {}
    for row in (OPERANDS[name] for name in NAMES[LENGTHS]):
        if row.config is None:
            continue
        field, value = row.config
        if value is True:
            found[field] = Field("switch", f"calls have {row.name}; default: off")
        else:
            values.setdefault(field, ["dense"]).append(value)
            *most, last = values[field]
            found[field] = Field("text", f"{', '.join(most)} or {last}; default: dense")
    return found


_OF_LENGTHS = _fields_of_lengths()

MODEL = {
    "head_dim": _HEAD_DIM,
    "heads_q": Field("number", "query heads; required"),
    "heads_kv": Field("number", "key/value heads; required"),
    "head_dim_v": Field("number", "of v; default: as head_dim"),
    "dtype": Field("text", "bf16, fp16, e4m3 or e5m2; default: bf16"),
    "kv_dtype": Field(
        "text", "of caches under 16-bit queries: e4m3, e5m2, e2m1, mxe4m3; default: as dtype"
    ),
    "v_block_scale_layout": _V_LAYOUT,
    "four_over_six": _FOUR,
    "q_quantize": Field(
        "text",
        f"of such queries: {', '.join(QUANTIZE)}, or {BEFORE}: they have kv_dtype already; "
        "default: as calls that do not say",
    ),
    "descales": Field("text", "of 8-bit tensors that have scales; default: qkv"),
    "o_dtype": Field(
        "text",
        "of out: e4m3, or as q, which of 8 bits may have bf16 or fp16; default: as q, or bf16",
    ),
    "calls": Field("texts", f"of {', '.join(CALLS)} (default: these), {', '.join(ON_REQUEST)}"),
    "page_sizes": Field("numbers", "keys of a page; default: 16 64"),
    "causal": Field("switch", "default: on"),
    "windows": Field("windows", "LEFT:RIGHT of the layers' windows, or full; default: full"),
    "chunk": Field("number", "keys of a block that sees only itself; default: none"),
    "sink": Field("text", "dtype of learnable_sink: f32, bf16 or fp16; default: none"),
    "softcap": Field("real", "default: 0, off"),
    "return_lse": Field("switches", "false, true, or both; default: false"),
    "rope_depth": Field("number", "columns of keys in k_rope (MLA prefill); default: 0"),
    "rope_dtype": Field(
        "text", "of k_rope: e4m3, e5m2 under 16 bits, bf16, fp16 beside 8; default: as dtype"
    ),
    "scale_dtype": Field("text", "f32: k_rope of 8 bits has k_rope_descale; default: none"),
    "rope_page_sizes": Field(
        "numbers", "keys of a page of k_rope, besides its rows; default: none"
    ),
    "splits": Field("switch", "calls may split keys: num_splits, tokens_per_split; default: on"),
    "batch_invariant": Field("switch", _INVARIANT),
    "training": Field(
        "switch", "calls that are dense, packed or on ranks also have gradients; default: off"
    ),
    "arch": _ARCH,
}
CONFIG = {
    "qkv_dtype": Field("text", "bf16, fp16, e4m3 or e5m2; required"),
    "kv_dtype": Field(
        "text", "of k and v under 16-bit q: e4m3, e5m2, e2m1 or mxe4m3; default: as q"
    ),
    "v_block_scale_layout": _V_LAYOUT,
    "head_dim": _HEAD_DIM,
    "head_dim_v": Field("number", "of v; default: as head_dim"),
    "o_dtype": Field("text", "of the output; default: as qkv_dtype, or bf16"),
    "descales": Field("text", "8-bit tensors that have scales, of qQxkKyvVo; default: none"),
    "group": Field("number", "query heads a key/value head; default: 1"),
    "causal": Field("switch", "default: every key is seen"),
    "mask": Field("mask", "instead of causal: 'Window(left=True, right=False)'; default: Full()"),
    **_OF_LENGTHS,
    "page_heads_first": Field("switch", "pages are (heads, page_size, depth); default: off"),
    "fold_pages": Field("switch", "small pages come in one copy; default: on"),
    "page_size": Field("number", "keys of a page, 16 for any multiple; default: 0, not paged"),
    "pack_gqa": Field("switch", "heads of a group share a tile (decode); default: off"),
    "latent": Field("switch", "v is the first columns of k (MLA decode); default: off"),
    "sink": Field("switch", "learnable_sink; default: off"),
    "sink_dtype": Field("text", "of the sink: f32, bf16 or fp16; default: f32"),
    "score_mod": Field("function", "of cute_fa4.score_mods: 'soft_cap(30.0)'; default: none"),
    "mask_mod": Field("function", "likewise; default: none"),
    "aux": Field("aux", "DTYPE:RANK of each aux tensor, f32:4; default: none"),
    "q_block": Field(
        "number", "queries of a block with lists of key blocks, of 16s; default: 0, no lists"
    ),
    "kv_block": Field("number", "keys of a listed block, of 16s; default: 0"),
    "full_blocks": Field("switch", "lists of full blocks, too; default: off"),
    "packed_lists": Field("switch", "lists of all sequences, one after another; default: off"),
    "list_offsets": Field("switch", "a tensor says where their entries begin; default: off"),
    "longest_first": Field("switch", "the longest lists begin first; default: off"),
    "cut_lists": Field("switch", "with it: the longest lists are cut into parts; default: off"),
    "skip_softmax": Field("switch", "key tiles of small weights are skipped; default: off"),
    "count_skipped": Field("switch", "calls have skipped_tiles; default: off"),
    "write_lse": Field("switch", "also write the log-sum-exp; default: off"),
    "write_max": Field("switch", "also write the largest scores (MLA); default: off"),
    "split_keys": Field("switch", "partial results, of parts of the keys; default: off"),
    "share_keys": Field("switch", "with split_keys: as many keys for every CTA; default: off"),
    "rope_depth": Field(
        "number", "last columns of k in a tensor all heads share (MLA); default: 0"
    ),
    "rope_page_size": Field("number", "keys of a page of that tensor; default: 0, rows as k"),
    "rope_dtype": Field("text", "of these columns: e4m3, e5m2 under 16 bits, bf16, fp16 beside 8"),
    "scale_dtype": Field("text", "f32: these columns of 8 bits have scales; default: none"),
    "arch": _ARCH,
    "family": Field(
        "text",
        f"of the kernel, {' or '.join(FAMILIES)}; default: mha2q and mha1q, or as rows and head dims say",
    ),
    "batch_invariant": Field("switch", _INVARIANT),
    # fields of the schedule
    "rows": Field(
        "number", "of a tile with swapped operands (decode): 8, 16, 32, 64; default: none"
    ),
    "order": Field(
        "text",
        "of the products: p_over_s, p_beside_s; of 8 bits p_crossed, p_crossed_summed; default: what suits",
    ),
    "lone_tiles": Field("switch", "softmax shares lone query tiles; default: where lengths differ"),
    "own_parts": Field("switch", "a CTA merges all parts of its rows' keys; default: off"),
    "one_query_tile": Field(
        "switch", "a CTA has one query tile, with the bits of two; default: off"
    ),
    "maximum": Field(
        "text", "of a row: exact or lagged; default: as the problem allows (CUTE_FA4_MAXIMUM)"
    ),
    "first_reference": Field(
        "text", "where a lagged maximum begins: quarter or tile; default: by the tuning table"
    ),
    "exponential": Field(
        "text",
        "of P of eight bits: exact or half; default: as the arch asks (CUTE_FA4_EXPONENTIAL)",
    ),
    "row_sum": Field(
        "text", "of P: exact or rounded, of P of eight bits; default: as the order does"
    ),
    "rescale_log2": Field("real", "how far a row maximum may lag; default: 8, of 8 bits 0"),
    "exp2_emulated": Field("number", "exponentials of 64 on FMA units; default: by arch"),
    "claims": Field("switch", "CTAs take over further blocks; default: on (CUTE_FA4_CLAIMS)"),
    "dependent_launch": Field(
        "switch",
        "start before the last grid ends; default: few queries and split keys (CUTE_FA4_PDL)",
    ),
    "cluster_parts": Field(
        "number", "CTAs that share a block's keys (decode): 1, 2, 4, 8; default: 1"
    ),
    "warps": Field("warps", "'WarpRoles(softmax_registers=184)'; default: WarpRoles()"),
}
APPEND = {
    "dtype": Field("text", "bf16, fp16, e4m3, e5m2, e2m1 or mxe4m3; required"),
    "head_dim": Field("number", "of k; required"),
    "head_dim_v": Field("number", "of v; default: as head_dim"),
    "packed": Field("switch", "new rows with cu_seqlens_k_new; default: off"),
    "page_size": Field("number", "any but 0: paged; default: 0, not paged"),
    "cache_batch_idx": _OF_LENGTHS["cache_batch_idx"],
    "new_dtype": Field(
        "text", "of the new rows, bf16 or fp16 for 8 bits and for 4; default: as dtype"
    ),
    "descales": Field("text", "new rows that are divided by scales, of kKvV; default: none"),
    "v_block_scale_layout": _V_LAYOUT,
    "four_over_six": _FOUR,
    "arch": _ARCH,
}
COMBINE = {
    "o_dtype": Field("text", "of the result: bf16, fp16, f32 or e4m3; required"),
    "head_dim": Field("number", "of the result; required"),
    "packed": Field("switch", "packed queries; default: off"),
    "seqused_q": _OF_LENGTHS["seqused_q"],
    "shared": Field("switch", "of kernels with share_keys; default: off"),
    "write_lse": Field("switch", "also write the log-sum-exp; default: off"),
    "sink": Field("switch", "learnable_sink of a latent cache; default: off"),
    "sink_dtype": CONFIG["sink_dtype"],
    "partial_dtype": Field("text", "of partial results: bf16, fp16 or f32; default: f32"),
    "dependent_launch": Field(
        "switch", "start before the last grid ends; default: on (CUTE_FA4_PDL)"
    ),
    "arch": _ARCH,
}
BACKWARD = {
    "dtype": Field("text", "bf16 or fp16; required"),
    "head_dim": _HEAD_DIM,
    "head_dim_v": CONFIG["head_dim_v"],
    "packed": Field("switch", "packed or padded sequences; default: off"),
    "used": Field("switch", "lengths of sequences, or key_limit, are tensors; default: off"),
    **{name: CONFIG[name] for name in ("causal", "mask", "score_mod", "mask_mod", "aux")},
    "dlse": Field("switch", "the log-sum-exp has a gradient; default: off"),
    "accumulate": Field(
        "switch", "the gradients are added to float32 tensors; default: off, stored as dtype"
    ),
    "listed": Field("switch", "calls have lists of key blocks; default: off"),
    "wanted": Field(
        "numbers",
        "aux tensors whose gradients are computed, in a kernel of their own; default: none",
    ),
    "pairs": Field(
        "switch",
        "pairs of CTAs share the MMAs where they can; default: as calls on this machine do",
    ),
    "joint": Field(
        "switch",
        "one kernel makes all gradients where it can; default: as calls on this machine do",
    ),
    "exp2_emulated": CONFIG["exp2_emulated"],
    "arch": _ARCH,
}
INDEXER = {
    "heads": Field("number", "of a query of the indexer; required"),
    "queries": Field("number", "of a tile; default: those of long calls"),
    "page_size": Field("number", "keys of a page; default: 0, not paged"),
    "ends": Field("text", "rows: a last key for each query; lengths: of each sequence"),
    "clean": Field("switch", "-inf for keys that a query does not see; default: on"),
    "arch": _ARCH,
}
TOPK = {
    "ctas": Field("number", "of a row: 1, 2, 4 or 8; default: 1"),
    "arch": _ARCH,
}
BLOCK_LISTS = {
    "makes": Field("text", f"{', '.join(MAKES)}; required"),
    "arch": _ARCH,
}
# Kind of entry -> its fields. A kind that makes one kernel has a line in TITLES and in entry.py, too.
KINDS = {
    "model": MODEL,
    "config": CONFIG,
    "append": APPEND,
    "combine": COMBINE,
    "backward": BACKWARD,
    "indexer": INDEXER,
    "topk": TOPK,
    "block_lists": BLOCK_LISTS,
}
TITLES = {
    "model": "a model instead of a catalogue (with --heads-q and --heads-kv)",
    "config": "an attention kernel",
    "append": "a kernel that writes new rows to a cache (--kernel append)",
    "combine": "a kernel that merges parts (--kernel combine)",
    "backward": "the kernels of a backward pass (--kernel backward)",
    "indexer": "a kernel that scores keys for sparse attention (--kernel indexer)",
    "topk": "the kernel of the highest logits (--kernel topk)",
    "block_lists": "a kernel that converts lists of key blocks (--kernel block_lists)",
}
