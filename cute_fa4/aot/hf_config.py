"""The config.json of a transformers model -> [[model]] entries of a catalogue, for the calls that a server makes.

    num_attention_heads, num_key_value_heads, head_dim or hidden_size     heads and head dim
    torch_dtype (dtype)                            dtype
    sliding_window, layer_types, ...               windows: of all layers, or of some
    attention_chunk_size                           chunk
    attn_logit_softcapping                         softcap
    model_type "gpt_oss"                           sink, of the model's dtype
    kv_lora_rank, qk_rope_head_dim, ...            MLA: decode from the latent cache, and prefill with k_rope
    index_topk                                     keys by index, over rows of 656 bytes

transformers is not imported. Names are those of the published configurations.
"""

from __future__ import annotations

import json
from pathlib import Path

from cute_fa4 import dtypes
from cute_fa4.aot.manifest import ExportError
from cute_fa4.aot.model_dtypes import BEFORE

# Served in 16 bits.
DTYPES = {dtypes.DTYPES[name].torch_name: name for name in dtypes.UNQUANTIZED}
DTYPES[dtypes.F32.torch_name] = dtypes.BF16.name
CALLS = ("packed", "paged")  # of a server: flash_attn_varlen_func, with and without a cache
LATENT, ROTARY = 512, 64  # columns of a latent cache
SINKS = ("gpt_oss",)  # model types with a learned sink for each head
# Model types whose tokens see each other.
ENCODERS = (
    *("bert", "roberta", "xlm-roberta", "modernbert", "vit"),
    *("siglip_vision_model", "clip_vision_model"),
)
HEADS = ("num_attention_heads", "n_head", "num_heads")
WIDTHS = ("hidden_size", "n_embd")


def models_of(
    path, *, page_size: int = 16, kv_dtype: str | None = None, tensor_parallel: int = 1
) -> list[dict]:
    """Entries, as aot/entry.py reads them; ExportError for an unsupported model.

    path             config.json, or the directory that has it
    page_size        keys of a page of the cache
    kv_dtype         of caches: "e4m3", "e5m2" or "e2m1"; None: as the model's dtype. An entry for calls without a
                     cache, one for queries of 16 bits over it, and one for queries that are quantized before the call
    tensor_parallel  GPUs that share the heads
    """
    said = _read(path)
    said = {**said, **(said.get("text_config") or {})}
    heads = _number(path, said, *HEADS)
    shared = {"dtype": _dtype(path, said)}
    if said.get("kv_lora_rank"):
        return _latent(path, said, _part(path, heads, tensor_parallel), shared, page_size, kv_dtype)
    heads_q, heads_kv = _part(path, heads, tensor_parallel), _heads_kv(said, heads)
    if heads_kv % tensor_parallel and tensor_parallel % heads_kv:
        raise ExportError(
            f"--tensor-parallel: {tensor_parallel} of {heads_kv} key/value heads ({path}); accepted: a divisor or a "
            f"multiple of {heads_kv}"
        )
    depth = said.get("head_dim") or _number(path, said, *WIDTHS) // heads
    windows, chunk = _windows(said)
    model = shared | dict(
        head_dim=depth,
        head_dim_v=said.get("v_head_dim") or depth,
        heads_q=heads_q,
        heads_kv=max(1, heads_kv // tensor_parallel),
        causal=said.get("model_type") not in ENCODERS,
        windows=windows,
        page_sizes=(page_size,),
        calls=CALLS,
        softcap=float(said.get("attn_logit_softcapping") or 0.0),
    )
    if chunk is not None:
        model["chunk"] = chunk
    if said.get("model_type") in SINKS:
        model["sink"] = shared["dtype"]
    if not model["causal"]:
        return [model | {"calls": ("dense", "packed")}]
    if kv_dtype is None:
        return [model]
    # No pages: --calls paged adds no cache of 16 bits.
    without_cache = model | {"calls": ("packed",), "page_sizes": ()}
    return [without_cache, *_over_cache(model | {"calls": ("paged",)}, kv_dtype)]


def _over_cache(model: dict, kv_dtype: str) -> list[dict]:
    """Entries for calls over a cache of kv_dtype: q has 16 bits, or kv_dtype if an MMA multiplies it."""
    cached = model | {"kv_dtype": kv_dtype}
    found = [cached | {"descales": "kv"}]
    if dtypes.is_quantized(kv_dtype):
        found.append(cached | {"descales": "qkv", "q_quantize": BEFORE})
    return found


def _read(path) -> dict:
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    try:
        said = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ExportError(f"{path}: {error}; accepted: config.json of a model") from None
    if not isinstance(said, dict):
        raise ExportError(f"{path}: no object; accepted: config.json of a transformers model")
    return said


def _number(path, said: dict, *names: str) -> int:
    """The first of these fields that the model has."""
    found = next((said[name] for name in names if isinstance(said.get(name), int)), None)
    if found is None:
        raise ExportError(f"{path}: no {names[0]}; accepted: config.json of a transformers model")
    return found


def _dtype(path, said: dict) -> str:
    name = str(said.get("torch_dtype") or said.get("dtype") or "bfloat16").removeprefix("torch.")
    if name not in DTYPES:
        raise ExportError(f"{path}: torch_dtype {name!r}; accepted: {', '.join(DTYPES)}")
    return DTYPES[name]


def _part(path, heads: int, tensor_parallel: int) -> int:
    if tensor_parallel < 1 or heads % tensor_parallel:
        raise ExportError(
            f"--tensor-parallel: {tensor_parallel} of {heads} heads ({path}); accepted: a divisor of {heads}"
        )
    return heads // tensor_parallel


def _heads_kv(said: dict, heads: int) -> int:
    if said.get("multi_query") and not said.get("new_decoder_architecture"):
        return 1  # Falcon, StarCoder
    return said.get("num_key_value_heads") or said.get("num_kv_heads") or heads


def _windows(said: dict) -> tuple[tuple, int | None]:
    """-> (windows of an entry, keys of a chunk or None)."""
    types, size = set(said.get("layer_types") or ()), said.get("sliding_window")
    chunk = said.get("attention_chunk_size")
    if said.get("use_sliding_window") is False:
        size = None
    if not types:
        types = {"sliding_attention"} if size else {"full_attention"}
        between = ("sliding_window_pattern", "max_window_layers", "global_attn_every_n_layers")
        if any(said.get(name) for name in between) or said.get("model_type") == "gemma2":
            types.add("full_attention")
        if chunk:
            types |= {"chunked_attention", "full_attention"}
    window = [[size - 1, 0]] if size and "sliding_attention" in types else []
    full: list[list] = [[]] if "full_attention" in types or not window else []
    return (*full, *window), chunk if "chunked_attention" in types else None


def _latent(path, said: dict, heads: int, shared: dict, page_size: int, kv_dtype) -> list[dict]:
    """Decode from a latent cache of one head, prefill with its rotary columns in a separate tensor."""
    latent, rotary = said["kv_lora_rank"], said.get("qk_rope_head_dim")
    if (latent, rotary) != (LATENT, ROTARY):
        raise ExportError(
            f"{path}: kv_lora_rank {latent}, qk_rope_head_dim {rotary}; accepted: {LATENT} and {ROTARY}"
        )
    decode = shared | dict(
        head_dim=LATENT + ROTARY, heads_q=heads, heads_kv=1, calls=("latent",), page_sizes=(page_size,)
    )  # fmt: skip
    found = [decode] if kv_dtype is None else _over_cache(decode, kv_dtype)
    if said.get("index_topk"):  # lists of keys, each a page
        rows = {"calls": ("latent_rows",), "page_sizes": (1,), "causal": False}
        found = [shared | dict(head_dim=LATENT + ROTARY, heads_q=heads, heads_kv=1) | rows]
    prefill = shared | dict(
        head_dim=_number(path, said, "qk_nope_head_dim") + ROTARY, head_dim_v=_number(path, said, "v_head_dim"),
        heads_q=heads, heads_kv=heads,
        calls=("packed",), rope_depth=ROTARY, rope_page_sizes=(page_size,), return_lse=(False, True), splits=False,
    )  # fmt: skip
    chunks = prefill | dict(causal=False, rope_page_sizes=(), return_lse=(True,))
    return [*found, prefill, chunks]
