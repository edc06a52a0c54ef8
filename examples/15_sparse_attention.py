"""A layer with sparse attention, as in DeepSeek-V3.2: the indexer scores every key, attention reads the best ones.

    python examples/15_sparse_attention.py [--device cuda] [--keys 400] [--top-k 128]

The layer has random weights. The last queries of a prompt are computed in four steps:

    indexer     q and k of 128 columns from the hidden states, quantized to FP8
    scores      fp8_mqa_logits: relu(q k^T), summed over the heads with weights
    top-k       topk_indices: the keys that each query reads
    attention   flash_mla_sparse_fwd over the latent rows of these keys

The reference does the same in float64 without any kernel: it scores all keys, sorts them, and attends to the best ones
with keys and values from the latent rows. Both must choose the same keys, except where scores are closer than float32
sums tell apart, and their outputs must agree.
"""

import argparse
import time

import torch

from cute_fa4 import flash_mla_sparse_fwd
from cute_fa4.indexer import fp8_mqa_logits, topk_indices

HIDDEN, INDEX_HEADS, HEADS = 256, 64, 16
LATENT, ROPE, INDEX = 512, 64, 128
LARGEST = 448.0  # of float8_e4m3fn
SCALE = 192**-0.5


def quantized(x):
    """-> (e4m3, float32 scale of each row)."""
    scale = x.abs().amax(-1).clamp(min=1e-4) / LARGEST
    return (x / scale[..., None]).to(torch.float8_e4m3fn), scale.float()


class Layer:
    """Projections of hidden states, float64."""

    def __init__(self):
        def weight(columns):
            return torch.randn(HIDDEN, columns, dtype=torch.float64) / HIDDEN**0.5

        self.index_q, self.index_k = weight(INDEX_HEADS * INDEX), weight(INDEX)
        self.index_weights = weight(INDEX_HEADS)
        self.rows, self.absorbed = weight(LATENT + ROPE), weight(HEADS * (LATENT + ROPE))

    def indexer(self, queries, hidden):
        """-> (q, weights with the scales of q, k, scales of k)."""
        q, q_scale = quantized((queries @ self.index_q).unflatten(1, (INDEX_HEADS, INDEX)))
        k, k_scale = quantized(hidden @ self.index_k)
        weights = (queries @ self.index_weights) * q_scale * (INDEX_HEADS * INDEX) ** -0.5
        return q, weights.float(), k, k_scale

    def attention(self, queries, hidden):
        """-> (absorbed queries, latent rows), bf16."""
        q = (queries @ self.absorbed).unflatten(1, (HEADS, LATENT + ROPE))
        return q.bfloat16(), (hidden @ self.rows).bfloat16()


def scores_float64(q, weights, k, k_scale, ends):
    products = torch.einsum("qhd,kd->qhk", q.double(), k.double()).relu()
    scores = torch.einsum("qhk,qh->qk", products, weights.double()) * k_scale.double()
    return scores.masked_fill(torch.arange(len(k)) >= ends[:, None], -torch.inf)


def attention_float64(q, rows, picked):
    """softmax(q k^T) k[:, :512] over the rows that each query picked."""
    out = torch.zeros(*q.shape[:2], LATENT, dtype=torch.float64)
    for i, own in enumerate(picked):
        keys = rows[own[own >= 0].long()].double()
        out[i] = (q[i].double() @ keys.T * SCALE).softmax(-1) @ keys[:, :LATENT]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu (emulator) or cuda; default: cpu")
    parser.add_argument("--keys", type=int, default=400, help="of the prompt; default: 400")
    parser.add_argument("--queries", type=int, default=4, help="the last tokens; default: 4")
    parser.add_argument("--top-k", type=int, default=128, help="keys of a query; default: 128")
    arguments = parser.parse_args()
    device, keys, top_k = arguments.device, arguments.keys, arguments.top_k

    torch.manual_seed(0)
    layer, hidden = Layer(), torch.randn(keys, HIDDEN, dtype=torch.float64)
    queries = hidden[-arguments.queries :]
    ends = torch.arange(keys - len(queries) + 1, keys + 1, dtype=torch.int32)  # causal
    q8, weights, k8, k_scale = layer.indexer(queries, hidden)
    q, rows = layer.attention(queries, hidden)

    begin = time.perf_counter()
    logits = fp8_mqa_logits(
        q8.to(device),
        (k8.to(device), k_scale.to(device)),
        weights.to(device),
        torch.zeros_like(ends).to(device),
        ends.to(device),
    )
    picked = topk_indices(logits, top_k)
    out, _, _ = flash_mla_sparse_fwd(q.to(device), rows[:, None].to(device), picked[:, None], SCALE)
    seconds = time.perf_counter() - begin

    logits, picked, out = logits.cpu(), picked.cpu(), out.cpu()
    exact = scores_float64(q8, weights, k8, k_scale, ends)
    seen = exact > -torch.inf
    error = float((logits.double() - exact)[seen].abs().max() / exact[seen].abs().max())
    wanted = exact.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    same = sum(len(set(a) & set(b)) for a, b in zip(picked.tolist(), wanted.tolist(), strict=True))
    print(f"scores {tuple(logits.shape)}: largest error {error:.1e} of the largest score")
    print(f"keys: {same} of {wanted.numel()} are those of the float64 reference")
    reference = attention_float64(q, rows, wanted)
    relative = float((out.double() - reference).norm() / reference.norm())
    print(f"out {tuple(out.shape)}: relative error {relative:.1e}")
    print(f"{seconds:.1f} s with compiling, on {device}")
    # Sums of 64 heads and 128 columns in float32; q, P and out are rounded to bf16, by 2^-9 relative each.
    if not (error < 2**-16 and relative < 2**-6):
        raise SystemExit("the results differ by more than rounding explains")


if __name__ == "__main__":
    main()
