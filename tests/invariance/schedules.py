"""A model of transformers that serves sequences as engines do: each step has chunks of prompts and decoded tokens.

The tokens of a step are packed in a batch of one. Attention appends their keys to a cache of the sequence and calls
flash_attn_varlen_func for all sequences of the step together. Everything else runs row by row, because the matrix
products of torch depend on the number of rows: what then depends on a schedule is attention alone.
"""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass, field

import torch

from cute_fa4 import EmulatorWarning, emulator, flash_attn_varlen_func
from tests.integrations import tiny_models
from tests.invariance.stories import offsets

NAME = "cute_fa4_scheduled"


@dataclass
class Sequence:
    """tokens: the prompt, then what was generated; caches: of each layer, (keys, heads, head_dim) of k and of v."""

    tokens: list[int]
    prompt: int
    done: int = 0
    caches: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    logits: list[torch.Tensor] = field(default_factory=list)

    def extended(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        old = self.caches.get(layer, [k[:0], v[:0]])
        self.caches[layer] = [torch.cat(pair) for pair in zip(old, (k, v), strict=True)]
        return self.caches[layer]


class Server:
    """A model of tiny_models; options: of its attention calls."""

    def __init__(self, name: str, **options):
        from transformers import AttentionInterface, AttentionMaskInterface

        AttentionInterface.register(NAME, self._attention)
        AttentionMaskInterface.register(NAME, lambda *args, **others: None)
        self.options = options
        self.model = tiny_models.build(name, NAME)
        for module in self.model.modules():
            kind = type(module).__name__
            if isinstance(module, torch.nn.Linear) or kind.endswith(("RMSNorm", "MLP", "MoE")):
                module.forward = by_row(module.forward)
        self.step: list[tuple[Sequence, int]] = []

    def _attention(
        self, module, query, key, value, mask, scaling, sliding_window=None, s_aux=None, **others
    ):
        """(1, heads, tokens, head_dim) of a step -> (1, tokens, heads, head_dim), None."""
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        counts = [count for _, count in self.step]
        every = [x.split(counts) for x in (k, v)]
        caches = [
            sequence.extended(module.layer_idx, *new)
            for (sequence, _), *new in zip(self.step, *every, strict=True)
        ]
        keys, values = (torch.cat(each) for each in zip(*caches, strict=True))
        lengths = [len(k) for k, _ in caches]
        side = None if sliding_window is None else sliding_window - 1
        out = flash_attn_varlen_func(
            q, keys, values, offsets(counts), offsets(lengths), max(counts), max(lengths),
            softmax_scale=scaling, causal=True, window_size=(side, None), learnable_sink=s_aux, **self.options,
        )  # fmt: skip
        return out[None], None

    def run(self, step: list[tuple[Sequence, int]]) -> None:
        """The next tokens of these sequences, as many as the step says. A sequence without more gets a new one."""
        self.step = step
        tokens = [t for s, n in step for t in s.tokens[s.done : s.done + n]]
        places = [s.done + i for s, n in step for i in range(n)]
        with torch.no_grad(), warnings.catch_warnings(), emulator.use(checks=None):
            warnings.simplefilter("ignore", EmulatorWarning)
            given = dict(input_ids=torch.tensor([tokens]), position_ids=torch.tensor([places]))
            logits = self.model(**given, use_cache=False).logits[0]
        for (sequence, count), rows in zip(step, logits.split([n for _, n in step]), strict=True):
            sequence.logits += rows
            sequence.done += count
            if sequence.done == len(sequence.tokens):
                sequence.tokens.append(int(rows[-1].argmax()))

    def generate(
        self, prompts: list[list[int]], new: int, dice: random.Random | None
    ) -> list[Sequence]:
        """Prompts with `new` tokens each; dice: of the schedule; None: each sequence alone, its prompt in one chunk."""
        every = [Sequence(list(prompt), len(prompt)) for prompt in prompts]

        def waiting():
            return [s for s in every if len(s.tokens) < s.prompt + new]

        while active := waiting():
            chosen = (
                active[:1] if dice is None else dice.sample(active, dice.randint(1, len(active)))
            )
            most = [len(s.tokens) - s.done for s in chosen]
            counts = most if dice is None else [dice.choice((n, dice.randint(1, n))) for n in most]
            self.run(list(zip(chosen, counts, strict=True)))
        return every


def by_row(forward):
    """forward of each row of (1, rows, columns) alone; of other shapes of each row before the last dimension."""

    def of_rows(x):
        rows = x.reshape(-1, 1, x.shape[-1])
        results = [forward(row[None]) for row in rows]
        if isinstance(results[0], tuple):  # a mixture of experts also returns its scores
            return tuple(torch.cat(each, 1) for each in zip(*results, strict=True))
        return torch.cat(results, 1).reshape(*x.shape[:-1], -1)

    return of_rows
