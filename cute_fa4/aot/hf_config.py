"""The config.json of a transformers model -> [[model]] entries of a catalogue, for the calls that a server makes.

    num_attention_heads, num_key_value_heads, head_dim or hidden_size     heads and head dim
    torch_dtype (dtype)                            dtype
    sliding_window, layer_types, ...               windows: of all layers, or of some
    attention_chunk_size                           chunk
    attn_logit_softcapping                         softcap
    model_type "gpt_oss"                           sink, of the model's dtype
    kv_lora_rank, qk_rope_head_dim, ...            MLA: decode from the latent cache, and prefill with k_rope
    index_topk, index_n_heads, index_head_dim      keys by index, over rows of 656 bytes, and the indexer

transformers is not imported. Names are those of the published configurations.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from cute_fa4 import dtypes
from cute_fa4.aot.manifest import ExportError
from cute_fa4.compiler.policy import BEFORE

# Served in 16 bits.
DTYPES = {dtypes.DTYPES[name].torch_name: name for name in dtypes.UNQUANTIZED}
DTYPES[dtypes.F32.torch_name] = dtypes.BF16.name
CALLS = ("packed", "paged")  # of a server: flash_attn_varlen_func, with and without a cache
WITHOUT_CACHE, OVER_CACHE = ("dense", "packed", "ranks"), ("paged", "kvcache", "cascade")
LATENT, ROTARY = 512, 64  # columns of a latent cache
SINKS = ("gpt_oss",)  # model types with a learned sink for each head
# Model types whose tokens see each other.
ENCODERS = (
    *("bert", "roberta", "xlm-roberta", "modernbert", "vit"),
    *("siglip_vision_model", "clip_vision_model"),
)
HEADS = ("num_attention_heads", "n_head", "num_heads")
WIDTHS = ("hidden_size", "n_embd")


class _Entry(NamedTuple):
    """Fields of an entry, `calls` among them, and which other calls it lists if they are asked for.

    fixed   fields that follow from what its calls are for, whatever the flags of a model say
    """

    said: dict
    on_request: tuple = ()
    fixed: tuple = ()

    def with_flags(self, given: dict) -> dict:
        """Its fields, with those of `given` in place of what config.json says."""
        return self.said | {name: given[name] for name in given if name not in self.fixed}

    def of(self, calls: tuple | None) -> tuple:
        """Those of `calls` that it lists; None: those of a server."""
        served = self.said["calls"]
        return (
            served if calls is None else tuple(c for c in calls if c in (*served, *self.on_request))
        )


def models_of(
    path,
    *,
    page_size: int = 16,
    kv_dtype: str | None = None,
    tensor_parallel: int = 1,
    calls: tuple | None = None,
    q_quantize: str | None = None,
    given: dict | None = None,
) -> list[dict]:
    """Entries, as aot/entry.py reads them; ExportError for an unsupported model.

    path             config.json, or the directory that has it
    page_size        keys of a page of the cache
    kv_dtype         of caches: "e4m3", "e5m2", "e2m1", "mxe4m3"; None: as that of the model. An entry for calls without
                     a cache, one for queries of 16 bits over it, and one for queries quantized before the call
    tensor_parallel  GPUs that share the heads
    calls            of configs_for_model, each listed by the entries that have its tensors; None: those of a server
    q_quantize       "auto" or "never": only queries of 16 bits over such a cache, "before": only quantized ones; None:
                     both
    given            further fields by name, which override what config.json says
    """
    if q_quantize is not None and kv_dtype is None:
        raise ExportError(
            f"--q-quantize: {q_quantize!r} without --kv-dtype; accepted: --kv-dtype, too"
        )
    cache = {"page_size": page_size, "kv_dtype": kv_dtype, "q_quantize": q_quantize}
    entries = _entries_of(path, tensor_parallel, cache)
    accepted = dict.fromkeys(
        c for found in entries for c in (*found.said["calls"], *found.on_request)
    )
    unknown = [call for call in calls or () if call not in accepted]
    if unknown:
        raise ExportError(
            f"--calls: {unknown} of the model of {path}; accepted: {', '.join(accepted)}"
        )
    asked = [(found.with_flags(given or {}), found.of(calls)) for found in entries]
    return [said | {"calls": listed} for said, listed in asked if listed]


def _entries_of(path, tensor_parallel: int, cache: dict) -> list[_Entry]:
    """cache: page_size, kv_dtype, q_quantize."""
    said = _read(path)
    said = {**said, **(said.get("text_config") or {})}
    heads = _number(path, said, *HEADS)
    shared = {"dtype": _dtype(path, said)}
    if said.get("kv_lora_rank"):
        return _latent(path, said, _part(path, heads, tensor_parallel), shared, cache)
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
        page_sizes=(cache["page_size"],),
        calls=CALLS,
        softcap=float(said.get("attn_logit_softcapping") or 0.0),
    )
    if chunk is not None:
        model["chunk"] = chunk
    if said.get("model_type") in SINKS:
        model["sink"] = shared["dtype"]
    if not model["causal"]:
        if cache["kv_dtype"] is not None:
            raise ExportError(
                f"--kv-dtype: {cache['kv_dtype']!r} of an encoder ({path}); accepted: none, it has no cache"
            )
        return [_Entry(model | {"calls": ("dense", "packed")}, WITHOUT_CACHE)]
    if cache["kv_dtype"] is None:
        return [_Entry(model, (*WITHOUT_CACHE, *OVER_CACHE))]
    without_cache = model | {"calls": ("packed",), "page_sizes": ()}
    over_cache = _over_cache(model | {"calls": ("paged",)}, cache)
    return [
        _Entry(without_cache, WITHOUT_CACHE),
        *(_Entry(said, OVER_CACHE) for said in over_cache),
    ]


def _over_cache(model: dict, cache: dict) -> list[dict]:
    """Entries for calls over a cache: of its kv_dtype, q has 16 bits, or kv_dtype if an MMA multiplies it."""
    kv_dtype, q_quantize = cache["kv_dtype"], cache["q_quantize"]
    if kv_dtype is None:
        return [model]
    cached = model | {"kv_dtype": kv_dtype}
    of_16 = cached | {"descales": "kv"}
    of_8 = cached | {"descales": "qkv", "q_quantize": BEFORE}
    if q_quantize is not None:
        return [of_8 if q_quantize == BEFORE else of_16 | {"q_quantize": q_quantize}]
    return [of_16, of_8] if dtypes.is_quantized(kv_dtype) else [of_16]


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


def _latent(path, said: dict, heads: int, shared: dict, cache: dict) -> list[_Entry]:
    """Decode from a latent cache of one head, prefill with its rotary columns in a separate tensor."""
    latent, rotary = said["kv_lora_rank"], said.get("qk_rope_head_dim")
    if (latent, rotary) != (LATENT, ROTARY):
        raise ExportError(
            f"{path}: kv_lora_rank {latent}, qk_rope_head_dim {rotary}; accepted: {LATENT} and {ROTARY}"
        )
    pages = (cache["page_size"],)
    row = shared | dict(head_dim=LATENT + ROTARY, heads_q=heads, heads_kv=1, calls=("latent",))
    if said.get("index_topk"):  # lists of keys, each a page
        listed = {"page_sizes": (1,), "causal": False}
        row |= listed
        decode = [_Entry(row | {"calls": ("latent_rows",)}, fixed=tuple(listed))]
        decode += [
            _Entry(found | {"calls": ()}, ("latent",), tuple(listed))
            for found in _over_cache(row, cache)
        ]
    else:
        decode = [_Entry(found) for found in _over_cache(row | {"page_sizes": pages}, cache)]
    prefill = shared | dict(
        head_dim=_number(path, said, "qk_nope_head_dim") + ROTARY, head_dim_v=_number(path, said, "v_head_dim"),
        heads_q=heads, heads_kv=heads,
        calls=("packed",), rope_depth=ROTARY, rope_page_sizes=pages, return_lse=(False, True), splits=False,
    )  # fmt: skip
    of_chunks = dict(causal=False, rope_page_sizes=(), return_lse=(True,))  # merged by their LSE
    chunks = _Entry(prefill | of_chunks, ("dense",), fixed=tuple(of_chunks))
    entries = [*decode, _Entry(prefill, ("dense",)), chunks]
    if said.get("index_n_heads"):  # every GPU has all of its heads
        of_indexer = dict(
            head_dim=_number(path, said, "index_head_dim"),
            heads_q=said["index_n_heads"],
            heads_kv=1,
            calls=("indexer",),
            page_sizes=pages,
        )
        entries.append(_Entry(shared | of_indexer, fixed=tuple(of_indexer)))
    return entries
