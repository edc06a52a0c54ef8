"""The modelled cost of the append to caches with scales of blocks: new rows of 16 bits, quantized in place.

    python -m benchmarks.cycle_model.append

A CTA is modelled from its machine code and a trace. A launch takes the longest of three times: its bytes, its
instructions, one a cycle in each sub-partition, and the CTAs that an SM holds at a time, one after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from benchmarks.cycle_model.decode.our_decode import _compiled, cubin
from benchmarks.cycle_model.kernels import disassemble
from cute_fa4.dtypes import DTYPES
from cute_fa4.emulator.model import align, control_codes, nvdisasm, trace
from cute_fa4.emulator.model.constants import SUB_PARTITIONS, Constant, fitted_b200
from cute_fa4.emulator.model.machine import Machine
from cute_fa4.emulator.run.launch import REGISTERS_PER_SM, SMS
from cute_fa4.sm100.append.config import THREADS, AppendConfig

ROWS, HEADS, DEPTH = 8192, 8, 128
BYTES_PER_US = 7.0e6  # HBM as in docs/decisions/0008
CYCLES_PER_US = 1845  # the clock of the other tables
KINDS = (("e2m1", False), ("e2m1", True), ("mxe4m3", False))  # dtype of the cache, four_over_six


class Cost(NamedTuple):
    """A CTA: instructions of a warp, cycles, registers of a thread. A launch: microseconds by each bound."""

    instructions: int
    cycles: float
    registers: int
    by_bytes: float
    by_issue: float
    by_latency: float


def config_of(dtype: str, four_over_six: bool) -> AppendConfig:
    return AppendConfig(
        dtype, DEPTH, DEPTH, page_size=16, new_dtype="bf16", descales="kv", four_over_six=four_over_six
    )  # fmt: skip


def cost(config: AppendConfig, constants: dict[str, Constant]) -> Cost:
    """The cost of ROWS new rows of K and of V with HEADS heads."""
    code = cubin(config)
    listing = control_codes.read(code, disassemble(code))
    with trace.installed():
        compiled, names = _compiled(config)
        values = _arguments(config)
        run = trace.record(
            lambda: compiled(*(values.get(name) for name in names)), global_loads=True
        )
    [path] = align.paths(listing.function, compiled.__ptx__, [run])
    found = Machine(constants).run(path, listing.codes, run)
    instructions, warps = len(path[0, 0]), THREADS // 32
    ctas = ROWS * HEADS * config.pieces / THREADS / SMS
    registers = nvdisasm.resources(code).registers
    at_once = REGISTERS_PER_SM // (THREADS * -(-registers // 8) * 8)
    in_bytes = ROWS * HEADS * (2 * DEPTH * 2 + _written(config))
    return Cost(
        instructions,
        found.cycles,
        registers,
        in_bytes / BYTES_PER_US,
        ctas * instructions * warps / SUB_PARTITIONS / CYCLES_PER_US,
        ctas / at_once * found.cycles / CYCLES_PER_US,
    )


def _written(config: AppendConfig) -> float:
    """Bytes of a row of K and of V, with their scales."""
    row = DTYPES[config.dtype]
    return 2 * DEPTH * (1 / row.in_byte + 1 / row.block)


def _arguments(config: AppendConfig) -> dict:
    """Rows for one CTA, by parameter name."""
    row, rows = DTYPES[config.dtype], THREADS // (HEADS * config.pieces)
    new = torch.randn(2, 1, rows, HEADS, DEPTH, generator=torch.Generator().manual_seed(0))
    numbers = torch.zeros(2, 1, 16, HEADS, DEPTH // row.in_byte).byte()
    k_cache, v_cache = numbers.view(DTYPES[row.element].torch)
    scales = torch.zeros(2, 1, 16, HEADS, DEPTH // row.block).byte()
    return dict(
        new_k=new[0].bfloat16(), new_v=new[1].bfloat16(), k_cache=k_cache, v_cache=v_cache, batch=1,
        cache_seqlens=torch.tensor([3], dtype=torch.int32), page_table=torch.zeros(1, 1, dtype=torch.int32),
        descales=(*torch.full((2, 1, HEADS), 0.5), *scales),
    )  # fmt: skip


def main() -> None:
    constants = fitted_b200()
    for dtype, four_over_six in KINDS:
        found = cost(config_of(dtype, four_over_six), constants)
        print(
            f"{dtype}{', four over six' * four_over_six}: {found.instructions} instructions, {found.cycles:.0f} "
            f"cycles, {found.registers} registers; {ROWS} rows of {HEADS} heads: bytes {found.by_bytes:.1f} us, issue "
            f"{found.by_issue:.1f} us, latency {found.by_latency:.1f} us",
            flush=True,
        )


if __name__ == "__main__":
    main()
