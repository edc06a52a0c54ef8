"""A call of the lightning indexer: checks by metadata, views for the kernel, the launch.

The kernel of scores (sm100/indexer/kernel.py) has one form for both calls: keys without pages are one page with all
of them. The kernel of the highest ones is sm100/indexer/topk.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from cute_fa4.calls.launch import function_for, launching_on
from cute_fa4.calls.operands.lengths import check_index_tensor
from cute_fa4.calls.operands.memory import check_memory, with_plain_strides
from cute_fa4.calls.operands.tensors import (
    MAX_CTAS,
    MAX_SEQLEN,
    check_is_tensor,
    check_no_gradient,
    check_place,
    check_rank,
)
from cute_fa4.calls.split_keys.split import num_sms
from cute_fa4.dtypes import E4M3
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.indexer.config import (
    CTAS_OF_ROW,
    DEPTH,
    KEYS,
    MOST_HEADS,
    OF_HEADS,
    IndexerConfig,
    TopKConfig,
    is_page_size,
    queries_of_tile,
    tiles_of,
)
from cute_fa4.system.clusters import most_clusters
from cute_fa4.system.devices import target_of

SCALE_BYTES = 4
KEY_BYTES = DEPTH + SCALE_BYTES  # of a cache: its numbers and its scale
BYTES = (torch.uint8, torch.int8, E4M3.torch)


class Dense(NamedTuple):
    """Arguments of fp8_mqa_logits, by name."""

    q: torch.Tensor
    k: torch.Tensor
    k_scale: torch.Tensor
    weights: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    clean: bool = True

    def check(self) -> None:
        """Refuse by metadata what the kernel does not read."""
        _check_queries(self.q, ("queries", "heads", "head_dim"))
        check_is_tensor("k", self.k)
        check_is_tensor("k_scale", self.k_scale)
        check_rank("k", self.k, ("keys", "head_dim"))
        _check_dtype("k", self.k, (E4M3.torch,))
        _check_depth("k", self.k)
        check_memory("k", self.k, ("keys", "head_dim"))
        check_place("k", self.k, self.q.device)
        _check_numbers("k_scale", self.k_scale, self.k.shape[:1], self.q)
        _check_numbers("weights", self.weights, self.q.shape[:2], self.q)
        for name, tensor in (
            ("cu_seq_len_k_start", self.starts),
            ("cu_seq_len_k_end", self.ends),
        ):
            check_is_tensor(name, tensor)
            check_index_tensor(name, tensor, 1, self.q.device, ("queries",))
            _check_shape(name, tensor, self.q.shape[:1])
        _check_grid(self.q.shape[0], self.q.shape[1], self.k.shape[0], 1)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Fields that are no tensors."""
        return ("clean",)

    @property
    def dtype(self) -> torch.dtype:
        """That of the result, as shape."""
        return torch.float32

    @property
    def shape(self) -> tuple[int, int]:
        return self.q.shape[0], self.k.shape[0]

    def run(self) -> torch.Tensor:
        heads = self.q.shape[1]
        config = IndexerConfig(heads, queries_of_tile(heads), clean=self.clean)
        k, scale = self.k[:, None], self.k_scale[:, None]
        rows = (x[None] for x in (self.q, self.weights, self.starts, self.ends))
        q, weights, starts, ends = rows
        return _launched(config, (q, k, scale, weights, starts, ends, None), self.shape)


class Paged(NamedTuple):
    """Arguments of fp8_paged_mqa_logits, by name."""

    q: torch.Tensor
    cache: torch.Tensor
    weights: torch.Tensor
    lengths: torch.Tensor
    table: torch.Tensor
    width: int
    clean: bool = False

    def check(self) -> None:
        """As Dense.check."""
        _check_queries(self.q, ("batch", "next_n", "heads", "head_dim"))
        batch, queries, heads, _ = self.q.shape
        self._check_cache()
        _check_numbers("weights", self.weights, (batch * queries, heads), self.q)
        check_is_tensor("context_lens", self.lengths)
        rank = 2 if self.lengths.dim() == 2 else 1
        axes = ("batch", "next_n")[:rank]
        check_index_tensor("context_lens", self.lengths, rank, self.q.device, axes)
        _check_shape("context_lens", self.lengths, (batch, queries)[:rank])
        check_is_tensor("block_table", self.table)
        check_index_tensor("block_table", self.table, 2, self.q.device)
        _check_shape("block_table", self.table, (batch, self.table.shape[1]))
        if not 0 <= self.width <= MAX_SEQLEN:
            raise ValueError(
                f"max_context_len: {self.width}; accepted: 0 to {MAX_SEQLEN}, the columns of the logits"
            )
        _check_grid(queries, heads, self.width, batch)

    def _check_cache(self) -> None:
        name, cache = "kv_cache", self.cache
        check_is_tensor(name, cache)
        check_rank(name, cache, ("num_blocks", "block_size", "1", str(KEY_BYTES)))
        _check_dtype(name, cache, BYTES)
        _, size, heads, columns = cache.shape
        if heads != 1 or columns != KEY_BYTES:
            raise ValueError(
                f"{name}: shape {tuple(cache.shape)}; accepted: (num_blocks, block_size, 1, {KEY_BYTES}), a key is "
                f"{DEPTH} bytes and a float32 scale"
            )
        if not is_page_size(size) or size == 0:
            raise ValueError(
                f"{name}: block_size {size}; accepted: 8, 16, 32, 64, or a multiple of {KEYS}, so that key tiles and "
                "pages nest; allocate the cache with another block_size"
            )
        if cache.numel() and cache.stride()[1::2] != (KEY_BYTES, 1):
            raise ValueError(
                f"{name}: strides {cache.stride()}; accepted: contiguous blocks, {size} keys and then {size} scales; "
                f"copy with {name}.contiguous()"
            )
        check_memory(name, _blocks(cache), ("num_blocks", "bytes"))
        check_place(name, cache, self.q.device)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Fields that are no tensors."""
        return ("width", "clean")

    @property
    def dtype(self) -> torch.dtype:
        """That of the result, as shape."""
        return torch.float32

    @property
    def shape(self) -> tuple[int, int]:
        return self.q.shape[0] * self.q.shape[1], self.width

    def run(self) -> torch.Tensor:
        batch, queries, heads, _ = self.q.shape
        config = IndexerConfig(
            heads,
            queries_of_tile(heads, queries),
            page_size=self.cache.shape[1],
            ends="rows" if self.lengths.dim() == 2 else "lengths",
            clean=self.clean,
        )
        k, scale = keys_and_scales(self.cache)
        weights = self.weights.view(batch, queries, heads)
        given = self.q, k, scale, weights, None, self.lengths, self.table
        return _launched(config, given, self.shape)


class TopK(NamedTuple):
    """Arguments of topk_indices, by name."""

    logits: torch.Tensor
    starts: torch.Tensor | None
    ends: torch.Tensor | None
    k: int

    def check(self) -> None:
        """As Dense.check."""
        logits, k = self.logits, self.k
        check_is_tensor("logits", logits)
        check_rank("logits", logits, ("rows", "keys"))
        if logits.dtype is not torch.float32:
            raise TypeError(f"logits: dtype {logits.dtype}; accepted: torch.float32")
        rows, keys = logits.shape
        if logits.numel() and keys > 1 and logits.stride(1) != 1:
            raise ValueError(
                f"logits: strides {logits.stride()}; accepted: the keys of a row contiguous; copy with "
                "logits.contiguous()"
            )
        for name, number in (("keys", keys), ("k", k)):
            if not 0 <= number <= MAX_SEQLEN:
                raise ValueError(f"{name}: {number}; accepted: 0 to {MAX_SEQLEN}")
        check_no_gradient({"logits": logits})
        for name, tensor in (("starts", self.starts), ("ends", self.ends)):
            if tensor is not None:
                check_index_tensor(name, tensor, 1, logits.device, ("rows",))
                _check_shape(name, tensor, (rows,))

    @property
    def numbers(self) -> tuple[str, ...]:
        """Fields that are no tensors."""
        return ("k",)

    @property
    def dtype(self) -> torch.dtype:
        """That of the result, as shape."""
        return torch.int32

    @property
    def shape(self) -> tuple[int, int]:
        return self.logits.shape[0], self.k

    def run(self, ctas: int | None = None) -> torch.Tensor:
        """ctas: of a row; None: chosen. The result does not depend on it."""
        logits, (rows, keys) = self.logits, self.logits.shape
        if keys == 0:
            return logits.new_full(self.shape, -1, dtype=torch.int32)
        out = logits.new_empty(self.shape, dtype=torch.int32)
        if out.numel() == 0:
            return out
        starts = self.starts
        if starts is None:
            starts = logits.new_zeros(rows, dtype=torch.int32)
        ends = self.ends
        if ends is None:
            ends = logits.new_full((rows,), keys, dtype=torch.int32)
        target = target_of(logits.device)
        if ctas is None:
            ctas = ctas_of_row(rows, keys, num_sms(logits.device), logits.device)
        plain = with_plain_strides(logits)
        with launching_on(logits.device):
            function_for(TopKConfig(target.arch, ctas), target)(plain, starts, ends, out)
        return out


def ctas_of_row(rows: int, keys: int, sms: int, device: torch.device) -> int:
    """CTAs that share a row of so many logits, none of which waits for an SM.

    >>> emulated = 148, torch.device("cpu")
    >>> [ctas_of_row(rows, 131072, *emulated) for rows in (1, 16, 17, 32, 37, 64, 75)]
    [8, 8, 4, 4, 2, 2, 1]
    >>> ctas_of_row(1, 16383, *emulated)
    1
    """
    if keys < tuning.choose("topk_shared_keys"):
        return 1
    fitting = (ctas for ctas in CTAS_OF_ROW[:0:-1] if rows <= most_clusters(device, ctas, sms))
    return next(fitting, 1)


def keys_and_scales(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of a cache: numbers (block_size, num_blocks, 128) e4m3, scales (block_size, num_blocks) float32."""
    size, flat = cache.shape[1], _blocks(cache.view(torch.uint8))
    numbers, scales = flat[:, : size * DEPTH], flat[:, size * DEPTH :]
    numbers = numbers.view(E4M3.torch).unflatten(1, (size, DEPTH))
    return numbers.transpose(0, 1), scales.view(torch.float32).transpose(0, 1)


def _blocks(cache: torch.Tensor) -> torch.Tensor:
    """(num_blocks, bytes of a block) of a cache whose blocks are contiguous."""
    return cache.as_strided((cache.shape[0], cache.shape[1] * KEY_BYTES), (cache.stride(0), 1))


def _launched(config: IndexerConfig, given: tuple, shape: tuple[int, int]) -> torch.Tensor:
    """The logits. given: the arguments of IndexerKernel.__call__ up to `pages`; config: without the architecture."""
    q, k, *_ = given
    if k.numel() == 0:
        return q.new_full(shape, -torch.inf, dtype=torch.float32)
    out = q.new_empty(shape, dtype=torch.float32)
    if out.numel() == 0:
        return out
    target = target_of(q.device)
    config = IndexerConfig(**{**vars(config), "arch": target.arch})
    q, k = with_plain_strides(q), with_plain_strides(k)
    batch, queries = q.shape[:2]
    each = tiles_each(
        config, batch * tiles_of(queries, config.queries), shape[1], num_sms(q.device)
    )
    with launching_on(q.device):
        function_for(config, target)(q, k, *given[2:], out.view(batch, queries, shape[1]), each)
    return out


def tiles_each(config: IndexerConfig, query_tiles: int, keys: int, sms: int) -> int:
    """Key tiles of a CTA: more than one where the SMs have CTAs enough. No result depends on it.

    >>> config = IndexerConfig(64, 2)
    >>> [tiles_each(config, tiles, 8192, 148) for tiles in (1, 64, 4096)]
    [1, 6, 32]
    """
    ctas = tuning.choose("logits_ctas") * sms
    return max(1, min(tuning.choose("logits_tiles"), query_tiles * tiles_of(keys, KEYS) // ctas))


def _check_queries(q, axes: tuple[str, ...]) -> None:
    check_is_tensor("q", q)
    check_rank("q", q, axes)
    _check_dtype("q", q, (E4M3.torch,))
    _check_depth("q", q)
    heads = q.shape[-2]
    if heads % OF_HEADS or not 0 < heads <= MOST_HEADS:
        raise ValueError(
            f"q: {heads} heads; accepted: multiples of {OF_HEADS} up to {MOST_HEADS}; pad q and weights with zeros"
        )
    check_memory("q", q, axes)
    check_place("q", q, q.device)


def _check_dtype(name: str, tensor: torch.Tensor, accepted: tuple) -> None:
    if tensor.dtype not in accepted:
        raise TypeError(
            f"{name}: dtype {tensor.dtype}; accepted: {', '.join(map(str, accepted))}; quantize it first"
        )


def _check_depth(name: str, tensor: torch.Tensor) -> None:
    if tensor.shape[-1] != DEPTH:
        raise ValueError(
            f"{name}: head_dim {tensor.shape[-1]}; accepted: {DEPTH}, that of the indexer; pad with zeros"
        )


def _check_shape(name: str, tensor: torch.Tensor, shape: tuple) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name}: shape {tuple(tensor.shape)}; accepted: {tuple(shape)}")


def _check_numbers(name: str, tensor, shape: tuple, q: torch.Tensor) -> None:
    """A float32 tensor of this shape, on the device of q."""
    check_is_tensor(name, tensor)
    if tensor.dtype is not torch.float32:
        raise TypeError(
            f"{name}: dtype {tensor.dtype}; accepted: torch.float32; convert with .float()"
        )
    _check_shape(name, tensor, shape)
    check_place(name, tensor, q.device)


def _check_grid(queries: int, heads: int, keys: int, batch: int) -> None:
    tiles = batch * tiles_of(queries, queries_of_tile(heads, queries))
    ctas = tiles * tiles_of(tiles_of(keys, KEYS), tuning.choose("logits_tiles"))
    if ctas > MAX_CTAS:
        raise ValueError(
            f"q: {queries * batch} queries over {keys} keys take {ctas} CTAs; accepted: at most {MAX_CTAS}; call with "
            "fewer queries at a time"
        )
