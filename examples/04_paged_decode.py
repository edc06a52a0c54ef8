"""A tiny transformer writes text from a paged cache: prompts of different lengths, then one token at a time.

    python examples/04_paged_decode.py                     CPU: the kernels' sm_100a PTX on the emulator
    python examples/04_paged_decode.py --device cuda       the same kernels on a B200 or B300
    python examples/04_paged_decode.py --steps 20 --page-size 8

The weights are random, so it writes nonsense. In decode the keys of every sequence are split into parts that run in
parallel (--splits). At the end the same model reads every text again in float64, with reference attention and
without a cache. The logits must agree, and so must the chosen tokens. The output also has the modeled speed of a
typical decode on a B200, from docs/performance/decode.md; CPU times say nothing about it.
"""

import argparse
import re
import time
from pathlib import Path

import torch
from torch.nn.functional import gelu, rms_norm

from cute_fa4 import flash_attn_with_kvcache
from cute_fa4.reference import attention_float64

LAYERS, WIDTH, HEADS_Q, HEADS_KV, HEAD_DIM, LETTERS = 2, 128, 4, 2, 64, 256
PROMPTS = [
    "pages",
    "a longer prompt that crosses pages and tiles of 128 keys, so that both parts have keys. " * 2,
    "x",
]
PERFORMANCE = Path(__file__).resolve().parents[1] / "docs" / "performance" / "decode.md"


class TinyModel:
    """A decoder: in each layer attention, then a two-layer network, on normalised input and added to it."""

    def __init__(self, device):
        def matrix(rows, columns):
            return torch.randn(rows, columns).to(device) / rows**0.5

        self.embedding, self.head = torch.randn(LETTERS, WIDTH).to(device), matrix(WIDTH, LETTERS)
        self.layers = [
            {
                "q": matrix(WIDTH, HEADS_Q * HEAD_DIM),
                "k": matrix(WIDTH, HEADS_KV * HEAD_DIM),
                "v": matrix(WIDTH, HEADS_KV * HEAD_DIM),
                "out": matrix(HEADS_Q * HEAD_DIM, WIDTH),
                "up": matrix(WIDTH, 4 * WIDTH),
                "down": matrix(4 * WIDTH, WIDTH),
            }
            for _ in range(LAYERS)
        ]

    def double(self):
        self.embedding, self.head = self.embedding.double(), self.head.double()
        self.layers = [{name: w.double() for name, w in layer.items()} for layer in self.layers]
        return self

    def logits(self, tokens, positions, attend):
        """tokens, positions of any shape -> (..., LETTERS). attend(layer, q, k, v) includes the cache."""
        frequencies = 100 ** -(torch.arange(WIDTH // 2, device=tokens.device) / 64)
        angles = positions[..., None] * frequencies
        x = self.embedding[tokens] + torch.cat([angles.sin(), angles.cos()], dim=-1)
        for number, layer in enumerate(self.layers):
            normed = rms_norm(x, (WIDTH,))
            q, k, v = ((normed @ layer[name]).unflatten(-1, (-1, HEAD_DIM)) for name in "qkv")
            x = x + attend(number, q, k, v).flatten(-2).to(x.dtype) @ layer["out"]
            x = x + gelu(rms_norm(x, (WIDTH,)) @ layer["up"]) @ layer["down"]
        return rms_norm(x, (WIDTH,)) @ self.head


class PagedCache:
    """Keys and values of all sequences and layers in pools of pages; a page is allocated when a sequence needs it."""

    def __init__(self, num_sequences: int, page_size: int, longest: int, device):
        per_sequence = -(-longest // page_size)
        pages = num_sequences * per_sequence
        # NaN: unwritten rows must not be read.
        shape = (LAYERS, pages, 2, page_size, HEADS_KV, HEAD_DIM)
        self.pools = torch.full(shape, torch.nan, dtype=torch.bfloat16, device=device)
        self.table = torch.full((num_sequences, per_sequence), -1, dtype=torch.int32)
        self.free = torch.randperm(pages).tolist()
        self.page_size, self.device = page_size, device

    def reserve(self, lengths: list[int]) -> torch.Tensor:
        """The page table of all layers, with pages for this many rows of each sequence."""
        for b, length in enumerate(lengths):
            for place in range(-(-length // self.page_size)):
                if self.table[b, place] < 0:
                    self.table[b, place] = self.free.pop()
        return self.table.to(self.device)

    def attention(self, lengths: list[int], **options):
        """The function that TinyModel.logits calls: append k and v to the cache, attend to all of it."""
        table = self.reserve(lengths)

        def attend(layer, q, k, v):
            keys, values = self.pools[layer, :, 0], self.pools[layer, :, 1]
            q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
            return flash_attn_with_kvcache(
                q, keys, values, k, v, page_table=table, causal=True, **options
            )

        return attend


def generate(model: TinyModel, prompts, steps: int, page_size: int, splits: int, device):
    """-> (tokens of each sequence, logits of each step (steps + 1, sequences, LETTERS), the cache)."""
    lengths = [len(p) for p in prompts]
    cache = PagedCache(len(prompts), page_size, max(lengths) + steps, device)

    # Prompts: all tokens of all sequences in one packed call, which also fills the cache.
    first = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)
    tokens = torch.tensor(sum(prompts, [])).to(device)
    positions = torch.cat([torch.arange(n) for n in lengths]).to(device)
    packed = {"cu_seqlens_q": first, "cu_seqlens_k_new": first, "max_seqlen_q": max(lengths)}
    attend = cache.attention(lengths, cache_seqlens=0, **packed)
    logits = [model.logits(tokens, positions, attend)[(first[1:] - 1).long()]]

    # One token per step and sequence. The caller counts the rows of the cache.
    held = torch.tensor(lengths, dtype=torch.int32).to(device)
    written = [list(p) for p in prompts]
    for step in range(1, steps + 1):
        chosen = logits[-1].argmax(-1)
        for sequence, token in zip(written, chosen.tolist(), strict=True):
            sequence.append(token)
        reserved = [n + step for n in lengths]
        attend = cache.attention(reserved, cache_seqlens=held, num_splits=splits)
        logits.append(model.logits(chosen[:, None], held[:, None], attend)[:, 0])
        held += 1
    return written, torch.stack(logits), cache


def exact_logits(model: TinyModel, tokens: list[int], device):
    """Logits of every position in float64, (1, length, LETTERS): the whole sequence at once."""
    tokens = torch.tensor([tokens]).to(device)
    positions = torch.arange(tokens.shape[1], device=device, dtype=torch.float64)[None]
    return model.logits(
        tokens, positions, lambda _, q, k, v: attention_float64(q, k, v, causal=True)[0]
    )


def modelled_speed() -> str:
    """The row of the page of performance for 8 sequences of 4096 keys, 64 query heads on 8, one query each."""
    if not PERFORMANCE.exists():  # an example that was copied out of the repository
        return f"no {PERFORMANCE}: it has the modeled times of decode"
    found = re.search(
        r"\| 128 \| 64/8 \| 1 \| 8 \| 4096 \| ([\d.]+)[ †]* \| ([\d.]+) ", PERFORMANCE.read_text()
    )
    return f"8 sequences of 4096 keys in pages of 16, 64/8 heads, d=128: {found[1]} us, {found[2]} TB/s"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu (emulator) or cuda; default: cpu")
    parser.add_argument("--steps", type=int, default=8, help="tokens for each prompt; default: 8")
    parser.add_argument("--page-size", type=int, default=16, help="default: 16")
    parser.add_argument("--splits", type=int, default=2, help="parts of a sequence; default: 2")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    model = TinyModel(arguments.device)
    prompts = [list(text.encode()) for text in PROMPTS]
    begin = time.perf_counter()
    written, logits, cache = generate(
        model, prompts, arguments.steps, arguments.page_size, arguments.splits, arguments.device
    )
    seconds = time.perf_counter() - begin

    model.double()
    largest, lost = 0.0, 0.0
    for b, (prompt, tokens) in enumerate(zip(prompts, written, strict=True)):
        exact = exact_logits(model, tokens, arguments.device)[0, len(prompt) - 1 :]
        largest = max(largest, float((logits[:, b] - exact).abs().max()))
        best, chosen = (
            exact.max(-1).values,
            exact.gather(-1, logits[:, b].argmax(-1)[:, None])[:, 0],
        )
        lost = max(lost, float((best - chosen).max()))
        print(f"{PROMPTS[b][:40]!r} -> {bytes(tokens[len(prompt) :])!r}")
    used, pages = int((cache.table >= 0).sum()), cache.table.numel()
    print(f"{used} of {pages} pages of {arguments.page_size} keys used")
    print(f"logits {tuple(logits.shape)} to {logits.abs().max():.1f}, off by {largest:.4f} at most")
    print(f"modelled for a B200 (docs/performance/decode.md): {modelled_speed()}")
    print(f"chosen tokens are at most {lost:.4f} below the largest logit in float64")
    print(f"{len(logits)} steps in {seconds:.1f} s with compiling")
    # Every layer rounds q, k, v, P and out to bf16, by 2^-9 relative each and not all in one direction: two of the
    # five are allowed to add up. A token chosen by such an error is at most twice as far from the best.
    allowed = 2 * LAYERS * 2**-9 * float(logits.abs().max())
    if not (largest <= allowed and lost <= 2 * largest):
        raise SystemExit("the logits differ by more than rounding explains")


if __name__ == "__main__":
    main()
