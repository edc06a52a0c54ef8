"""The modelled cost of the append to caches with scales of blocks: new rows of 16 bits, quantized in place.

A CTA is modelled from its machine code and a trace. A launch takes the longest of three times: its bytes, its
instructions, one a cycle in each sub-partition, and the CTAs that an SM holds at a time, one after the other.
docs/generate.py writes the table of docs/serving/four_bits.md from records (recorded.py).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch

from benchmarks.cycle_model import followed
from benchmarks.cycle_model.decode.our_decode import _compiled, cubin
from benchmarks.cycle_model.dequantized import NAMES
from benchmarks.cycle_model.kernels import disassemble
from benchmarks.cycle_model.modelled import NAN, made_by, marked
from benchmarks.cycle_model.records import Constants, Subject, records
from cute_fa4.dtypes import DTYPES
from cute_fa4.emulator.model import control_codes, nvdisasm, trace
from cute_fa4.emulator.model.constants import SUB_PARTITIONS
from cute_fa4.emulator.model.machine import Machine
from cute_fa4.emulator.run.launch import REGISTERS_PER_SM, SMS
from cute_fa4.sm100.append.config import THREADS, AppendConfig

ROWS, HEADS, DEPTH = 8192, 8, 128
BYTES_PER_US = 7.0e6  # HBM as in docs/decisions/0008


class Kind(NamedTuple):
    """An append: the dtype of the cache, and whether it tries both scales of a block."""

    dtype: str
    four_over_six: bool = False

    @property
    def config(self) -> AppendConfig:
        own = {"four_over_six": self.four_over_six}
        return AppendConfig(
            self.dtype, DEPTH, DEPTH, page_size=16, new_dtype="bf16", descales="kv", **own
        )

    @property
    def words(self) -> str:
        return NAMES[self.dtype] + ", `four_over_six`" * self.four_over_six


KINDS = (Kind("e2m1"), Kind("mxe4m3"), Kind("e2m1", True))


class Cta(NamedTuple):
    """A CTA: instructions of a warp, cycles, registers of a thread."""

    instructions: float
    cycles: float
    registers: float


def cta(config: AppendConfig, constants: Constants) -> Cta:
    """One CTA of an append, modelled now."""
    code = cubin(config)
    listing = control_codes.read(code, disassemble(code))
    with trace.installed():
        compiled, names = _compiled(config)
        values = _arguments(config)
        run = trace.record(lambda: compiled(*(values.get(name) for name in names)))
    [path] = followed.paths(config.name, listing.function, compiled.__ptx__, [run])
    found = Machine(constants).run(path, listing.codes, run)
    return Cta(len(path[0, 0]), round(found.cycles), nvdisasm.resources(code).registers)


def launch_us(config: AppendConfig, of: Cta, constants: Constants) -> tuple[float, float, float]:
    """Microseconds of ROWS new rows of K and of V with HEADS heads, by bytes, by issue and by latency."""
    if of.registers != of.registers:  # there is no record
        return NAN, NAN, NAN
    ctas = ROWS * HEADS * config.pieces / THREADS / SMS
    cycles_per_us = constants["clock_ghz"].value * 1e3
    at_once = REGISTERS_PER_SM // (THREADS * -(-int(of.registers) // 8) * 8)
    return (
        ROWS * HEADS * (2 * DEPTH * 2 + _written(config)) / BYTES_PER_US,
        ctas * of.instructions * (THREADS // 32) / SUB_PARTITIONS / cycles_per_us,
        ctas / at_once * of.cycles / cycles_per_us,
    )


def _figures(kind: Kind, constants: Constants) -> dict:
    return {"cta": cta(kind.config, constants)._asdict()}


def subject(kind: Kind, constants: Constants) -> Subject:
    """The record of a CTA."""
    config, name = kind.config, f"append to {kind.dtype}{', four over six' * kind.four_over_six}"
    figures = partial(_figures, kind, constants)
    return Subject(name, config.name, constants, figures, lambda: config)


def table(constants: Constants) -> str:
    """Every kind: its CTA, and the time of a launch by each bound."""
    lines = [
        f"Microseconds of a launch with {ROWS:,} new rows of K and V, {HEADS} heads, d={DEPTH}, bf16; the launch takes "
        "the longest of three times:",
        "",
        "| cache | instructions of a warp | cycles of a CTA | bytes | issue | latency | launch |",
        "|---|---|---|---|---|---|---|",
    ]
    used = [subject(kind, constants) for kind in KINDS]
    for kind, one in zip(KINDS, used, strict=True):
        known = records().get(one.name, {}).get("cta")
        of = Cta(**known) if known else Cta(NAN, NAN, NAN)
        times = launch_us(kind.config, of, constants)
        cells = [kind.words, marked(f"{of.instructions:,.0f}", one), f"{of.cycles:,.0f}"]
        cells += [f"{us:.1f}" for us in (*times, max(times))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", made_by(used)])


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
