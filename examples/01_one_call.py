"""One call on real input: causal self-attention over the characters of a text, against float64.

    python examples/01_one_call.py                     CPU: the kernel's sm_100a PTX on the emulator
    python examples/01_one_call.py --device cuda       the same kernel on a B200 or B300
    python examples/01_one_call.py --characters 1000 --head-dim 64 --file README.md

Every character is embedded with its position and projected to 8 query heads, 2 key/value heads.
"""

import argparse
import time
from pathlib import Path

import torch

from cute_fa4 import flash_attn_func
from cute_fa4.reference import allowed_error, attention_float64, max_error

HEADS_Q, HEADS_KV = 8, 2


def embed(text: bytes, width: int = 256) -> torch.Tensor:
    """(1, characters, width): the character, and sines and cosines of its position."""
    codes = torch.tensor(list(text))
    letters = torch.randn(256, width)[codes]
    angles = torch.arange(len(text))[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return (letters + torch.cat([angles.sin(), angles.cos()], dim=1))[None]


def project(x: torch.Tensor, heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """(1, characters, heads, head_dim), by a random matrix that keeps the variance."""
    weights = torch.randn(x.shape[-1], heads * head_dim) / x.shape[-1] ** 0.5
    return (x @ weights).unflatten(-1, (heads, head_dim)).to(dtype)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu (emulator) or cuda")
    parser.add_argument("--characters", type=int, default=300)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--file", type=Path, default=Path(__file__))
    arguments = parser.parse_args()

    torch.manual_seed(0)
    text = arguments.file.read_bytes()[: arguments.characters]
    x = embed(text)
    dtype = getattr(torch, arguments.dtype)
    q, k, v = (
        project(x, heads, arguments.head_dim, dtype).to(arguments.device)
        for heads in (HEADS_Q, HEADS_KV, HEADS_KV)
    )

    begin = time.perf_counter()
    out, lse = flash_attn_func(q, k, v, causal=True, return_lse=True)
    if out.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin

    exact, exact_lse = attention_float64(q, k, v, causal=True)
    allowed = allowed_error(q, k, v, causal=True)
    error, error_lse = max_error(out, exact), max_error(lse, exact_lse)
    print(
        f"input     {len(text)} characters of {arguments.file.name}: q {tuple(q.shape)}, {q.dtype}"
    )
    print(f"          k, v {tuple(k.shape)}, causal")
    print(f"output    out {tuple(out.shape)}, {out.dtype}; lse {tuple(lse.shape)}, {lse.dtype}")
    print(
        f"error     out {error:.2e} (allowed {allowed.out:.2e}), |out| to {exact.abs().max():.2f}"
    )
    print(f"          lse {error_lse:.2e} (allowed {allowed.lse:.2e})")
    print(f"executed  {what_executed_it(out.device)}; {seconds:.1f} s with compiling")
    if error > allowed.out or error_lse > allowed.lse:
        raise SystemExit("the error is larger than a correct kernel may have")


def what_executed_it(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    from cute_fa4 import emulator

    run = emulator.last_run()
    mma = sum(count for opcode, count in run.opcodes.items() if opcode.startswith("tcgen05.mma"))
    return (
        f"{run.instructions:,} warp instructions of sm_100a PTX, {mma:,} of them tcgen05.mma, "
        f"in {run.launches} launch by the emulator on the CPU (ordering checks at level {run.level}), "
        "whose time is not a GPU's"
    )


if __name__ == "__main__":
    main()
