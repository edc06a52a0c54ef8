"""A layer of multi-head latent attention decodes from its latent cache, and is compared with its definition.

    python examples/11_mla_decode.py                       CPU: the kernel's sm_100a PTX on the emulator
    python examples/11_mla_decode.py --device cuda         the same kernel on a B200 or B300
    python examples/11_mla_decode.py --heads 128 --tokens 2 --page-size 16

The layer has DeepSeek-V3's dimensions per head (128 columns without rotation, 64 RoPE columns, values of 128) and
random weights. The cache holds 576 values per token for all heads. Decode absorbs the two projections from the
latent space into q and out, so it reads the cache as it is. The reference computes keys and values of every head
from the latent rows in float64. Both must agree. At the end the example prints the cache bytes per token, and those
of the same heads with separate caches.
"""

import argparse
import time

import torch

from cute_fa4 import flash_mla_with_kvcache

LATENT, ROPE, NOPE, VALUE = 512, 64, 128, 128
LENGTHS = [200, 64, 5]


class LatentAttention:
    """The projections of one layer around attention, float64."""

    def __init__(self, heads: int):
        self.heads = heads
        self.keys_of_latent = torch.randn(heads, NOPE, LATENT, dtype=torch.float64) / LATENT**0.5
        self.values_of_latent = torch.randn(heads, VALUE, LATENT, dtype=torch.float64) / LATENT**0.5
        self.scale = (NOPE + ROPE) ** -0.5

    def absorbed(self, q_nope, q_rope):
        """(..., heads, 128) and (..., heads, 64) -> (..., heads, 576): q k^T = (q W) latent^T."""
        latent = torch.einsum("...hd,hdc->...hc", q_nope, self.keys_of_latent)
        return torch.cat([latent, q_rope], dim=-1)

    def values(self, out):
        """The output of attention over the cache, (..., heads, 512) -> (..., heads, 128)."""
        return torch.einsum("...hc,hdc->...hd", out.double(), self.values_of_latent)

    def definition(self, q_nope, q_rope, rows):
        """The queries of one sequence over `rows` of its cache, with keys and values of every head."""
        latent, rope = rows.double().split([LATENT, ROPE], dim=-1)
        keys = torch.einsum("nc,hdc->hnd", latent, self.keys_of_latent)
        keys = torch.cat([keys, rope.expand(self.heads, *rope.shape)], dim=-1)
        values = torch.einsum("nc,hdc->hnd", latent, self.values_of_latent)
        q = torch.cat([q_nope, q_rope], dim=-1).transpose(0, 1)
        scores = q @ keys.transpose(1, 2) * self.scale
        tokens, known = scores.shape[1:]
        hidden = torch.arange(known) > torch.arange(tokens)[:, None] + known - tokens
        return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values).transpose(0, 1)


def paged_cache(lengths: list[int], page_size: int):
    """-> (cache, table, rows of each sequence): pages in any order, NaN in unwritten rows."""
    pages = [-(-length // page_size) for length in lengths]
    cache = torch.full((sum(pages), page_size, 1, LATENT + ROPE), torch.nan, dtype=torch.bfloat16)
    table = torch.full((len(lengths), max(pages)), -1, dtype=torch.int32)
    free, sequences = torch.randperm(sum(pages)).tolist(), []
    for b, length in enumerate(lengths):
        rows = torch.randn(length, LATENT + ROPE).bfloat16()
        for place, part in enumerate(rows.split(page_size)):
            table[b, place] = free.pop()
            cache[table[b, place], : len(part), 0] = part
        sequences.append(rows)
    return cache, table, sequences


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu (emulator) or cuda; default: cpu")
    parser.add_argument("--heads", type=int, default=16, help="default: 16, of 128 on eight GPUs")
    parser.add_argument("--tokens", type=int, default=1, help="queries of a sequence; default: 1")
    parser.add_argument("--page-size", type=int, default=64, help="default: 64")
    arguments = parser.parse_args()
    heads, tokens, device = arguments.heads, arguments.tokens, arguments.device

    torch.manual_seed(0)
    layer = LatentAttention(heads)
    cache, table, sequences = paged_cache(LENGTHS, arguments.page_size)
    q_nope = torch.randn(len(LENGTHS), tokens, heads, NOPE, dtype=torch.float64)
    q_rope = torch.randn(len(LENGTHS), tokens, heads, ROPE, dtype=torch.float64)

    begin = time.perf_counter()
    q = layer.absorbed(q_nope, q_rope).bfloat16().to(device)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32).to(device)
    out, lse = flash_mla_with_kvcache(
        q,
        cache.to(device),
        table.to(device),
        lengths,
        LATENT,
        softmax_scale=layer.scale,
        causal=True,
    )
    found = layer.values(out.cpu())
    seconds = time.perf_counter() - begin

    print(
        f"q {tuple(q.shape)}, cache {tuple(cache.shape)}, out {tuple(out.shape)}, lse {tuple(lse.shape)}"
    )
    worst = 0.0
    for b, rows in enumerate(sequences):
        exact = layer.definition(q_nope[b], q_rope[b], rows)
        error = float((found[b] - exact).norm() / exact.norm())
        worst = max(worst, error)
        print(f"sequence {b}: {LENGTHS[b]} rows, relative error {error:.2e}")
    own = heads * (NOPE + ROPE + VALUE) * 2
    print(
        f"a token of the cache takes {(LATENT + ROPE) * 2} bytes, {own} if {heads} heads had their own"
    )
    print(f"{seconds:.1f} s with compiling, on {device}")
    # q, P and out are rounded to bf16, by 2^-9 relative each, and errors of scores are errors of weights.
    if not worst < 2**-6:
        raise SystemExit("the results differ by more than rounding explains")


if __name__ == "__main__":
    main()
