"""Caches of 8 and of 4 bits for Hugging Face transformers; attn_implementation="cute_fa4" reads them unconverted.

    register()                                              # cute_fa4.integrations.transformers
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="cute_fa4", dtype=torch.bfloat16)
    model.generate(**prompts, past_key_values=EightBitCache(model.config))      or FourBitCache

transformers' own QuantizedCache dequantizes the whole cache to 16 bits in every step. Here the kernel dequantizes.
New keys and values are appended as float8_e4m3fn, with one scale per token and head. The kernel multiplies them
with 16-bit queries (docs/serving/eight_bits.md).

    stored    (batch, room, heads_kv, head_dim) e4m3, and (batch, room, heads_kv) f32; room doubles when full
    returned  update returns views (batch, heads_kv, keys, head_dim) to a layer of the model; the attention function
              finds their scales with scales_of. Another attn_implementation raises an error about float8

Those of 4 bits are NVFP4 (docs/serving/four_bits.md):

    stored    (batch, room, heads_kv, head_dim / 2) uint8, (batch, room, heads_kv, head_dim / 16) e4m3, and a factor of
              each sequence and head: a power of two by the first rows of a sequence, with room for 16 times as much
"""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache, DynamicLayer

from cute_fa4 import nvfp4
from cute_fa4.calls.operands.four_bits import BYTES
from cute_fa4.dtypes import E4M3
from cute_fa4.integrations.transformers import BLOCKS, SCALE

DTYPE = E4M3.torch
LARGEST = torch.finfo(DTYPE).max
LEAST_ROOM = 64  # tokens
# Of a 4-bit cache: the largest scale of a block times the largest number.
LARGEST_OF_FOUR = LARGEST * float(nvfp4.decode(torch.tensor(nvfp4.SIGN - 1)))
# Numbers of later rows saturate there where they are larger than this many times the largest of the first.
GROWTH = 16.0


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(..., head_dim) -> (e4m3, scale of each row float32); the scale of a row of zeros is 1."""
    wide = x.float()
    scale = wide.abs().amax(-1) / LARGEST
    scale = torch.where(scale < torch.finfo(torch.float32).tiny, 1.0, scale)
    return (wide / scale[..., None]).clamp(-LARGEST, LARGEST).to(DTYPE), scale


class Rows:
    """Rows of K or V of a layer, with their scales; tokens are dimension 1."""

    def __init__(self, batch: int, heads: int, depth: int, device: torch.device):
        self.numbers = torch.empty(batch, 0, heads, depth, dtype=DTYPE, device=device)
        self.scales = torch.empty(batch, 0, heads, dtype=torch.float32, device=device)

    def append(self, states: torch.Tensor, held: int) -> torch.Tensor:
        """Append rows (batch, heads, tokens, head_dim) after the first `held` ones -> all, in the layout of a layer."""
        end = held + states.shape[2]
        self._make_room(end, held)
        found, scale = self.quantised(states.transpose(1, 2), held)
        self.numbers[:, held:end] = found
        self.scales[:, held:end] = scale
        return self.handed(end)

    def quantised(self, rows: torch.Tensor, held: int) -> tuple[torch.Tensor, torch.Tensor]:
        """-> (numbers, scales) of new rows (batch, tokens, heads, head_dim)."""
        return quantised(rows)

    def handed(self, end: int) -> torch.Tensor:
        """The first rows in the layout of a layer, with their scales."""
        rows = self.numbers[:, :end].transpose(1, 2)
        setattr(rows, SCALE, self.scales[:, :end])
        return rows

    def _make_room(self, end: int, held: int) -> None:
        room = self.numbers.shape[1]
        if end <= room:
            return
        room = max(end, 2 * room, LEAST_ROOM)
        for name in ("numbers", "scales"):
            old = getattr(self, name)
            new = old.new_empty((old.shape[0], room, *old.shape[2:]))
            new[:, :held] = old[:, :held]
            setattr(self, name, new)

    def of_sequences(self, indices: torch.Tensor) -> None:
        """Select sequences, in this order, with repetitions."""
        indices = indices.to(self.numbers.device)
        for name in ("numbers", "scales"):
            old = getattr(self, name)
            bytes_of = old.view(torch.uint8)  # few operations take float8
            setattr(self, name, bytes_of.index_select(0, indices).view(old.dtype))


class FourBitRows(Rows):
    """The same in 4 bits. factors: (batch, heads), by the first rows."""

    def __init__(self, batch: int, heads: int, depth: int, device: torch.device):
        if depth % nvfp4.BLOCK:
            raise ValueError(
                f"head_dim {depth} with FourBitCache; accepted: multiples of {nvfp4.BLOCK}; use EightBitCache"
            )
        self.numbers = torch.empty(batch, 0, heads, depth // 2, dtype=BYTES, device=device)
        blocks = depth // nvfp4.BLOCK
        self.scales = torch.empty(batch, 0, heads, blocks, dtype=DTYPE, device=device)
        self.factors = torch.ones(batch, heads, device=device)

    def quantised(self, rows: torch.Tensor, held: int) -> tuple[torch.Tensor, torch.Tensor]:
        wide = rows.float()
        if not held:
            largest = torch.nan_to_num(wide.abs(), nan=0.0, posinf=0.0).amax((1, 3))
            exponent = torch.ceil(torch.log2(largest * GROWTH / LARGEST_OF_FOUR))
            self.factors = torch.exp2(torch.where(largest > 0, exponent, 0.0))
        return nvfp4.quantize(wide / self.factors[:, None, :, None], 1.0)[:2]

    def handed(self, end: int) -> torch.Tensor:
        rows = self.numbers[:, :end].transpose(1, 2)
        setattr(rows, BLOCKS, self.scales[:, :end])
        setattr(rows, SCALE, self.factors)
        return rows

    def of_sequences(self, indices: torch.Tensor) -> None:
        super().of_sequences(indices)
        self.factors = self.factors.index_select(0, indices.to(self.factors.device))


class EightBitLayer(DynamicLayer):
    """The cache of a layer of a model."""

    rows = Rows  # what K, and V, is held in
    # Other layers have tensors.
    keys: Rows | None  # type: ignore[assignment]
    values: Rows | None  # type: ignore[assignment]

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.held = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = (
            self.rows(x.shape[0], x.shape[1], x.shape[3], x.device)
            for x in (key_states, value_states)
        )
        self.held, self.is_initialized = 0, True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *given, **named):
        """New keys and values (batch, heads_kv, tokens, head_dim) -> all of them, quantized, with scales.

        With an empty cache the arguments are returned unchanged, so a prompt is computed in 16 bits.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        states = key_states, value_states
        handed = tuple(
            rows.append(new, self.held) for rows, new in zip(self._rows, states, strict=True)
        )
        self.held += key_states.shape[2]
        return states if self.held == key_states.shape[2] else handed

    @property
    def _rows(self) -> tuple[Rows, ...]:
        """Keys and values; none before the first update."""
        return tuple(rows for rows in (self.keys, self.values) if rows is not None)

    def get_seq_length(self) -> int:
        return self.held

    def reset(self) -> None:
        self.keys = self.values = None
        self.held, self.is_initialized = 0, False

    def crop(self, max_length: int) -> None:
        """Keep this many tokens; if negative, drop this many of the last."""
        kept = self.held + max_length if max_length < 0 else max_length
        self.held = min(self.held, max(kept, 0))

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.keys is not None:
            each = torch.arange(self.keys.numbers.shape[0], device=self.device)
            self.batch_select_indices(each.repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        for rows in self._rows:
            rows.of_sequences(indices)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self.batch_select_indices(beam_idx)

    def offload(self):
        raise NotImplementedError(
            "offload: not supported for EightBitCache and FourBitCache; accepted: offloading=False"
        )

    prefetch = offload


class FourBitLayer(EightBitLayer):
    """The same in 4 bits."""

    rows = FourBitRows


class EightBitCache(Cache):
    """A cache whose layers are EightBitLayer; layers with windows keep all keys, which the mask hides."""

    layer = EightBitLayer

    def __init__(self, config):
        """config: of the model."""
        text = config.get_text_config(decoder=True)
        super().__init__(layers=[self.layer() for _ in range(text.num_hidden_layers)])


class FourBitCache(EightBitCache):
    """The same of 4 bits (NVFP4): head dims of 64, 128, 192 and 256."""

    layer = FourBitLayer
