"""check --load: calls every loaded kernel once, as a service would, and compares with float64.

A kernel's configuration determines the call that selects it. Layouts, masks, pages, sinks and score functions
become arguments of flash_attn_varlen_func on two short sequences; they have more rows than a tile if the kernel has
two query tiles. Latent caches have flash_mla_with_kvcache (trial_latent.py). CUTE_FA4_JIT=error ensures that only
loaded kernels run. After the call, the trial checks that this kernel was the one that ran.

trial_definition.py computes the expected result independently. Rows of pages and caches that belong to no sequence
hold NaN.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from cute_fa4.commands import (
    trial_append,
    trial_backward,
    trial_blocks,
    trial_definition,
    trial_indexer,
    trial_latent,
    trial_pages,
    trial_scales,
)
from cute_fa4.commands.trial_pages import (
    ALLOWED_LSE_ERROR,
    DTYPES,
    NotTried,
    lengths_of_keys,
    num_splits,
    page_table,
    pages,
)
from cute_fa4.compiler import functions, policy
from cute_fa4.compiler.policy import JitError
from cute_fa4.dtypes import E8M0, QUANTIZED, is_quantized
from cute_fa4.masks import BoundMask
from cute_fa4.scales import BLOCK, ROW, Scales
from cute_fa4.sm100.append.config import AppendConfig
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.blueprint.score_mods import THEN, packaged_call
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.rows_of_tiles import swapped_rows
from cute_fa4.sm100.combine.config import CombineConfig
from cute_fa4.sm100.few_rows.schedule import SwappedTile
from cute_fa4.sm100.indexer.config import IndexerConfig, TopKConfig
from cute_fa4.sm100.two_tiles.schedule import TwoTiles
from cute_fa4.sm100.work.lists.config import BlockListsConfig

ALLOWED_ERROR = trial_pages.ALLOWED_ERROR | dict.fromkeys(QUANTIZED, trial_scales.ALLOWED_ERROR)

QUERIES = (5, 3)  # of the two sequences; less than a tile, not round
WINDOW, CHUNK = 7, 16  # within these keys, so that a mask hides some


@dataclass(frozen=True)
class Verdict:
    """The verdict on one kernel.

    error, allowed   of out or of the log-sum-exp, whichever is worse
    not_tried        the reason, or ""
    failed           the error of its call, or ""
    """

    name: str
    error: float = 0.0
    allowed: float = 0.0
    seconds: float = 0.0
    not_tried: str = ""
    failed: str = ""

    @property
    def good(self) -> bool:
        return not self.failed and self.error <= self.allowed

    def __str__(self) -> str:
        if self.not_tried:
            return f"{'not tried':>19} {'':8} {self.name}: {self.not_tried}"
        if self.failed:
            return f"{'FAILED':>19} {'':8} {self.name}: {self.failed}"
        wrong = "" if self.good else "  WRONG"
        return f"{self.error:9.2e} {self.allowed:9.0e} {self.seconds:8.2f} {self.name}{wrong}"


HEADER = f"{'error':>9} {'allowed':>9} {'seconds':>8} kernel"


def verdict(config, device: str, executor: str) -> Verdict:
    """Call the loaded kernel of a configuration and compare."""
    begin = time.perf_counter()
    try:
        with _as_loaded(config), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            error, allowed = _try(config, device)
        if functions.existing(config, executor) is None:
            raise NotTried("another loaded kernel answers the same call")
    except NotTried as why:
        return Verdict(config.name, not_tried=str(why))
    except JitError as missing:
        return Verdict(config.name, not_tried=f"its call asks for {_asked(missing)}")
    except Exception as other:  # any error: the other kernels are tried, too
        return Verdict(config.name, failed=f"{type(other).__name__}: {other}")
    return Verdict(config.name, error, allowed, time.perf_counter() - begin)


def _asked(error: JitError) -> str:
    """The name of the missing kernel in a JitError."""
    return str(error).splitlines()[0].removeprefix("kernel ")


@contextlib.contextmanager
def _as_loaded(config):
    """Inside, nothing is compiled, and calls request the claims and the family of the configuration."""
    schedule = getattr(config, "schedule", None)
    wanted = {
        policy.VARIABLE: "error",
        policy.CLAIMS_VARIABLE: "on" if getattr(schedule, "claims", True) else "off",
        policy.SWAP_VARIABLE: "auto" if isinstance(schedule, SwappedTile) else "off",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _try(config, device: str) -> tuple[float, float]:
    """-> (error, allowed) of the worse of out and log-sum-exp."""
    if isinstance(config, AppendConfig):
        if is_quantized(config.dtype):
            raise NotTried("rows of 8 bits have no comparison here")
        return trial_append.wrong_elements(config, device)
    if isinstance(config, BlockListsConfig):
        raise NotTried("it is called with the kernel that reads the lists")
    if isinstance(config, CombineConfig):
        raise NotTried("it is called with the kernel of the parts that it merges")
    if isinstance(config, BackwardConfig):
        if config.has_functions:
            raise NotTried("functions of scores in a backward pass have no comparison here")
        return trial_backward.worst(config, device)
    if isinstance(config, IndexerConfig):
        return trial_indexer.worst(config, device)
    if isinstance(config, FA4Config) and config.own_parts:
        raise NotTried(
            "calls with fewer blocks of queries than SMs, as trials are, have another kernel"
        )
    if isinstance(config, TopKConfig):
        return trial_indexer.wrong_keys(config, device)
    if isinstance(config, FA4Config) and config.latent:
        return trial_latent.worst(config, device)
    if not config.split_keys:
        return _attention(config, device, config.write_lse)
    try:
        return _attention(config, device, False)
    except JitError:  # the loaded merge kernel may be the one that returns the log-sum-exp
        return _attention(config, device, True)


# --- attention


def _attention(config: FA4Config, device: str, with_lse: bool) -> tuple[float, float]:
    from cute_fa4.calls import repeat

    problem = _Problem(config, device)
    repeat.clear()  # so that claims are chosen again
    parts = num_splits(config)
    results = _called(**problem.arguments(), num_splits=parts, return_lse=with_lse)
    out, lse = results if with_lse else (results, None)
    out, lse = out.cpu().double(), None if lse is None else lse.cpu().double()
    found = [(0.0, ALLOWED_ERROR[config.qkv_dtype])]
    for b, rows in enumerate(problem.rows):
        exact, exact_lse = problem.exact(b)
        of_out = out[rows] if config.q_layout == "packed" else out[b, : problem.queries[b]]
        found.append((_worst(of_out - exact), ALLOWED_ERROR[config.qkv_dtype]))
        if lse is not None:
            of_lse = (
                lse[:, rows] if config.q_layout == "packed" else lse[b, :, : problem.queries[b]]
            )
            of_powers = trial_scales.ALLOWED_LSE_ERROR if config.is_quantized else ALLOWED_LSE_ERROR
            found.append((_worst(of_lse - exact_lse), of_powers))
    return max(found, key=lambda pair: pair[0] / pair[1])


def _called(*, cache_batch_idx=None, cache_leftpad=None, **said):
    """flash_attn_varlen_func, or flash_attn_with_kvcache if the call has rows of a cache."""
    from cute_fa4.calls.prepare import prepare_attention
    from cute_fa4.calls.repeat import attend
    from cute_fa4.calls.request import asked_of
    from cute_fa4.interface import flash_attn_varlen_func
    from cute_fa4.operands import tensors_of

    if cache_batch_idx is cache_leftpad is None:
        return flash_attn_varlen_func(**said)
    rows = dict(cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad)
    off = dict(window_size=(None, None), causal=False, softcap=0.0)
    return attend(prepare_attention, tensors_of(said | rows), asked_of(off | said))


def _worst(difference: torch.Tensor) -> float:
    """Largest absolute value; infinite where there is a NaN."""
    return torch.nan_to_num(difference.abs(), nan=math.inf).max().item()


class _Problem:
    """Two sequences that fit a configuration: the tensors of a call, and the expected result."""

    def __init__(self, config: FA4Config, device: str):
        self.config, self.device, self.heads = config, device, config.group
        self.heads_kv = self.heads // config.group
        generator = torch.Generator().manual_seed(0)

        of_keys = "fp16" if config.cache_blocks else config.stored_dtype

        def rows(lengths, heads, dtype=of_keys, depth=config.qk_depth):
            shapes = [(length, heads, depth) for length in lengths]
            return [torch.randn(s, generator=generator).to(DTYPES[dtype]) for s in shapes]

        # A kernel with several query tiles is selected only by more rows than one tile has.
        more = 0
        if isinstance(config.schedule, TwoTiles):
            more = config.tiles.rows_per_q_tile // config.heads_per_tile
        keys = tuple(n + more for n in lengths_of_keys(config))
        queries = tuple(m + more for m in _queries(config))
        # Dense tensors have one length; another tensor may shorten it.
        self.queries = queries if config.clips_queries else (queries[0],) * 2
        self.keys = keys if config.clips_keys else (keys[0],) * 2
        self.q, self.k, self.v = (
            rows(self.queries, self.heads, config.qkv_dtype),
            rows(self.keys, self.heads_kv),
            rows(self.keys, self.heads_kv, depth=config.ov_depth),
        )
        self.blocks = None
        if config.kv_dtype is not None and config.cache_blocks:
            k, v = (trial_blocks.drawn(config.kv_dtype, x) for x in (self.k, self.v))
            self.blocks, self.k, self.v = (k, v), k.meant, v.meant
        for k in self.k if config.rope_depth else ():  # shared columns, in their dtype
            shared = k[:, :1, -config.rope_depth :]
            k[..., -config.rope_depth :] = shared.to(DTYPES[config.rope_stored_dtype])
        # Left padding, and the cache sequence of each sequence.
        self.padding = (3, 0) if config.cache_leftpad else (0, 0)
        self.order = [1, 0] if config.cache_batch_idx else [0, 1]
        self.sink = torch.randn(self.heads, generator=generator).to(DTYPES[config.sink_dtype])
        self.limit = [length - 4 for length in self.keys]
        self.sizes = _sizes(config.mask)
        self.aux = [self._aux(dtype, rank, generator) for dtype, rank in config.aux]
        if config.mask_mod is not None:
            raise NotTried("mask_mod is a function of scores")
        of_callers = not config.split_keys and config.o_dtype not in ("bf16", config.qkv_dtype)
        if Scales.of(config.descales).o or of_callers:
            raise NotTried(f"out of {config.o_dtype} belongs to a caller, who passes out=")
        self.scales = trial_scales.drawn(
            *(config, self.queries, self.keys, self.heads, self.heads_kv, generator)
        )

    @property
    def rows(self) -> list[slice]:
        ends = [sum(self.queries[: b + 1]) for b in range(2)]
        return [slice(end - length, end) for end, length in zip(ends, self.queries, strict=True)]

    def arguments(self) -> dict:
        config, packed = self.config, self.config.q_layout == "packed"
        said: dict[str, Any] = {
            "q": self._packed(self.q) if packed else self._dense(self.q),
            "mask": BoundMask(config.mask, self.sizes),
            "pack_gqa": config.pack_gqa,
            "score_mod": config.score_mod,
        }
        if config.kv_dtype is not None:
            said["q_quantize"] = "never"
        if packed:
            said |= {"cu_seqlens_q": self._offsets(self.queries), "max_seqlen_q": max(self.queries)}
        if config.seqused_q:
            said["seqused_q"] = self._numbers(self.queries)
        if config.seqused_k:
            held = zip(self.padding, self.keys, strict=True)
            said["seqused_k"] = self._numbers([pad + n for pad, n in held])
        if config.cache_batch_idx:
            said["cache_batch_idx"] = self._numbers(self.order)
        if config.cache_leftpad:
            said["cache_leftpad"] = self._numbers(self.padding)
        if config.padded_keys:
            limits = zip(self.padding, self.limit, strict=True)
            said["key_limit"] = self._numbers([pad + limit for pad, limit in limits])
        if config.sink:
            said["learnable_sink"] = self.sink.to(self.device)
        if self.aux:
            said["aux_tensors"] = [tensor.to(self.device) for tensor in self.aux]
        cache = self._cache(self.k, self.v)
        if self.blocks is not None:
            layout = config.v_block_scale_layout
            cache = trial_blocks.arguments(self.blocks, layout, self._cache)
        said |= cache | self._scales()
        return said | self._rope(said["k"], said["q"]) if config.rope_depth else said

    def _rope(self, k: torch.Tensor, q: torch.Tensor) -> dict:
        """Keys without the shared columns, and the shared columns; queries likewise if the dtypes differ."""
        own, page = k.shape[-1] - self.config.rope_depth, self.config.rope_page_size
        dtype = DTYPES[self.config.rope_stored_dtype]
        said = {"k": k[..., :own]}
        if self.config.mixes_rope:
            said |= {"q": q[..., :own], "q_rope": q[..., own:].to(dtype)}
        if self.config.scales_rope:  # one for all rows; each row is read separately
            said["k_rope_descale"] = torch.ones((), device=self.device)
        if not page:
            return said | {"k_rope": k[..., :1, own:].to(dtype)}
        table = page_table(self.keys, page)
        cache = self._pages([rows[:, :1, own:] for rows in self.k], table, page).to(dtype)
        return said | {"k_rope": cache, "k_rope_page_table": table.to(self.device)}

    def _scales(self) -> dict:
        """The scales of a call; per-token scales have the layout of their tensor."""
        named: dict[str, object] = {}
        for (tensor, kind), scale in self.scales.items():
            if kind == BLOCK:
                named |= self._scales_of_blocks(tensor, scale)
                continue
            if kind == ROW and tensor == "q":
                rows = [x[..., None] for x in scale]
                packed = self.config.q_layout == "packed"
                scale = (self._packed(rows) if packed else self._dense(rows))[..., 0]
            elif kind == ROW:
                scale = self._stored([x[..., None] for x in scale])[..., 0]
            named[f"{tensor}_descale"] = scale.to(self.device)
        return named

    def _scales_of_blocks(self, tensor: str, rows: list[torch.Tensor]) -> dict:
        """The scales of q or k in the layout of the tensor, NaN for unused rows."""
        if tensor == "q":
            stored = self._packed(rows) if self.config.q_layout == "packed" else self._dense(rows)
        else:
            stored = self._stored(rows)
        return {f"{tensor}_descale": stored.to(E8M0.torch).to(self.device)}

    def _stored(self, sequences: list[torch.Tensor]) -> torch.Tensor:
        """The rows of keys, at the places of the rows of K."""
        if self.config.kv_layout == "packed":
            return self._packed(sequences)
        rows = self._padded(sequences)
        if self.config.kv_layout == "paged":
            size = self.config.page_size
            return self._pages(rows, page_table([len(x) for x in rows], size), size)
        return self._dense([rows[b] for b in self.order])

    def _cache(self, of_k: list[torch.Tensor], of_v: list[torch.Tensor]) -> dict:
        layout = self.config.kv_layout
        k, v = self._padded(of_k), self._padded(of_v)
        if layout == "paged":
            table = page_table([len(rows) for rows in k], self.config.page_size)
            size = self.config.page_size
            paged = {x: self._pages(rows, table, size) for x, rows in (("k", k), ("v", v))}
            return {**paged, "page_table": table[self.order].to(self.device)}
        if layout == "packed":
            offsets = {"cu_seqlens_k": self._offsets(self.keys)}
            return {"k": self._packed(of_k), "v": self._packed(of_v), **offsets}
        return {x: self._dense([rows[b] for b in self.order]) for x, rows in (("k", k), ("v", v))}

    def _padded(self, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """Prepends rows of NaN before the first key."""
        return [
            torch.cat([sequence.new_full((pad, *sequence.shape[1:]), math.nan), sequence])
            for pad, sequence in zip(self.padding, rows, strict=True)
        ]

    def _pages(self, rows: list[torch.Tensor], table: torch.Tensor, size: int) -> torch.Tensor:
        return pages(rows, table, size).to(self.device)

    def _packed(self, rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(rows).to(self.device)

    def _dense(self, rows: list[torch.Tensor]) -> torch.Tensor:
        dense = torch.full(
            (2, max(map(len, rows)), *rows[0].shape[1:]), math.nan, dtype=rows[0].dtype
        )
        for b, sequence in enumerate(rows):
            dense[b, : len(sequence)] = sequence
        return dense.to(self.device)

    def _offsets(self, lengths) -> torch.Tensor:
        return self._numbers([0, lengths[0], sum(lengths)])

    def _numbers(self, numbers) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self.device)

    def functions(self) -> list[tuple]:
        """(name, argument) of the score functions, in the order in which they are applied."""
        mod = self.config.score_mod
        found = [] if mod is None else [packaged_call(key) for key in mod.key.split(THEN)]
        calls = [call for call in found if call is not None]
        if len(calls) < len(found):
            raise NotTried("a function of the caller's has no definition here")
        return calls

    def _aux(self, dtype: str, rank: int, generator) -> torch.Tensor:
        """aux[0] as the first function that reads it requires; NotTried if several require different ones."""
        readers = [c for c in self.functions() if c[0] in ("additive_bias", "relative_logits")]
        if len(set(readers)) != 1 or len(self.config.aux) != 1:
            raise NotTried("its functions read several aux tensors")
        [(name, argument)] = set(readers)
        rows = sum(self.queries) if self.config.q_layout == "packed" else 2 * max(self.queries)
        shape = (rows, self.heads, argument)
        if name == "additive_bias":
            heads = (self.heads,) if argument else ()
            shape = (2, *heads, max(self.queries), max(self.keys))
        if len(shape) != rank:
            raise NotTried(f"aux of rank {rank}, {name} reads {len(shape)}")
        return torch.randn(shape, generator=generator).to(DTYPES[dtype])

    def exact(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        """out (queries, heads, depth) and log-sum-exp (heads, queries) of a sequence, by their definition."""
        return trial_definition.exact(self, b)


def _queries(config: FA4Config) -> tuple[int, int]:
    """Query lengths of two sequences for which calls select this tile height."""
    if not isinstance(config.schedule, SwappedTile):
        return QUERIES
    rows, heads = config.schedule.rows, config.heads_per_tile
    for longest in range(1, rows + 1):
        if swapped_rows(longest, heads) == rows:
            return longest, max(longest - 1, 1)
    raise NotTried(f"calls of {heads} heads a tile ask for other heights than rows={rows}")


def _sizes(mask) -> tuple[int, ...]:
    """Run-time sizes of a mask, in the order of its kinds."""
    if hasattr(mask, "a"):
        return _sizes(mask.a) + _sizes(mask.b)
    size = WINDOW if hasattr(mask, "left") else CHUNK
    return (size,) * mask.num_sizes
