"""The launches of a call -> its time and its bound.

    launch      from the start of a kernel on the GPU to its first instruction, and from its last instruction to
                its end, as in times by CUPTI, which published times are; without the host's part
    cold start  of the first copies: their descriptors and translations are not cached
    attention   launch.py
    merge       a following launch, in stream order or started early (dependent), and the cycles of its CTAs; in a
                cluster the measured time

Bound, by the share of the whole that a cause explains:

    bandwidth   the memory delivers at least nine tenths of its ceiling while CTAs stream
    work        they stream more slowly than their bytes in flight allow: the work of a CTA per key tile takes longer,
                either softmax or the instructions that issue its copies
    latency     too few bytes in flight for the memory's bandwidth
    set-up      launch, prologue, first copies, epilogue are more than half of the time
    merge       merging takes more than a third of the time
    tail        fewer than half of the SMs have work for more than a quarter of the time
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cycle_model.decode import kernels
from benchmarks.cycle_model.decode.call import call_of
from benchmarks.cycle_model.decode.launch import Chip, Launch, Streaming
from benchmarks.cycle_model.decode.memory import Memory
from benchmarks.cycle_model.decode.problems import DecodeProblem
from benchmarks.cycle_model.decode.variants import TheirKernel, their_queues
from cute_fa4.emulator.model.constants import Constant

SATURATED = 0.9


@dataclass(frozen=True)
class CallTime:
    """Microseconds of a call: the total, and its parts.

    set_up_us     everything except reading and merging
    start_us      its part until the first instruction, and the first copies beyond the latency
    reading       TB/s while CTAs read, of all SMs
    """

    us: float
    set_up_us: float
    stream_us: float
    merge_us: float
    parts: int
    bound: str
    start_us: float = 0.0
    reading: float = 0.0

    def tb_s(self, problem: DecodeProblem) -> float:
        """Bytes of keys and values over the time."""
        return problem.bytes / self.us * 1e-6


def ours(
    problem: DecodeProblem, constants: dict[str, Constant], num_splits: int = 0, **invariance
) -> CallTime:
    """A public call with this number of parts; 0: chosen by the package. invariance: as call_of takes it."""
    call = call_of(problem, num_splits, **invariance)
    kernel = kernels.attention(call.config, problem.seqlen_q, constants)
    merge = 0.0
    if call.merge is not None:
        cycles = kernels.merge_cycles(call.merge, constants)(call.parts)
        merge = merge_us(cycles, True, constants)
    if call.cluster:
        merge = constants[f"cluster_merge_{call.parts}_us"].value
    claims = bool(call.config.schedule.claims)
    ctas = getattr(call.config.schedule, "ctas", 1)
    return time_of(kernel, call.queues, claims, merge, call.parts, constants, ctas)


def theirs(problem: DecodeProblem, constants: dict[str, Constant], split: bool) -> CallTime:
    """flash-attn-4 with pages of 128. Its merging kernel is taken to be ours."""
    from cute_fa4.sm100.combine.config import CombineConfig

    parts, queues = their_queues(problem, split, int(constants["sms"].value))
    variant = TheirKernel.of(problem, parts > 1)
    merge = 0.0
    if parts > 1:
        config = CombineConfig("bf16", problem.head_dim)
        cycles = kernels.merge_cycles(config, constants)(parts)
        merge = merge_us(cycles, True, constants)
    kernel = kernels.their_attention(variant, constants)
    return time_of(kernel, queues, False, merge, parts, constants)


def merge_us(cycles: float, dependent: bool, constants: dict[str, Constant]) -> float:
    """A second launch whose CTAs take this many cycles; a dependent one takes at least the measured minimum."""
    value = {name: constant.value for name, constant in constants.items()}
    alone = value["kernel_start_us"] + cycles / value["clock_ghz"] * 1e-3
    if not dependent:
        return alone
    return max(alone - value["dependent_saves_us"], value["dependent_least_us"])


def time_of(
    kernel: Streaming, queues, goes_on: bool, merge: float, parts: int, constants, ctas: int = 1
) -> CallTime:
    """A launch whose CTAs do these queues of key tiles, and a merge that takes so many microseconds.

    goes_on: CTAs claim further queues. ctas: number that run a queue together, each on its own SM.
    """
    value = {name: constant.value for name, constant in constants.items()}
    chip = Chip(Memory.of(constants), int(value["sms"]) // ctas, kernel)
    found = chip.run(list(queues), goes_on)
    microsecond = value["clock_ghz"] * 1e3
    before = value["kernel_start_us"] + value["cold_start_us"]
    attention = found.cycles / microsecond
    stream = found.streaming / found.sms / microsecond
    whole = before + attention + merge
    bound = _bound(found, kernel, chip, (whole, before + attention - stream, merge), microsecond)
    # Where SMs read at different times, the mean over all of them would be more than memory gives.
    reading = min(found.bytes / stream * 1e-6, value["hbm_tbs"]) if stream else 0.0
    return CallTime(
        whole, before + attention - stream, stream, merge, parts, bound, before, reading
    )


def _bound(found: Launch, kernel: Streaming, chip: Chip, times: tuple, microsecond: float) -> str:
    whole, set_up, merge = times
    if found.tail / microsecond > whole / 4:
        return "tail"
    if merge > whole / 3:
        return "merge"
    if set_up > whole / 2:
        return "set-up"
    if found.peak_share > SATURATED:
        return "bandwidth"
    idle = kernel.per_tile(chip.memory.latency)
    faster = kernel.per_tile(chip.memory.latency / 2)
    return "latency" if idle > 1.1 * faster else "work"
