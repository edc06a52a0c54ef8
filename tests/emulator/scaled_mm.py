"""torch._scaled_mm of 4-bit elements on the CPU, which torch does not have: the reference of block-scaled examples."""

import torch

E2M1 = torch.tensor(
    [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64
)


def values(pairs):
    """Rows of bytes with two e2m1 each, the first in the low half -> float64."""
    code = pairs.view(torch.uint8).long()
    return torch.stack((E2M1[code & 15], E2M1[code >> 4]), -1).reshape(code.shape[0], -1)


def scales(blocked, rows, columns):
    """Scales in tiles of 128 x 4 (cuBLAS, "1D Block Scaling Factors Layout") -> float64 [row, column]."""
    tiles = blocked.view(torch.uint8).view(torch.float8_e4m3fn).double()
    tiles = tiles.reshape(rows // 128, columns // 4, 32, 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(rows, columns)


def scaled_mm(a, b, scale_a, scale_b, bias=None, out_dtype=torch.float16, **_):
    """A B with a scale for every 16 elements of K."""
    operands = []
    for pairs, blocked in ((a, scale_a), (b.t(), scale_b)):
        full = values(pairs)
        rows, k = full.shape
        operands.append(full * scales(blocked.reshape(-1), rows, k // 16).repeat_interleave(16, 1))
    return (operands[0] @ operands[1].t()).to(out_dtype)
