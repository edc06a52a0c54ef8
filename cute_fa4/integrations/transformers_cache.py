"""An 8-bit cache for Hugging Face transformers, which attn_implementation="cute_fa4" reads without conversion.

    register()                                              # cute_fa4.integrations.transformers
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="cute_fa4", dtype=torch.bfloat16)
    model.generate(**prompts, past_key_values=EightBitCache(model.config))

transformers' own QuantizedCache dequantizes the whole cache to 16 bits in every step. Here the kernel dequantizes.
New keys and values are appended as float8_e4m3fn, with one scale per token and head. The kernel multiplies them
with 16-bit queries (docs/serving/eight_bits.md).

    stored    (batch, room, heads_kv, head_dim) e4m3, and (batch, room, heads_kv) f32; room doubles when full
    returned  update returns views (batch, heads_kv, keys, head_dim) to a layer of the model; the attention function
              finds their scales with scale_of. Another attn_implementation raises an error about float8
"""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache, DynamicLayer

from cute_fa4.dtypes import E4M3
from cute_fa4.integrations.transformers import SCALE

DTYPE = E4M3.torch
LARGEST = torch.finfo(DTYPE).max
LEAST_ROOM = 64  # tokens


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
        found, scale = quantised(states.transpose(1, 2))
        self.numbers[:, held:end] = found
        self.scales[:, held:end] = scale
        handed = self.numbers[:, :end].transpose(1, 2)
        setattr(handed, SCALE, self.scales[:, :end])
        return handed

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
        self.numbers = self.numbers.view(torch.uint8).index_select(0, indices).view(DTYPE)
        self.scales = self.scales.index_select(0, indices)


class EightBitLayer(DynamicLayer):
    """The cache of a layer of a model."""

    # Other layers have tensors.
    keys: Rows | None  # type: ignore[assignment]
    values: Rows | None  # type: ignore[assignment]

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.held = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = (
            Rows(x.shape[0], x.shape[1], x.shape[3], x.device) for x in (key_states, value_states)
        )
        self.held, self.is_initialized = 0, True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *given, **named):
        """New keys and values (batch, heads_kv, tokens, head_dim) -> all of them, in 8 bits with scales.

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
            "offload: not supported for EightBitCache; accepted: offloading=False"
        )

    prefetch = offload


class EightBitCache(Cache):
    """A cache whose layers are EightBitLayer; layers with windows keep all keys, which the mask hides."""

    def __init__(self, config):
        """config: of the model."""
        text = config.get_text_config(decoder=True)
        super().__init__(layers=[EightBitLayer() for _ in range(text.num_hidden_layers)])
