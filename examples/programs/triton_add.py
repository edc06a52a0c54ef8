"""A program of Triton for a Blackwell GPU: out = x + y.

python -m cute_fa4.emulator run examples/programs/triton_add.py
"""

import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


def main():
    torch.manual_seed(0)
    x, y = (torch.rand(1000, device=DEVICE) for _ in range(2))
    out = torch.empty_like(x)
    add_kernel[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, y, out, 1000, BLOCK=256)
    assert torch.equal(out, x + y)
    print("PASS")


if __name__ == "__main__":
    main()
