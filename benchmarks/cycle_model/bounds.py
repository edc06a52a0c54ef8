"""Costs that the model leaves out, and how large each can be, from a constant of the model or a measurement of others.

docs/generate.py writes both tables into docs/performance/method.md.
"""

from __future__ import annotations

from cute_fa4.emulator.model.constants import Constant

SHORTEST_DECODE_US = 4.5  # of the table of decode: one sequence of 1,024 keys
PREFILL_MB = 537  # of every row of the table of speeds at d=128
PART_BYTES = 4  # of an element of a part of O
GATHER4_NS, GATHERED = 169, 4  # of an instruction of four rows, with 32 of them on their way
GATHER_SOURCE = (
    "[measured by others on a B200](https://github.com/AndreSlavescu/flashinfer-competition), one thread: 169 ns for "
    "four rows with 32 instructions in flight; one alone takes 205 ns from L2 and 540 from memory"
)


def us(cycles: float, constants: dict[str, Constant]) -> float:
    """Microseconds of so many cycles."""
    return cycles / constants["clock_ghz"].value * 1e-3


def store_us(rows: int, depth: int, constants: dict[str, Constant]) -> float:
    """From the last store of a decode CTA to the end of its launch: a float32 part, then its way into L2."""
    leaves = rows * depth * PART_BYTES / constants["tma_rate"].value
    return us(leaves + constants["lat_membar_gpu"].value, constants)


def left_out(constants: dict[str, Constant]) -> str:
    """Costs that no cycle of the model stands for."""
    rate = constants["tma_rate"].value
    few, many = (store_us(rows, 128, constants) for rows in (8, 32))
    gathered = GATHER4_NS / GATHERED
    modelled = [us(size / rate, constants) * 1e3 for size in (256, 1152)]
    lines = [
        "| left out | at most | source |",
        "|---|---|---|",
        f"| output stores of a decode CTA, d=128: its part at one SM's share of L2, then a fence | {few:.2f} us of a "
        f"launch with 8 rows, {many:.2f} with 32; {many / SHORTEST_DECODE_US:.0%} of the shortest decode | `tma_rate`, "
        "`lat_membar_gpu` |",
        f"| a row by `tile::gather4` | {gathered:.0f} ns; the model has its bytes alone, {modelled[0]:.0f} ns of 256 "
        f"bytes, {modelled[1]:.0f} of 1,152. No kernel of these pages' tables gathers | {GATHER_SOURCE} |",
    ]
    return "\n".join(lines)


def fixed(constants: dict[str, Constant]) -> str:
    """Parts of the time of a launch in addition to its work, and how much of the fitted cost they do not explain."""
    value = {name: constant.value for name, constant in constants.items()}
    bytes_us = PREFILL_MB / value["hbm_tbs"]
    fitted = value["cold_memory"] * bytes_us
    parts = {
        "launch on the host": ("`launch_us`", value["launch_us"]),
        "start of the kernel": ("`kernel_start_us`", value["kernel_start_us"]),
        "first copies: tensor maps, translations": ("`cold_start_us`", value["cold_start_us"]),
        "allocation of tensor memory": ("`lat_tmem_alloc`", us(value["lat_tmem_alloc"], constants)),
        "meeting of a cluster": ("`cluster_sync`", us(value["cluster_sync"], constants)),
    }
    known = sum(part for _, part in parts.values())
    lines = ["| part of the fixed cost | term | us |", "|---|---|---|"]
    lines += [f"| {what} | {term} | {part:.2f} |" for what, (term, part) in parts.items()]
    lines += [
        f"| together | | {known:.2f} |",
        f"| fitted, a launch of {PREFILL_MB} MB, without that of the host | `cold_memory` | {fitted:.1f} |",
        f"| of it not explained, at most | | {fitted - known + value['launch_us']:.1f} |",
    ]
    return "\n".join(lines)
