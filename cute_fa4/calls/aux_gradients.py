"""Gradients of the tensors that a score function reads: sums that kernels write, added up in a fixed order.

The kernel (sm100/backward/sums.py) has a CTA for each 128 queries of a head. A CTA writes to its own line, so no two
write to one place. Here the lines become gradients, in float64: each score of a line belongs to an element of the aux
tensor, whose indices the traced expressions give. torch.Tensor.index_put_ adds them: on a GPU it sorts them first, on
a CPU it adds float64 in sequence.

Memory: lines of at most LINES bytes at a time, the sums over rows of all queries (4 bytes a query and head), or those
over distances (16 bytes per query and key of a head's longest sequences), and a float64 copy of each gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from cute_fa4.calls.backward import Attended, Launch, Scores, config_of
from cute_fa4.calls.launch import function_for, launching_on
from cute_fa4.calls.operands.memory import with_plain_strides
from cute_fa4.sm100.backward.owner import ROWS
from cute_fa4.sm100.traced import on_tensors
from cute_fa4.sm100.traced.shared import DISTANCES, SCORES, arguments_of
from cute_fa4.sm100.traced.shared import ROWS as OF_ROWS
from cute_fa4.sm100.traced.trace import Element
from cute_fa4.system.devices import target_of

LINES = 1 << 25  # bytes
_OF_SEQUENCE = frozenset(("batch", "q_row"))
_OF_LENGTHS = frozenset(("seqlen_q", "num_keys", "position"))  # the same for all dense sequences
_OF_QUERY = frozenset(("q_idx", "q_row", "position"))


def gradients_of_aux(
    attended: Attended, dout, dlse, scores: Scores, wanted: tuple[int, ...]
) -> list[torch.Tensor]:
    """Gradients of scores.aux[i] for i in wanted, in their dtypes. dout: as out; dlse: as lse, or None."""
    call = Launch.of(attended, dout, dlse, scores)
    sums = [
        torch.zeros_like(scores.aux[i], dtype=torch.float64, memory_format=torch.contiguous_format)
        for i in wanted
    ]
    target = target_of(attended.q.device)
    config = config_of(call.attended, scores, call.dlse is not None, target.arch, wanted)
    if config.summed and not call.is_empty:
        rows = config.owner("scores").other_rows
        parts = [
            _PARTS[shared](
                call, rows, element, sums[wanted.index(element.tensor % len(scores.aux))]
            )
            for _, element, shared in config.summed
        ]
        function, stats = function_for(config, target), call.new_stats(config)
        tile_lists = call.tile_lists(of_queries_alone=True)
        ctas = call.tiles * call.batch * call.attended.q.shape[-2]
        at_once = max(1, LINES // (4 * sum(part.numbers for part in parts)))
        for first in range(0, ctas, at_once):
            count = min(at_once, ctas - first)
            lines = [_zeros(call, (count, part.numbers)) for part in parts]
            with launching_on(attended.q.device):
                written = tuple(map(with_plain_strides, lines)), first
                function(*call.arguments(written, stats, tile_lists))
            for part, line in zip(parts, lines, strict=True):
                part.add(line, first)
        for part in parts:
            part.finish()
    return [x.to(scores.aux[i].dtype) for x, i in zip(sums, wanted, strict=True)]


def _zeros(call: Launch, shape: tuple, dtype=torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=call.attended.q.device)


class _Clamped(NamedTuple):
    """An aux tensor as index expressions read it: places without a score may lie outside of it."""

    tensor: torch.Tensor

    @property
    def shape(self):
        return self.tensor.shape

    def __getitem__(self, indices):
        return self.tensor[_inside(self.tensor, indices)]


def _inside(tensor: torch.Tensor, indices) -> tuple:
    sizes = zip(indices, tensor.shape, strict=True)
    return tuple(index.long().clamp(0, size - 1) for index, size in sizes)


class _Part:
    """The sums of an element. rows: of a tile of keys; to: the float64 gradient of the element's tensor."""

    numbers: int  # float32 of a CTA's line

    def __init__(self, call: Launch, rows: int, element: Element, to: torch.Tensor):
        self.call, self.rows, self.element, self.to = call, rows, element, to
        self.heads, self.tiles = call.attended.q.shape[-2], call.tiles
        self.apart = ROWS // rows  # tiles of keys from a tile of queries to the next
        self.key_tiles = -(-call.longest[1] // ROWS) * self.apart  # lists have whole blocks of ROWS
        self.per_tile = call.batch * self.heads  # CTAs of a tile, which follow each other
        self.arguments = set().union(*map(arguments_of, element.indices))
        of_sequence = _OF_SEQUENCE | (set() if call.attended.is_dense else _OF_LENGTHS)
        self.is_of_sequence = bool(self.arguments & of_sequence)

    def add(self, lines: torch.Tensor, first: int) -> None:
        """lines: (CTAs, numbers) of CTA `first` and following."""
        raise NotImplementedError

    def finish(self) -> None:
        """Complete `to`."""

    def segments(self, count: int, first: int):
        """Yield (tile of queries, its CTAs, their lines), slices of what add() is given."""
        done = 0
        while done < count:
            turn, begin = divmod(first + done, self.per_tile)
            end = min(self.per_tile, begin + count - done)
            yield self.tiles - 1 - turn, slice(begin, end), slice(done, done + end - begin)
            done += end - begin

    def put(self, values: torch.Tensor, sequence, head, q_idx, kv_idx) -> None:
        """Add values at the indices of the element, which tensors give that broadcast to the values' shape."""
        found = self.places(sequence, head, q_idx, kv_idx)
        where = tuple(index.expand(values.shape) for index in _inside(self.to, found))
        self.to.index_put_(where, values.double(), accumulate=True)

    def places(self, sequence, head, q_idx, kv_idx) -> list:
        rows_q, rows_k, first = (x[sequence] for x in self.call.sequences)
        named = dict(batch=sequence, head=head, q_idx=q_idx, kv_idx=kv_idx)
        named |= dict(seqlen_q=rows_q, num_keys=rows_k)
        named |= dict(position=q_idx + rows_k - rows_q, q_row=q_idx + first)
        aux = [_Clamped(tensor) for tensor in self.call.scores.aux]
        return [on_tensors.evaluated(nodes, named, aux) for nodes in self.element.indices]

    def axes(self, *after: int) -> tuple:
        """Numbers of sequences and heads, to broadcast as (batch, heads, *after)."""
        device, ones = self.to.device, (1,) * len(after)
        batch, heads = (torch.arange(n, device=device) for n in (self.call.batch, self.heads))
        return batch.view(-1, 1, *ones), heads.view(1, -1, *ones)


class _Rows(_Part):
    """Elements that all keys of a query share."""

    numbers = 2 * ROWS

    def __init__(self, *given):
        super().__init__(*given)
        self.sums = _zeros(self.call, (self.tiles, self.per_tile, ROWS))

    def add(self, lines, first):
        for tile, ctas, inside in self.segments(len(lines), first):
            self.sums[tile, ctas] = lines[inside].view(-1, 2, ROWS).sum(1)

    def finish(self):
        sums = self.sums.view(self.tiles, self.call.batch, self.heads, ROWS).permute(1, 2, 0, 3)
        sums = sums.flatten(2).double()
        sequence, head = self.axes(1)
        q_idx = torch.arange(sums.shape[2], device=sums.device)
        if not self.arguments & _OF_QUERY:
            sums, q_idx = sums.sum(2, keepdim=True), q_idx[:1]
        if not self.is_of_sequence:
            sums, sequence = sums.sum(0, keepdim=True), sequence[:1]
        rows = self.call.sequences[0][sequence]
        self.put(sums, sequence, head, torch.minimum(q_idx, (rows - 1).clamp(min=0)), q_idx * 0)


class _Distances(_Part):
    """Elements that all scores of one distance share: key - query, of which -q_idx is the one of key 0."""

    def __init__(self, *given):
        super().__init__(*given)
        self.of_tile = ROWS + self.rows
        self.numbers = self.key_tiles * self.of_tile
        shape = self.per_tile, (self.tiles - 1) * self.apart + self.key_tiles, self.of_tile
        self.sums = _zeros(self.call, shape, torch.float64)

    def add(self, lines, first):
        lines = lines.view(-1, self.key_tiles, self.of_tile)
        for tile, ctas, inside in self.segments(len(lines), first):
            begin = (self.tiles - 1 - tile) * self.apart
            self.sums[ctas, begin : begin + self.key_tiles] += lines[inside]

    def finish(self):
        sums = self.sums.view(self.call.batch, self.heads, -1, self.of_tile)
        sequence, head = self.axes(1, 1)
        if not self.is_of_sequence:
            sums, sequence = sums.sum(0, keepdim=True), sequence[:1]
        tiles, numbers = (torch.arange(n, device=sums.device) for n in sums.shape[2:])
        tiles = tiles[:, None] * self.rows - (self.tiles - 1) * ROWS
        distance = tiles + numbers - (ROWS - 1)
        self.put(sums, sequence, head, torch.zeros_like(distance), distance)


class _Scores(_Part):
    """Elements of single scores, and of those with any other indices."""

    def __init__(self, *given):
        super().__init__(*given)
        self.numbers = self.key_tiles * self.rows * ROWS

    def add(self, lines, first):
        lines = lines.view(len(lines), ROWS, -1)
        kv_idx = torch.arange(lines.shape[2], device=lines.device)
        rows = torch.arange(ROWS, device=lines.device)[:, None]
        for tile, ctas, inside in self.segments(len(lines), first):
            numbers = torch.arange(ctas.start, ctas.stop, device=lines.device)[:, None, None]
            sequence, head = numbers // self.heads, numbers % self.heads
            values, q_idx = lines[inside], tile * ROWS + rows
            if not self.arguments & _OF_QUERY:
                values, q_idx = values.double().sum(1, keepdim=True), q_idx[:1]
            rows_q, rows_k, _ = (x[sequence] for x in self.call.sequences)
            q_idx, keys = (
                torch.minimum(index, (of - 1).clamp(min=0))
                for index, of in ((q_idx, rows_q), (kv_idx, rows_k))
            )
            self.put(values, sequence, head, q_idx, keys)


_PARTS = {OF_ROWS: _Rows, DISTANCES: _Distances, SCORES: _Scores}
