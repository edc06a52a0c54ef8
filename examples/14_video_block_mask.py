"""Attention of a video in which cubes of tokens see the cubes around them: lists of key blocks, made on the device.

    python examples/14_video_block_mask.py                  CPU: the kernels' sm_100a PTX on the emulator
    python examples/14_video_block_mask.py --device cuda    the same kernels on a B200 or B300
    python examples/14_video_block_mask.py --frames 24

Tokens (frame, row, column) are put in the order of cubes of 4 x 4 x 8, so that a cube is a block of 128 tokens. A cube
sees itself and its neighbours along each axis. All keys of a listed block are visible: no mask function is needed.
"""

import argparse
import warnings

import torch

from cute_fa4 import BlockSparseTensors, EmulatorWarning, flash_attn_func

CUBE = (4, 4, 8)  # frames, rows, columns: 128 tokens
REACH = 1  # cubes to either side


def cubes_of(x: torch.Tensor) -> torch.Tensor:
    """(batch, frames, rows, columns, ...) -> (batch, tokens, ...), cube by cube."""
    for axis, size in zip((1, 3, 5), CUBE, strict=True):
        x = x.unflatten(axis, (-1, size))
    x = x.permute(0, 1, 3, 5, 2, 4, 6, *range(7, x.dim()))
    return x.flatten(1, 6)


def neighbours(cubes: tuple[int, ...], device) -> torch.Tensor:
    """(cubes, cubes): whether a cube sees another."""
    at = torch.cartesian_prod(*(torch.arange(n, device=device) for n in cubes))
    return ((at[:, None] - at).abs() <= REACH).all(-1)


def lists_of(seen: torch.Tensor) -> BlockSparseTensors:
    """The lists of all sequences and heads: the blocks that are seen come first. The host reads nothing."""
    counts = seen.sum(-1, dtype=torch.int32)
    entries = torch.argsort(~seen, dim=-1, stable=True).to(torch.int32)
    return BlockSparseTensors(counts[None, None], entries[None, None], block_size=(128, 128))


def expected(q, k, v, visible) -> torch.Tensor:
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    scores = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).masked_fill(~visible, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--frames", type=int, default=16, help="a multiple of 4")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", EmulatorWarning)
    frames, rows, columns, heads, depth = asked.frames, 8, 8, 1, 64
    generator = torch.Generator().manual_seed(0)
    video = torch.randn(3, 1, frames, rows, columns, heads, depth, generator=generator)
    q, k, v = (cubes_of(x) for x in video.bfloat16().to(asked.device))
    sizes = tuple(n // size for n, size in zip((frames, rows, columns), CUBE, strict=True))
    seen = neighbours(sizes, q.device)
    out = flash_attn_func(q, k, v, block_sparse_tensors=lists_of(seen))
    visible = seen.repeat_interleave(128, 0).repeat_interleave(128, 1)
    error = (out - expected(q, k, v, visible)).abs().max()
    print(
        f"{q.shape[1]} tokens in {len(seen)} cubes, {seen.float().mean():.0%} of the blocks are seen"
    )
    print(f"largest error against float64: {error:.1e}")
    assert error < 0.01


if __name__ == "__main__":
    main()
