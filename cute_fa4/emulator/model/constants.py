"""Rates, latencies and run conditions of a chip: value, unit, source, and whether it was fitted.

Cycles are SM cycles. A rate is per SM, as in its sources. An SM has four sub-partitions, each with a scheduler and
a quarter of every pipe. An instruction of 32 lanes occupies the pipe of its sub-partition for 32 / (rate / 4)
cycles.

At most six constants of a chip are fitted, on published rows (calibration.py); the file
constants_b200.json has their values. Everything else comes from its source.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

SUB_PARTITIONS = 4
LANES = 32
MAX_FITTED = 6


@dataclass(frozen=True)
class Constant:
    """One number of the model. fitted: no source settles it, calibration.py chose it."""

    value: float
    unit: str
    source: str
    fitted: bool = False


_VENDOR = "CUDA C++ programming guide, throughput of native arithmetic instructions"
_FA4 = "FlashAttention-4 paper (arXiv 2603.05451), section 3"
_SEMI = "SemiAnalysis microbench-blackwell, B200, 1.965 GHz"
_ADEMEURE = "ademeure, B300 notes"
_H200 = "measured on an H200: benchmarks/hopper_decode.cu"
_H100 = "measured on an H100: benchmarks/hopper_shared.cu"
_ASSUMED = "no source; the value only matters in prologue and epilogue"

B200: dict[str, Constant] = {
    # run conditions
    "sms": Constant(148, "SMs", "two dies of 74 (chipsandcheese, SemiAnalysis)"),
    "clock_ghz": Constant(1.85, "GHz", f"{_FA4}: 1850 MHz; 1.845 sustained by clock64"),
    "launch_us": Constant(
        1.78,
        "us",
        f"{_ADEMEURE}: the host's part of a launch; here what a time between events has besides the kernel",
    ),
    # pipes
    "issue": Constant(1, "instruction/cycle/scheduler", "one dispatch port a sub-partition"),
    "rate_fma": Constant(128, "FMA/cycle/SM", _VENDOR + "; FFMA2 counts two"),
    "rate_alu": Constant(64, "results/cycle/SM", _VENDOR + ": compare, min, max, logic, add"),
    "rate_convert": Constant(64, "results/cycle/SM", _VENDOR + ": from 32 bits to other types"),
    "rate_mufu": Constant(16, "results/cycle/SM", f"{_FA4}; 32 on B300"),
    "pipe_efficiency": Constant(
        1.0,
        "fraction of the rates of fma, alu, convert, mufu",
        "fitted; B300 sustains 27 of 32 MUFU and 85 % of FFMA (ademeure)",
        True,
    ),
    "rate_uniform": Constant(64, "results/cycle/SM", "as the integer pipe: no source"),
    "rate_shared": Constant(128, "bytes/cycle/SM", f"{_FA4}, Table 1; B300 measured 99.8 %"),
    "rate_tmem_load": Constant(512, "bytes/cycle/SM", "4 sub-partitions x 32 lanes x 4 bytes"),
    "rate_tmem_store": Constant(400, "bytes/cycle/SM", f"{_ADEMEURE}: 340 to 460, unverified"),
    # latencies until the scoreboard is free
    "lat_mufu": Constant(18, "cycles", f"{_ADEMEURE}: 14 at 4 cycles a warp, 8 here"),
    "lat_tmem": Constant(60, "cycles", "fitted; one comment says 420 under load", True),
    "lat_shared": Constant(30, "cycles", "LDS on Hopper and Blackwell (arXiv 2402.13499): 29-33"),
    "lat_constant": Constant(35, "cycles", _ASSUMED),
    "lat_special": Constant(25, "cycles", _ASSUMED),
    "lat_global": Constant(700, "cycles", "global miss 420 plus L2 (arXiv 2512.02189)"),
    "lat_local": Constant(38, "cycles", "L1 on Hopper (arXiv 2402.13499): spilled registers"),
    "lat_uniform": Constant(12, "cycles", _ASSUMED),
    "lat_read": Constant(10, "cycles", "operands are read; no source"),
    "lat_fence": Constant(20, "cycles", _ASSUMED),
    "lat_membar_gpu": Constant(
        575, "cycles", f"{_ADEMEURE}: MEMBAR.ALL.GPU after writes; 267 with none on their way"
    ),
    "lat_tmem_alloc": Constant(253, "cycles", f"{_ADEMEURE}: uncontended"),
    # synchronisation
    "mbarrier_arrive": Constant(27, "cycles", f"{_ADEMEURE}: arrive + test_wait 54, halved"),
    "mbarrier_wake": Constant(27, "cycles", f"{_ADEMEURE}: arrive + test_wait 54, halved"),
    "remote_arrive": Constant(102, "cycles", f"{_ADEMEURE}: cluster arrive.relaxed + wait"),
    "bar_sync": Constant(28, "cycles", f"{_ADEMEURE}: __syncthreads of 256 threads"),
    "cluster_sync": Constant(373, "cycles", f"{_ADEMEURE}: cluster.sync()"),
    # tensor core: b of latency = II + b, of which commit + wait are 52
    "umma_tail_ss": Constant(148 - 52, "cycles", f"{_SEMI}: 148 - commit and wait 52"),
    "umma_tail_ts": Constant(116 - 52, "cycles", f"{_SEMI}: 116 - commit and wait 52"),
    "umma_tail_pair": Constant(34, "cycles", f"{_SEMI}: 182 - 148 and 150 - 116, two SMs"),
    "umma_commit": Constant(25, "cycles", "commit + wait round trip 52 - mbarrier_wake"),
    # memory
    "tma_latency": Constant(364, "cycles", "197 ns in L2, unloaded (Modal B200) at 1.85 GHz"),
    "tma_rate": Constant(48, "bytes/cycle/SM", "13.3 TB/s L2 bus (chipsandcheese) / 148 / 1.85"),
    "claim": Constant(1000, "cycles", "no source: above a global miss; cluster launch control"),
    "store_latency": Constant(200, "cycles", "until the source is read; no source"),
    "reduce_rate": Constant(
        17.8,
        "bytes/cycle/SM",
        f"{_H100}: float32 added to L2 by all SMs at a time; 13.1 in another run; one SM alone: 25.4",
    ),
    "contention": Constant(
        0.0,
        "fraction of the time of warps and bulk stores in shared memory that MMAs wait for",
        "0: the fitted constants were chosen so; backward.py takes 1",
    ),
    "hbm_tbs": Constant(7.26, "TB/s", f"{_SEMI}: TMA read"),
    # decode: what a chip that streams asks of its memory, and of launches
    "dram_latency_ns": Constant(545, "ns", "TMA, unloaded, not in L2: 540 to 595 (Modal B200)"),
    "dram_knee": Constant(2.2, "exponent", f"{_SEMI}: TMA read with 4 to 128 KiB in flight an SM"),
    "lat_l2": Constant(428, "cycles", f"{_ADEMEURE}: near 150 ns, far 300 cycles more; their mean"),
    "cold_start_us": Constant(0.98, "us", f"{_H200}: first copies of a launch above the latency"),
    "kernel_start_us": Constant(
        0.56,
        "us",
        f"{_ADEMEURE}: each of 1000 kernels of a graph that do nothing; 0.55 on an H200 (hopper_decode.cu)",
    ),
    "dependent_saves_us": Constant(0.9, "us", f"{_H200}: of a merging launch, parts 2 to 16"),
    "dependent_least_us": Constant(
        1.2, "us", f"{_H200}: the least that a dependent merging launch took, of two parts"
    ),
    "cluster_merge_2_us": Constant(
        0.37, "us", f"{_H200}: two parts in a cluster, sent by st.async, beside unmerged ones"
    ),
    "cluster_merge_4_us": Constant(0.26, "us", f"{_H200}: the same of four"),
    "cluster_merge_8_us": Constant(0.24, "us", f"{_H200}: the same of eight"),
    # grid
    "cta_gap": Constant(1500, "cycles", "fitted: exit to first instruction of the next CTA", True),
    "cold_memory": Constant(
        0.0,
        "fraction of bytes / hbm_tbs",
        "fitted; by how much SMs are later than their cycles say; no launch that memory bounds pays it",
        True,
    ),
    "second_run_speed": Constant(
        1.0, "factor on clock", "fitted: machine of flash-attention#2605 against the paper's", True
    ),
}

# Known constants of other chips, by the number in .target: name -> (value, source). All else is taken from the B200.
OTHER_CHIPS: dict[str, dict[str, tuple[float, str]]] = {
    "sm_103": {
        "clock_ghz": (1.92, f"{_ADEMEURE}: sustained"),
        "rate_mufu": (32, "FlashAttention-4 paper, section 3; ademeure measures 27"),
        "lat_mufu": (14, f"{_ADEMEURE}: 14 at 4 cycles a warp"),
        "hbm_tbs": (7.30, "measured on a B300, by TMA"),
    },
    "sm_110": {
        "sms": (
            20,
            "as the driver of a Jetson AGX Thor says: NVIDIA developer forum, topic 356355",
        ),
    },
}
NAMES = {"sm_103": "B300", "sm_110": "Thor"}

# Initiation interval in cycles of an MMA with K = 32 bytes, by CTAs, M, A in tensor memory, N.
# SemiAnalysis microbench-blackwell, umma_latency/fit_results.csv; between them linear in N.
UMMA_INTERVALS = {
    (1, 128, False): {64: 48, 80: 52, 96: 56, 112: 60, 128: 64, 256: 128},
    (1, 128, True): {64: 32, 128: 64, 256: 128},
    (1, 64, False): {64: 32, 128: 64, 256: 128},
    (1, 64, True): {64: 32, 128: 64, 256: 128},
    (2, 256, False): {64: 43, 128: 64, 256: 128},
    (2, 256, True): {64: 32, 128: 64, 256: 128},
    (2, 128, False): {64: 25, 128: 32, 256: 64},
    (2, 128, True): {64: 25, 128: 32, 256: 64},
}


def umma_interval(ctas: int, m: int, n: int, a_in_tmem: bool) -> float:
    """Cycles from one MMA to the next, before any fitted factor. ValueError for an unknown shape."""
    known = UMMA_INTERVALS.get((ctas, m, a_in_tmem))
    if known is None:
        raise ValueError(
            f"no initiation interval for M={m}, {ctas} CTAs; known: {sorted(UMMA_INTERVALS)}"
        )
    sizes = sorted(known)
    if n <= sizes[0]:
        return float(known[sizes[0]])
    for low, high in zip(sizes, sizes[1:], strict=False):
        if n <= high:
            return known[low] + (known[high] - known[low]) * (n - low) / (high - low)
    return known[sizes[-1]] * n / sizes[-1]


# Bytes a cycle and SM that st.async stores into another SM: 3.3 TB/s of all SMs of an H800, in clusters of two (arXiv
# 2402.13499). Not in the table above, whose values are those of a chip and part of every record.
SEND_RATE = 16
ROW_BYTES = 32  # K of one MMA: 16 bf16 values


def operand_bytes(ctas: int, m: int, n: int, a_in_tmem: bool) -> int:
    """Shared memory that one MMA reads in each CTA. A pair halves M and N.

    The measured interval of M128 N64 SS, 48 cycles, is exactly these bytes at 128 a cycle.
    """
    return ((0 if a_in_tmem else m // ctas) + n // ctas) * ROW_BYTES


FITTED_FILE = Path(__file__).with_name("constants_b200.json")


def fitted_b200() -> dict[str, Constant]:
    """B200 with the fitted values that calibration.py wrote."""
    return with_values(
        B200, {name: row["value"] for name, row in json.loads(FITTED_FILE.read_text()).items()}
    )


def of_target(target: str) -> tuple[dict[str, Constant], str]:
    """The constants of the chip that a .target is for, and a note on what they lack; the B200's for other targets."""
    found, number = fitted_b200(), target.rstrip("af")
    known = OTHER_CHIPS.get(number, {})
    for name, (value, source) in known.items():
        found[name] = replace(found[name], value=value, source=source)
    if not known:
        return found, ""
    note = f"{target} is a {NAMES[number]}: {', '.join(known)} are its own, everything else is as on a B200"
    return found, note


def with_values(constants: dict[str, Constant], values: dict[str, float]) -> dict[str, Constant]:
    """The constants with other values for fitted ones. ValueError for any other name."""
    allowed = [name for name, constant in constants.items() if constant.fitted]
    unknown = set(values) - set(allowed)
    if unknown:
        raise ValueError(f"{sorted(unknown)} are not fitted constants; those are {allowed}")
    new = {name: replace(constants[name], value=value) for name, value in values.items()}
    return {**constants, **new}
