"""A tiny language model writes text from a paged cache: prompts of different lengths, then one token at a time.

    python examples/04_paged_decode.py                     CPU: the kernels' sm_100a PTX on the emulator
    python examples/04_paged_decode.py --device cuda       the same kernels on a B200 or B300
    python examples/04_paged_decode.py --steps 20 --page-size 8

The model has one layer and random weights, so it writes nonsense; but at the end every token is computed again by
plain PyTorch in float32, without cache and pages, and the logits of both are compared.
"""

import argparse
import time

import torch

from cute_fa4 import flash_attn_with_kvcache

HEADS_Q, HEADS_KV, HEAD_DIM, WIDTH = 8, 2, 64, 128
PROMPTS = ["pages", "a longer prompt that crosses some pages", "x"]


class TinyModel:
    """Embedding, one attention layer with a residual, and the embedding again as output."""

    def __init__(self, device):
        def normal(*shape):
            return torch.randn(shape).to(device) / shape[0] ** 0.5

        self.embedding = normal(WIDTH, 256).T.contiguous() * 3
        self.to_q = normal(WIDTH, HEADS_Q * HEAD_DIM)
        self.to_k, self.to_v = (normal(WIDTH, HEADS_KV * HEAD_DIM) for _ in "kv")
        self.to_out = normal(HEADS_Q * HEAD_DIM, WIDTH)

    def embed(self, tokens, positions):
        """tokens, positions of any shape -> (..., WIDTH)."""
        angles = positions[..., None] / 100 ** (torch.arange(WIDTH // 2, device=tokens.device) / 64)
        return self.embedding[tokens] + torch.cat([angles.sin(), angles.cos()], dim=-1)

    def qkv(self, x):
        """x (..., WIDTH) -> q, k, v (..., heads, HEAD_DIM), bf16."""
        parts = (x @ w for w in (self.to_q, self.to_k, self.to_v))
        return [part.unflatten(-1, (-1, HEAD_DIM)).bfloat16() for part in parts]

    def logits(self, x, attention):
        return (x + attention.flatten(-2).float() @ self.to_out) @ self.embedding.T


class PagedCache:
    """Keys and values of all sequences in one pool of pages; a page is taken when a sequence needs it."""

    def __init__(self, num_sequences: int, page_size: int, longest: int, device):
        per_sequence = -(-longest // page_size)
        pages = num_sequences * per_sequence
        # NaN: what nobody has written must not be read.
        shape = (pages, 2, page_size, HEADS_KV, HEAD_DIM)
        self.pool = torch.full(shape, torch.nan, dtype=torch.bfloat16, device=device)
        self.table = torch.full((num_sequences, per_sequence), -1, dtype=torch.int32)
        self.free = torch.randperm(pages).tolist()
        self.page_size, self.device = page_size, device

    def reserve(self, lengths: list[int]) -> torch.Tensor:
        """The page table, with pages for so many rows of each sequence."""
        for b, length in enumerate(lengths):
            for place in range(-(-length // self.page_size)):
                if self.table[b, place] < 0:
                    self.table[b, place] = self.free.pop()
        return self.table.to(self.device)


def generate(model: TinyModel, prompts: list[list[int]], steps: int, page_size: int, device):
    """-> (tokens of each sequence, logits of each step (steps, sequences, 256), pages used)."""
    lengths = [len(p) for p in prompts]
    cache = PagedCache(len(prompts), page_size, max(lengths) + steps, device)

    # Prompts: all tokens of all sequences in one packed call, which also fills the cache.
    first = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)
    tokens = torch.tensor(sum(prompts, [])).to(device)
    positions = torch.cat([torch.arange(n) for n in lengths]).to(device)
    x = model.embed(tokens, positions)
    q, k, v = model.qkv(x)
    attention = flash_attn_with_kvcache(
        q, cache.pool[:, 0], cache.pool[:, 1], k, v, cache_seqlens=0,
        page_table=cache.reserve(lengths), cu_seqlens_q=first, cu_seqlens_k_new=first,
        max_seqlen_q=max(lengths), causal=True,
    )  # fmt: skip
    last = (first[1:] - 1).long()
    logits = [model.logits(x[last], attention[last])]

    # One token a step and sequence. The caller counts what the cache holds.
    held = torch.tensor(lengths, dtype=torch.int32).to(device)
    written = [list(p) for p in prompts]
    for step in range(steps):
        chosen = logits[-1].argmax(-1)
        for sequence, token in zip(written, chosen.tolist(), strict=True):
            sequence.append(token)
        x = model.embed(chosen[:, None], held[:, None])
        q, k, v = model.qkv(x)
        attention = flash_attn_with_kvcache(
            q, cache.pool[:, 0], cache.pool[:, 1], k, v, cache_seqlens=held,
            page_table=cache.reserve([n + step + 1 for n in lengths]), causal=True,
        )  # fmt: skip
        logits.append(model.logits(x, attention)[:, 0])
        held += 1
    used = int((cache.table >= 0).sum())
    return written, torch.stack(logits), (used, cache.table.numel())


def without_cache(model: TinyModel, tokens: list[int], device):
    """Logits of every position, by PyTorch on the whole sequence."""
    x = model.embed(torch.tensor(tokens).to(device), torch.arange(len(tokens)).to(device))
    q, k, v = (part.float().transpose(0, 1) for part in model.qkv(x))
    attention = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    return model.logits(x, attention.transpose(0, 1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu (emulator) or cuda")
    parser.add_argument("--steps", type=int, default=12, help="tokens to write for each prompt")
    parser.add_argument("--page-size", type=int, default=16)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    model = TinyModel(arguments.device)
    prompts = [list(text.encode()) for text in PROMPTS]
    begin = time.perf_counter()
    written, logits, (used, pages) = generate(
        model, prompts, arguments.steps, arguments.page_size, arguments.device
    )
    seconds = time.perf_counter() - begin

    largest = 0.0
    for b, (prompt, tokens) in enumerate(zip(prompts, written, strict=True)):
        expected = without_cache(model, tokens, arguments.device)[len(prompt) - 1 :]
        largest = max(largest, float((logits[:, b] - expected).abs().max()))
        print(f"{PROMPTS[b]!r} -> {bytes(tokens[len(prompt) :])!r}")
    print(f"{used} of {pages} pages of {arguments.page_size} keys used")
    print(f"logits {tuple(logits.shape)} to {logits.abs().max():.1f}, off by {largest:.3f} at most")
    print(f"{len(logits)} steps in {seconds:.1f} s with compiling")
    # P and out are rounded to bf16, 2^-9 relative each, against float32 here; logits sum 128 such numbers.
    if not largest < 0.01 * float(logits.abs().max()):
        raise SystemExit("the logits differ by more than rounding explains")


if __name__ == "__main__":
    main()
