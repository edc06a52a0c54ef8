"""Constants of a B200 that the documents assume, and a run's verdict: confirmed, refuted, or not measured.

    constant            assumed by the cycle model (docs/performance/method.md) measured by the stage
    claim, lat_* ...    cycles                                                  instructions
    clock_ghz ...       conditions of the run                                   machine
    claims: CLASS       the kernel that claims is faster                claims by class

A constant is confirmed within its tolerance: TIGHT if modeled speeds depend on it, LOOSE if the model hides most of
it or no source was found. Constants that no stage measures are listed, too, so the report shows what is still
unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from cute_fa4.sm100.blueprint.claims import CLASSES, class_claims

TIGHT, LOOSE = 0.10, 0.50
CONFIRMED, REFUTED, NOT_MEASURED = "confirmed", "refuted", "not measured"


@dataclass(frozen=True)
class Constant:
    """One number of the cycle model: its value there (a test compares the two), and its tolerance.

    tolerance  relative; None: no stage measures it
    """

    value: float
    unit: str
    tolerance: float | None = None


CONSTANTS = {
    # measured by the stage "machine"
    "sms": Constant(148, "SMs", 0.0),
    "clock_ghz": Constant(1.85, "GHz", TIGHT),
    "launch_us": Constant(1.78, "us", LOOSE),
    "hbm_tbs": Constant(7.26, "TB/s", TIGHT),
    # measured by the stage "instructions"
    "claim": Constant(1000, "cycles", LOOSE),
    "lat_tmem": Constant(20, "cycles", LOOSE),
    "lat_tmem_alloc": Constant(253, "cycles", LOOSE),
    "lat_mufu": Constant(18, "cycles", LOOSE),
    "lat_shared": Constant(30, "cycles", LOOSE),
    "mbarrier_arrive": Constant(27, "cycles", LOOSE),
    "mbarrier_wake": Constant(27, "cycles", LOOSE),
    "bar_sync": Constant(28, "cycles", LOOSE),
    # not measured by any stage
    "issue": Constant(1, "instruction/cycle/scheduler"),
    "rate_fma": Constant(128, "FMA/cycle/SM"),
    "rate_alu": Constant(64, "results/cycle/SM"),
    "rate_convert": Constant(64, "results/cycle/SM"),
    "rate_mufu": Constant(16, "results/cycle/SM"),
    "pipe_efficiency": Constant(1.0, "fraction of the rates of fma, alu, convert, mufu"),
    "rate_uniform": Constant(64, "results/cycle/SM"),
    "rate_shared": Constant(128, "bytes/cycle/SM"),
    "rate_tmem_load": Constant(512, "bytes/cycle/SM"),
    "rate_tmem_store": Constant(400, "bytes/cycle/SM"),
    "lat_constant": Constant(35, "cycles"),
    "lat_special": Constant(25, "cycles"),
    "lat_global": Constant(700, "cycles"),
    "lat_uniform": Constant(12, "cycles"),
    "lat_read": Constant(10, "cycles"),
    "lat_fence": Constant(20, "cycles"),
    "lat_membar_gpu": Constant(575, "cycles"),
    "remote_arrive": Constant(102, "cycles"),
    "cluster_sync": Constant(373, "cycles"),
    "umma_tail_ss": Constant(96, "cycles"),
    "umma_tail_ts": Constant(64, "cycles"),
    "umma_tail_pair": Constant(34, "cycles"),
    "umma_commit": Constant(25, "cycles"),
    "tma_latency": Constant(364, "cycles"),
    "tma_rate": Constant(48, "bytes/cycle/SM"),
    "store_latency": Constant(200, "cycles"),
    "cta_gap": Constant(0, "cycles"),
    "lat_local": Constant(38, "cycles"),
    "dram_latency_ns": Constant(545, "ns"),
    "dram_knee": Constant(2.2, "exponent"),
    "lat_l2": Constant(428, "cycles"),
    "cold_start_us": Constant(0.98, "us"),
    "dependent_saves_us": Constant(0.9, "us"),
    "kernel_start_us": Constant(0.56, "us"),
    "dependent_least_us": Constant(1.2, "us"),
    "cluster_merge_2_us": Constant(0.37, "us"),
    "cluster_merge_4_us": Constant(0.26, "us"),
    "cluster_merge_8_us": Constant(0.24, "us"),
    "cold_memory": Constant(0.53125, "fraction of bytes / hbm_tbs"),
    "reduce_rate": Constant(17.8, "bytes/cycle/SM"),
    "contention": Constant(
        0.0, "fraction of the time of warps and bulk stores in shared memory that MMAs wait for"
    ),
    "second_run_speed": Constant(0.8081249999999999, "factor on clock"),
}
# If the two speeds of a class differ by less than this, neither kernel is refuted.
NOISE = 0.005


@dataclass(frozen=True)
class Verdict:
    """The verdict of a run on one assumption."""

    name: str
    assumed: str
    measured: str
    verdict: str

    @property
    def line(self) -> str:
        return f"{self.verdict:12} {self.name}: assumed {self.assumed}, measured {self.measured}"


def verdicts(measured: dict) -> list[Verdict]:
    """The verdict on every assumption. measured: results of the stages that ran, by name."""
    found = {
        **measured.get("instructions", {}).get("cycles", {}),
        **measured.get("machine", {}).get("constants", {}),
    }
    of_constants = [_of_constant(name, found.get(name)) for name in CONSTANTS]
    speedups = measured.get("claims by class", {}).get("claims", {})
    return of_constants + [_of_class(name, speedups) for name in CLASSES]


def _of_constant(name: str, value: float | None) -> Verdict:
    constant = CONSTANTS[name]
    assumed = f"{constant.value:g} {constant.unit}"
    if value is None or constant.tolerance is None:
        return Verdict(name, assumed, "nothing", NOT_MEASURED)
    near = abs(value - constant.value) <= constant.tolerance * constant.value
    return Verdict(name, assumed, f"{value:.4g}", CONFIRMED if near else REFUTED)


def _of_class(name: str, speedups: dict) -> Verdict:
    mine = {what: factor for what, factor in speedups.items() if what.startswith(name)}
    assumed = "claims are faster" if class_claims(name) else "claims are slower"
    if not mine:
        return Verdict(f"claims: {name}", assumed, "nothing", NOT_MEASURED)
    product = 1.0
    for factor in mine.values():
        product *= factor
    mean = product ** (1 / len(mine))
    holds = mean >= 1 - NOISE if class_claims(name) else mean <= 1 + NOISE
    text = ", ".join(f"{factor - 1:+.1%} ({what})" for what, factor in mine.items())
    return Verdict(f"claims: {name}", assumed, text, CONFIRMED if holds else REFUTED)
