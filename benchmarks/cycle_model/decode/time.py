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

from dataclasses import dataclass, replace
from typing import Protocol

from benchmarks.cycle_model.decode import kernels
from benchmarks.cycle_model.decode.call import call_of
from benchmarks.cycle_model.decode.launch import Chip, Launch, Streaming
from benchmarks.cycle_model.decode.memory import Memory
from benchmarks.cycle_model.decode.problems import DecodeProblem
from benchmarks.cycle_model.decode.variants import TheirKernel, their_queues
from benchmarks.cycle_model.grid import Curve
from benchmarks.cycle_model.modelled import NAN
from cute_fa4.emulator.model.constants import Constant

SATURATED = 0.9


@dataclass(frozen=True)
class CallTime:
    """Microseconds of a call: the total, and its parts.

    set_up_us     everything except reading and merging
    start_us      its part until the first instruction, and the first copies beyond the latency
    reading       TB/s while CTAs read, of all SMs
    state         as in modelled.Modelled; if a kernel is missing all figures are NaN
    """

    us: float
    set_up_us: float
    stream_us: float
    merge_us: float
    parts: int
    bound: str
    start_us: float = 0.0
    reading: float = 0.0
    state: str = ""

    def tb_s(self, problem: DecodeProblem) -> float:
        """Bytes of keys and values over the time."""
        return problem.bytes / self.us * 1e-6


class Source(Protocol):
    """Where the cycles of kernels come from: kernels.py models them now, recording.py has their records."""

    def attention(self, config, seqlen_q: int, constants: dict[str, Constant]) -> Streaming: ...

    def their_attention(self, kernel: TheirKernel, constants: dict[str, Constant]) -> Streaming: ...

    def merge_cycles(self, config, constants: dict[str, Constant]) -> Curve: ...


def ours(
    problem: DecodeProblem,
    constants: dict[str, Constant],
    num_splits: int = 0,
    source: Source = kernels,
    **invariance,
) -> CallTime:
    """A public call with this number of parts; 0: chosen by the package. invariance: as call_of takes it."""
    call = call_of(problem, num_splits, **invariance)
    kernel = source.attention(call.config, problem.seqlen_q, constants)
    merge = 0.0
    if call.merge is not None:
        kernel, merge = _merged(kernel, call.merge, call.parts, constants, source)
    if call.cluster:
        merge = constants[f"cluster_merge_{call.parts}_us"].value
    claims = bool(call.config.schedule.claims)
    ctas = getattr(call.config.schedule, "ctas", 1)
    return time_of(kernel, call.queues, claims, merge, call.parts, constants, ctas)


def theirs(
    problem: DecodeProblem, constants: dict[str, Constant], split: bool, source: Source = kernels
) -> CallTime:
    """flash-attn-4 with pages of 128. Its merging kernel is taken to be ours."""
    parts, queues = their_queues(problem, split, int(constants["sms"].value))
    kernel = source.their_attention(TheirKernel.of(problem, parts > 1), constants)
    merge = 0.0
    if parts > 1:
        kernel, merge = _merged(kernel, their_merge(problem), parts, constants, source)
    return time_of(kernel, queues, False, merge, parts, constants)


def their_merge(problem: DecodeProblem):
    """The configuration of the kernel that stands for flash-attn-4's merge."""
    from cute_fa4.sm100.combine.config import CombineConfig

    return CombineConfig("bf16", problem.head_dim)


def _merged(kernel: Streaming, config, parts: int, constants, source: Source) -> tuple:
    """(the kernel with the state of both, microseconds of the launch that merges its parts)."""
    curve = source.merge_cycles(config, constants)
    states = {kernel.state, curve.state}
    state = "missing" if "missing" in states else max(states)
    return replace(kernel, state=state), merge_us(curve(parts), True, constants)


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
    if kernel.state == "missing":
        return CallTime(*[NAN] * 4, parts, "-", NAN, NAN, kernel.state)
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
        whole,
        before + attention - stream,
        stream,
        merge,
        parts,
        bound,
        before,
        reading,
        kernel.state,
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
