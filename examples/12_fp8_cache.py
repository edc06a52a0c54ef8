"""A tiny transformer decodes with a paged 8-bit cache, compared with the same one with a 16-bit cache.

    python examples/12_fp8_cache.py                     CPU: the kernels' sm_100a PTX on the emulator
    python examples/12_fp8_cache.py --device cuda       the same kernels on a B200 or B300
    python examples/12_fp8_cache.py --tokens 20

Two layers with random weights read two prompts and continue them. In the second run the cache is float8_e4m3fn: new
rows are quantized when they are written, with one scale per head that the layer stores, and queries stay bf16. Both
runs read the tokens of the first run, so that only the cache differs. (For Hugging Face transformers,
cute_fa4.integrations.transformers_cache.EightBitCache has one scale per token.)
"""

import argparse
import warnings

import torch

from cute_fa4 import EmulatorWarning, flash_attn_with_kvcache

PROMPTS = (b"keys and values", b"of eight bits")
LAYERS, HEADS, KV_HEADS, HEAD_DIM, PAGE = 2, 4, 2, 64, 16
WIDTH = HEADS * HEAD_DIM
LARGEST = 3.0  # standard deviations of keys and values that a scale covers, as from calibration


class Layer:
    """Attention and its cache."""

    def __init__(self, generator, pages: int, dtype: torch.dtype, device):
        def weights(rows, columns):
            drawn = torch.randn(rows, columns, generator=generator) * rows**-0.5
            return drawn.bfloat16().to(device)

        self.q = weights(WIDTH, HEADS * HEAD_DIM)
        self.kv = weights(WIDTH, 2 * KV_HEADS * HEAD_DIM)
        self.out = weights(HEADS * HEAD_DIM, WIDTH)
        sizes = (2, pages, PAGE, KV_HEADS, HEAD_DIM)
        self.cache = torch.zeros(sizes, device=device).to(dtype)
        self.scales = {}
        if dtype is torch.float8_e4m3fn:
            # The layer's inputs are normalised, so that keys and values have deviation 1.
            scale = torch.full((len(PROMPTS), KV_HEADS), LARGEST / 448, device=device)
            self.scales = {"k_descale": scale, "v_descale": scale}

    def __call__(self, x, lengths, table):
        """x (batch, new tokens, width): appends their keys and values and attends to all."""
        normal = torch.nn.functional.layer_norm(x.float(), (WIDTH,)).to(x.dtype)
        q = (normal @ self.q).unflatten(-1, (HEADS, HEAD_DIM))
        k, v = (normal @ self.kv).unflatten(-1, (2, KV_HEADS, HEAD_DIM)).unbind(2)
        attended = flash_attn_with_kvcache(
            q, *self.cache, k.contiguous(), v.contiguous(), cache_seqlens=lengths, page_table=table, causal=True,
            **self.scales,
        )  # fmt: skip
        return x + attended.flatten(2) @ self.out


def decode(dtype: torch.dtype, tokens: int, device, given=None):
    """-> (tokens that are written, (steps, batch, 256) logits, bytes of all caches). given: tokens to read instead."""
    generator = torch.Generator().manual_seed(0)
    pages = -(-(max(map(len, PROMPTS)) + tokens) // PAGE)
    layers = [Layer(generator, 2 * pages, dtype, device) for _ in range(LAYERS)]
    embedding = torch.randn(256, WIDTH, generator=generator).bfloat16().to(device)
    table = torch.randperm(2 * pages, generator=generator).view(2, pages).int().to(device)
    shortest = min(map(len, PROMPTS))
    read = torch.tensor([list(prompt[-shortest:]) for prompt in PROMPTS], device=device)
    lengths = torch.zeros(len(PROMPTS), dtype=torch.int32, device=device)
    written, logits = [], []
    for step in range(tokens):
        x = embedding[read]
        for layer in layers:
            x = layer(x, lengths, table)
        lengths += read.shape[1]
        logits.append((x[:, -1] @ embedding.T).float() / WIDTH**0.5)
        read = (logits[-1].argmax(-1) if given is None else given[step])[:, None]
        written.append(read[:, 0])
    nbytes = sum(layer.cache.numel() * layer.cache.element_size() for layer in layers)
    return written, torch.stack(logits), nbytes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu (emulator) or cuda")
    parser.add_argument("--tokens", type=int, default=4, help="tokens to write for each prompt")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", EmulatorWarning)

    tokens, wide, wide_bytes = decode(torch.bfloat16, arguments.tokens, arguments.device)
    _, narrow, narrow_bytes = decode(
        torch.float8_e4m3fn, arguments.tokens, arguments.device, given=tokens
    )
    error = (narrow - wide).norm() / wide.norm()
    same = (narrow.argmax(-1) == wide.argmax(-1)).float().mean()
    print(f"cache of bf16       {wide_bytes:7} bytes")
    print(f"cache of float8     {narrow_bytes:7} bytes")
    print(f"logits differ by    {float(error):7.2%} of their norm")
    print(f"the same best token {float(same):7.0%} of {arguments.tokens} steps")
    if not error < 0.1:
        raise SystemExit("logits are further off than three mantissa bits explain")


if __name__ == "__main__":
    main()
