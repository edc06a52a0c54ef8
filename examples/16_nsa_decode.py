"""A decode step of a layer with native sparse attention (NSA): compressed keys, selected blocks and a window.

    python examples/16_nsa_decode.py [--device cuda] [--keys 700 401] [--selected 5]

NSA (arXiv 2502.11089) has three branches, each with keys and values of its own:

    compressed   one key and value for 32 tokens, each 16 tokens: a learned sum with encodings of the positions
    selected     the blocks of 64 tokens that matter most, in pages: each key-value head has a page table of its own
    window       the last 128 tokens

The probabilities of the compressed keys, summed over the query heads of a group, say how much a block matters. The
first block and the last two are always selected. The output is the sum of the branches, each times its gate.

The layer also merges the branches by their log-sum-exp: that is one softmax over the keys of all three. Both are
compared with the same in float64, which selects blocks of its own.
"""

import argparse
import time

import torch

from cute_fa4 import flash_attn_with_kvcache
from cute_fa4.distributed import merge

HIDDEN, HEADS, HEADS_KV, DEPTH = 256, 16, 2, 64
COMPRESSED, STRIDE = 32, 16  # tokens of a compressed key, and between two of them
BLOCK, WINDOW = 64, 128
SCALE = DEPTH**-0.5
BRANCHES = ("compressed", "selected", "window")


class Layer:
    """Projections of hidden states, float64."""

    def __init__(self):
        def weight(*sizes):
            return torch.randn(*sizes, dtype=torch.float64) / sizes[0] ** 0.5

        self.q, self.gates = weight(HIDDEN, HEADS * DEPTH), weight(HIDDEN, HEADS * len(BRANCHES))
        self.kv = {name: weight(HIDDEN, 2 * HEADS_KV * DEPTH) for name in BRANCHES}
        self.sum_of_tokens = torch.rand(2, COMPRESSED, 1, 1, dtype=torch.float64).softmax(1)
        self.positions = weight(2, COMPRESSED, 1, DEPTH) / 4

    def queries(self, hidden):
        """-> q (heads, depth) bf16, gates (heads, branches) in (0, 1), of one token."""
        q = (hidden @ self.q).unflatten(-1, (HEADS, DEPTH))
        return q.bfloat16(), (hidden @ self.gates).unflatten(-1, (HEADS, -1)).sigmoid()

    def keys(self, hidden) -> dict:
        """-> branch: K and V (2, keys, heads, depth) bf16. Compressed keys are made of whole spans of tokens."""
        found = {}
        for name, weight in self.kv.items():
            found[name] = (hidden @ weight).unflatten(-1, (2, HEADS_KV, DEPTH)).movedim(1, 0)
        spans = found["compressed"].unfold(1, COMPRESSED, STRIDE).movedim(-1, 2)
        pooled = (spans + self.positions[:, None]) * self.sum_of_tokens[:, None]
        found["compressed"] = pooled.sum(2)
        return {name: x.bfloat16() for name, x in found.items()}


def importance(q, k, lse, keys: int):
    """(heads of k, blocks): probabilities of the compressed keys within each block, summed over a group.

    q (heads, depth), k (compressed keys, heads, depth), lse (heads,)
    """
    q = q.unflatten(0, (HEADS_KV, -1))
    scores = torch.einsum("hgd,khd->hgk", q, k) * SCALE
    p = torch.exp(scores - lse.unflatten(0, (HEADS_KV, -1))[..., None]).sum(1)
    of_blocks = p.new_zeros(HEADS_KV, -(-keys // BLOCK))
    begins = torch.arange(k.shape[0], device=k.device) * STRIDE
    for step in range(0, COMPRESSED, STRIDE):  # a key counts for each stride of its tokens
        of_blocks.index_add_(1, (begins + step) // BLOCK, p)
    return of_blocks


def selected_blocks(of_blocks, number: int):
    """(heads of k, number) in ascending order; the first block and the last two are among them."""
    blocks = of_blocks.shape[1]
    forced = of_blocks.clone()
    forced[:, [0, max(0, blocks - 2), blocks - 1]] = torch.inf
    return forced.topk(min(number, blocks), dim=1).indices.sort(dim=1).values


def padded(tensors, rows: int):
    return torch.stack(
        [torch.nn.functional.pad(x, (0, 0, 0, 0, 0, rows - len(x))) for x in tensors]
    )


def in_pages(tensors):
    """-> pages (pages, heads, BLOCK, depth), tables: the pages of each sequence."""
    pages, tables = [], []
    for x in tensors:
        x = padded([x], -(-len(x) // BLOCK) * BLOCK)[0].unflatten(0, (-1, BLOCK))
        tables.append(sum(map(len, pages)) + torch.arange(len(x), device=x.device))
        pages.append(x.transpose(1, 2))
    return torch.cat(pages), tables


def decode(q, caches: dict, lengths: list, number: int):
    """-> branch: (out (batch, 1, heads, depth), lse (batch, heads, 1)), and the blocks of each sequence."""
    device, parts, blocks = q.device, {}, []

    def numbers(values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    for name in ("compressed", "window"):
        each = [x.to(device) for x in caches[name]]
        used = [x.shape[1] for x in each]
        k, v = (padded([x[i] for x in each], max(used)) for i in range(2))
        options = {"window_size": (WINDOW - 1, 0)} if name == "window" else {}
        parts[name] = flash_attn_with_kvcache(
            q,
            k,
            v,
            cache_seqlens=numbers(used),
            softmax_scale=SCALE,
            return_softmax_lse=True,
            **options,
        )
    for b, (cache, keys) in enumerate(zip(caches["compressed"], lengths, strict=True)):
        lse = parts["compressed"][1][b, :, 0]
        of_blocks = importance(q[b, 0].float(), cache[0].to(device).float(), lse, keys)
        blocks.append(selected_blocks(of_blocks, number))

    # A head of a sequence becomes a sequence of one head: page p of head h is page p * HEADS_KV + h of the same memory.
    (k, tables), (v, _) = (
        in_pages([x[i].to(device) for x in caches["selected"]]) for i in range(2)
    )
    k, v = (x.flatten(0, 1)[:, :, None] for x in (k, v))
    head = torch.arange(HEADS_KV, device=device)[:, None]
    page_table = torch.zeros(len(lengths), HEADS_KV, number, dtype=torch.int32, device=device)
    used = []
    for b, (own, keys) in enumerate(zip(blocks, lengths, strict=True)):
        page_table[b, :, : own.shape[1]] = tables[b][own] * HEADS_KV + head
        beyond = (
            -(-keys // BLOCK) * BLOCK - keys
        )  # of the last block, which is the last selected one
        used += [own.shape[1] * BLOCK - beyond] * HEADS_KV
    of_heads = q.unflatten(2, (HEADS_KV, -1)).transpose(1, 2).flatten(0, 1)
    out, lse = flash_attn_with_kvcache(
        of_heads,
        k,
        v,
        cache_seqlens=numbers(used),
        page_table=page_table.flatten(0, 1),
        softmax_scale=SCALE,
        return_softmax_lse=True,
    )
    parts["selected"] = out.reshape(q.shape), lse.reshape(q.shape[0], HEADS, 1)
    return {name: parts[name] for name in BRANCHES}, blocks


def decode_float64(q, caches: dict, keys: int, gates, number: int):
    """-> (gated sum, one softmax over the keys of all branches, blocks) of one sequence."""
    q, caches = q.double(), {name: x.double() for name, x in caches.items()}

    def scores(k):
        return torch.einsum("hgd,khd->hgk", q.unflatten(0, (HEADS_KV, -1)), k) * SCALE

    def out(s, v):
        return torch.einsum("hgk,khd->hgd", s.softmax(-1), v).flatten(0, 1)

    s = {name: scores(caches[name][0]) for name in BRANCHES}
    lse = s["compressed"].logsumexp(-1).flatten()
    blocks = selected_blocks(importance(q, caches["compressed"][0], lse, keys), number)
    seen = (torch.arange(keys) // BLOCK == blocks[:, :, None]).any(1)
    s["selected"] = s["selected"].masked_fill(~seen[:, None], -torch.inf)
    s["window"] = s["window"].masked_fill(torch.arange(keys) < keys - WINDOW, -torch.inf)
    gated = sum(
        gates[:, i, None] * out(s[name], caches[name][1]) for i, name in enumerate(BRANCHES)
    )
    together = torch.cat([s[name] for name in BRANCHES], -1)
    return gated, out(together, torch.cat([caches[name][1] for name in BRANCHES])), blocks


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu (emulator) or cuda; default: cpu")
    parser.add_argument(
        "--keys", type=int, nargs="+", default=[700, 401], help="tokens of each sequence"
    )
    parser.add_argument("--selected", type=int, default=5, help="blocks of a query; default: 5")
    arguments = parser.parse_args()
    lengths, number = arguments.keys, arguments.selected
    if min(lengths) < COMPRESSED or number < 3:
        parser.error(f"accepted: sequences of at least {COMPRESSED} tokens, at least 3 blocks")

    torch.manual_seed(0)
    layer = Layer()
    hidden = [torch.randn(keys, HIDDEN, dtype=torch.float64) for keys in lengths]
    caches = [layer.keys(x) for x in hidden]
    queries, gates = zip(*(layer.queries(x[-1]) for x in hidden), strict=True)
    q = torch.stack(queries)[:, None].to(arguments.device)
    by_branch = {name: [x[name] for x in caches] for name in BRANCHES}

    begin = time.perf_counter()
    parts, blocks = decode(q, by_branch, lengths, number)
    weights = torch.stack(gates).float().to(q.device)  # (batch, heads, branches)
    gated = sum(weights[:, None, :, i, None] * out for i, (out, _) in enumerate(parts.values()))
    merged, _ = merge(*(list(each) for each in zip(*parts.values(), strict=True)))
    seconds = time.perf_counter() - begin

    exact = [
        decode_float64(*each, number) for each in zip(queries, caches, lengths, gates, strict=True)
    ]
    same = sum(int((a.cpu() == b).sum()) for a, (_, _, b) in zip(blocks, exact, strict=True))
    wanted = sum(x.numel() for _, _, x in exact)
    print(f"{len(lengths)} sequences of {lengths} tokens, {HEADS} heads over {HEADS_KV}")
    print(f"blocks: {same} of {wanted} are those of the float64 reference")
    worst = 0.0
    for name, found, i in (("gated sum", gated, 0), ("one softmax", merged, 1)):
        reference = torch.stack([x[i] for x in exact])
        relative = float((found[:, 0].cpu().double() - reference).norm() / reference.norm())
        print(f"{name} {tuple(found.shape)}: relative error {relative:.1e}")
        worst = max(worst, relative)
    print(f"{seconds:.1f} s with compiling, on {arguments.device}")
    # P and the outputs of the branches are rounded to bf16, by 2^-9 relative each.
    if same != wanted or worst > 2**-7:
        raise SystemExit("the results differ by more than rounding explains")


if __name__ == "__main__":
    main()
