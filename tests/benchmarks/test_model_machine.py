"""The cycle model's parts on hand-made programs whose cycles are known.

control codes   decode is the inverse of encode, field by field
engines         queueing formulas: start = max(ready, free)
machine         pipes, schedulers, scoreboards, barriers: each has a program with one right answer
align           a walk through a loop is found from its events
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cycle_model.hopper import H200
from cute_fa4.emulator.model import align, control_codes
from cute_fa4.emulator.model.constants import B200, operand_bytes, umma_interval, with_values
from cute_fa4.emulator.model.control_codes import ControlCode
from cute_fa4.emulator.model.engines import Barrier, CopyEngine, NamedBarrier, TensorQueue
from cute_fa4.emulator.model.machine import Machine
from cute_fa4.emulator.model.pipes import Pipes
from cute_fa4.emulator.model.program import Instruction, parse
from cute_fa4.emulator.model.trace import Event, Trace

PLAIN = ControlCode(stall=1, may_yield=False, write=None, read=None, wait_mask=0, reuse=0)


def program(*lines):
    """SASS text, one instruction a line, with an EXIT -> (steps, codes). A line may be (text, code)."""
    texts, codes = [], {}
    for number, line in enumerate((*lines, "EXIT")):
        text, code = line if isinstance(line, tuple) else (line, PLAIN)
        texts.append(f"        /*{16 * number:04x}*/                   {text} ;")
        codes[16 * number] = code
    (function,) = parse("\n".join(texts))
    return [align.Step(ins) for ins in function.instructions], codes


def cycles(warps, codes, counts=None, constants=B200):
    """Cycles of CTA 0 with these paths, by warp number."""
    trace = Trace({(0, w): [] for w in warps}, counts or {})
    return Machine(constants).run({(0, w): p for w, p in warps.items()}, codes, trace)


# --- control codes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        PLAIN,
        ControlCode(15, True, 5, 0, 0b111111, 0),
        ControlCode(0, False, None, 3, 0b000100, 15),
        ControlCode(8, True, 0, None, 0b100001, 1),
    ],
)
def test_decode_is_the_inverse_of_encode(code):
    assert control_codes.decode(control_codes.encode(code)) == code


def test_a_word_by_hand():
    # stall 4, yield bit 1 (no yield), write scoreboard 2, no read scoreboard, waits for 0 and 3
    bits = 4 | 1 << 4 | 2 << 5 | 7 << 8 | 0b001001 << 11
    code = control_codes.decode(bits << 105 | 0xDEADBEEF)
    assert (code.stall, code.may_yield, code.write, code.read) == (4, False, 2, None)
    assert code.waits == (0, 3)


def test_a_word_of_more_than_128_bits_is_refused():
    with pytest.raises(ValueError, match="128 bits"):
        control_codes.decode(1 << 128)


# --- engines --------------------------------------------------------------------------------------


def test_the_tensor_core_is_a_queue():
    queue = TensorQueue()
    for _ in range(8):
        queue.submit(now=10, interval=64, operands=64, tail=96)
    # 8 MMAs in sequence, the last complete a tail after its interval.
    assert queue.free == 10 + 8 * 64
    assert queue.commit(now=20, latency=25) == 10 + 8 * 64 + 96 + 25


def test_shared_memory_traffic_lengthens_mmas_that_fill_it_and_hides_in_the_gaps_of_others():
    full, gaps = TensorQueue(), TensorQueue()
    for queue, operands in ((full, 64), (gaps, 32)):
        queue.interfere(20)
        queue.submit(0, 64, operands, 0)
    assert full.free == 84
    assert gaps.free == 64


def test_idle_time_of_the_tensor_core_pays_the_debt():
    queue = TensorQueue()
    queue.interfere(20)
    queue.submit(100, 64, 64, 0)
    assert queue.free == 164


def test_copies_share_the_rate_and_overlap_their_latency():
    engine = CopyEngine(rate=50, latency=300)
    assert engine.submit(0, 1000) == 20 + 300
    assert engine.submit(0, 1000) == 40 + 300


def test_an_mbarrier_needs_its_arrivals_and_its_bytes():
    barrier = Barrier(2)
    assert barrier.passed(1) and not barrier.passed(0)
    barrier.waiters.append((0, "who"))
    assert barrier.apply("expect_tx", 100) == [] and barrier.apply("arrive", 2) == []
    assert barrier.apply("complete_tx", 100) == [(0, "who")]
    assert barrier.passed(0) and not barrier.passed(1)
    with pytest.raises(ValueError, match="more arrivals"):
        barrier.apply("arrive", 3)


def test_a_named_barrier_opens_for_all_who_wait():
    barrier = NamedBarrier()
    assert barrier.arrive(32, 96, "a") is None
    assert barrier.arrive(32, 96) is None
    assert barrier.arrive(32, 96, "b") == ["a", "b"]


def test_intervals_are_the_published_ones_and_linear_between():
    assert umma_interval(1, 128, 64, False) == 48
    assert umma_interval(1, 128, 192, True) == 96
    with pytest.raises(ValueError, match="no initiation interval"):
        umma_interval(1, 32, 64, False)


def test_operand_bytes_explain_the_measured_interval_of_small_n():
    # M128 N64 from shared memory: 48 cycles measured, 128 bytes a cycle.
    assert operand_bytes(1, 128, 64, False) / 128 == umma_interval(1, 128, 64, False)


# --- machine --------------------------------------------------------------------------------------


def test_stall_counts_space_the_instructions_of_a_warp():
    path, codes = program(*[("FADD R0, R1, R2", replace(PLAIN, stall=4))] * 5)
    assert cycles({0: path}, codes).ends[0, 0] == 5 * 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FFMA R0, R1, R2, R3", 1),  # 128 a cycle and SM
        ("FFMA2 R0, R2, R4, R6", 2),  # two results
        ("FMNMX3 R0, R1, R2, R3", 2),  # 64 a cycle and SM
        ("MUFU.EX2 R0, R1", 8),  # 16 a cycle and SM
    ],
)
def test_a_pipe_takes_32_lanes_at_its_rate(text, expected):
    path, codes = program(*[text] * 10)
    # The tenth one starts nine times the pipe's time after the first; EXIT follows a cycle later.
    assert cycles({0: path}, codes).ends[0, 0] == 9 * expected + 1


def test_fragments_of_16_lanes_have_more_registers_for_each_repetition():
    """tcgen05.st: 16x128b.x16 and 16x256b.x8 move the 32 words of a thread that 32x32b.x32 moves."""
    pipes = Pipes(B200)
    stores = "STTM.x32", "STTM.16dp128bit.x16", "STTM.16dp256bit.x8"
    costs = [pipes.cost(Instruction(0, None, opcode, "tmem[UR5], R4")) for opcode in stores]
    assert len(set(costs)) == 1


def test_warps_of_a_sub_partition_share_its_pipes_and_others_do_not():
    path, codes = program(*["MUFU.EX2 R0, R1"] * 10)
    alone = cycles({0: path}, codes).cycles
    assert cycles({0: path, 1: path}, codes).cycles == alone
    assert cycles({0: path, 4: path}, codes).ends[0, 4] == 19 * 8 + 1


def test_a_scheduler_issues_one_instruction_a_cycle():
    path, codes = program(*["NOP"] * 20)
    result = cycles({w: path for w in (0, 4, 8)}, codes)
    assert result.issued[0, 0] == 3 * 21
    assert max(result.ends.values()) == 3 * 21 - 1


def test_an_instruction_waits_for_the_scoreboards_of_its_mask():
    load = ("MUFU.EX2 R0, R1", replace(PLAIN, write=2))
    use = ("FADD R2, R0, R0", replace(PLAIN, wait_mask=1 << 2))
    path, codes = program(load, use)
    assert cycles({0: path}, codes).ends[0, 0] == B200["lat_mufu"].value + 1


def test_a_wait_ends_when_the_barrier_fires():
    # Warp 0 arrives after 10 slots, warp 1 waits and then needs the answer.
    arriver, codes = program(*["NOP"] * 10, "SYNCS.ARRIVE.TRANS64 RZ, [UR4], R0")
    key = (0, 64)
    arriver[10] = replace(arriver[10], event=Event("arrive", 1, (), [("arrive", key, 1)]))
    waiter, more = program(
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0", replace(PLAIN, write=1)),
        ("BRA `(.L_x_1)", replace(PLAIN, wait_mask=1 << 1)),
    )
    waiter[0] = replace(waiter[0], event=Event("wait", 2, (key, 0)))
    shifted = {step.instruction.address: step for step in arriver}
    moved = [
        replace(s, instruction=replace(s.instruction, address=s.instruction.address + 4096))
        for s in waiter
    ]
    codes = {**codes, **{address + 4096: code for address, code in more.items()}}
    result = cycles({0: list(shifted.values()), 1: moved}, codes, counts={key: 1})
    fired = 10 + B200["mbarrier_arrive"].value
    assert result.ends[0, 1] == fired + B200["mbarrier_wake"].value + 1
    assert [why for _, _, why in result.waits[0, 1]] == [key]


def test_a_wait_that_nobody_ends_is_an_error_that_names_the_barrier():
    waiter, codes = program(
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0", replace(PLAIN, write=1)),
        ("BRA `(.L_x_1)", replace(PLAIN, wait_mask=1 << 1)),
    )
    waiter[0] = replace(waiter[0], event=Event("wait", 2, ((0, 64), 0)))
    with pytest.raises(RuntimeError, match=r"no warp can go on.*\(0, 64\)"):
        cycles({0: waiter}, codes, counts={(0, 64): 1})


def multiplies_once(*others, contention):
    """Cycles of the tensor core in an MMA of 128 x 128 x 16, whose operands take all of shared memory, after others."""
    path, codes = program(
        *[text for text, _ in others], "UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8]"
    )
    events = [event for _, event in others] + [Event("mma", 1, (128, 128, False, 1)), None]
    path = [replace(step, event=event) for step, event in zip(path, events, strict=True)]
    trace = Trace({(0, 0): [event for event in events if event]}, {})
    constants = B200 | {"contention": replace(B200["contention"], value=contention)}
    result = Machine(constants).run({(0, 0): path}, codes, trace)
    ((_, busy),) = result.tensor[0]
    return busy


@pytest.mark.parametrize("contention", [0.0, 1.0])
def test_mmas_wait_for_the_loads_of_warps_where_they_contend(contention):
    # Loads of 512 bytes take four cycles each. The MMA is issued a cycle after the second, and the first is over then.
    loads = [("LDS.128 R0, [R4]", None)] * 2
    longer = multiplies_once(*loads, contention=contention) - 64
    assert longer == pytest.approx(contention * (4 - 1))


def test_a_reduction_takes_the_rate_of_additions_in_l2():
    """And a store that of copies; each is done when its source is read."""
    for reduces, rate in ((False, "tma_rate"), (True, "reduce_rate")):
        path, codes = program("UBLKRED.G.S.ADD.F32.RN [UR6], [UR14], UR4")
        path[0] = replace(path[0], event=Event("store", 1, (4096, reduces)))
        expected = 4096 / B200[rate].value + B200["store_latency"].value
        assert cycles({0: path}, codes).cycles == pytest.approx(expected)


def wgmmas(number, n=128):
    """A warpgroup of sm_90 whose first warp stands for all: so many MMAs of 64 x n x 16, one group."""
    path, codes = program(*["HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24"] * number)
    marked = [
        replace(step, event=Event("wgmma", 1, (n,))) if step.instruction.name == "HGMMA" else step
        for step in path
    ]
    return marked, codes


def hopper_with(**values):
    return {**H200, **{name: replace(H200[name], value=value) for name, value in values.items()}}


def test_a_wgmma_issues_when_as_many_as_fit_are_under_way():
    path, codes = wgmmas(5)
    # 64 cycles each at 4096 FLOP a cycle: with two under way the fifth waits for the third.
    result = cycles({0: path}, codes, constants=hopper_with(wgmma_in_flight=2))
    assert result.ends[0, 0] == 3 * 64 + 1
    unlimited = cycles({0: path}, codes, constants=hopper_with(wgmma_in_flight=100))
    assert unlimited.ends[0, 0] == 5
    assert [start for start, _ in unlimited.tensor[0]] == [0, 64, 128, 192, 256]


def test_two_warpgroups_share_what_an_sm_has_under_way():
    path, codes = wgmmas(2)
    # Warps 0 and 4 lead two warpgroups; of their four MMAs two fit at a time.
    result = cycles({0: path, 4: path}, codes, constants=hopper_with(wgmma_in_flight=2))
    assert max(result.ends.values()) == 2 * 64 + 1


def test_arithmetic_is_slower_while_a_wgmma_is_under_way():
    multiply, codes = wgmmas(1)
    path, more = program(*["MUFU.EX2 R0, R1"] * 10)
    # Same addresses, other code: the second program moves after the first.
    shift = 16 * len(multiply)
    path = [replace(s, instruction=replace(s.instruction, address=s.instruction.address + shift))
            for s in path]  # fmt: skip
    codes |= {address + shift: code for address, code in more.items()}
    alone = cycles({1: path}, codes, constants=H200).ends[0, 1]
    beside = cycles({0: multiply, 1: path}, codes, constants=H200).ends[0, 1]
    # 64 cycles of wgmma: every exponential that starts within them takes the factor longer.
    slow = 8 * H200["wgmma_slows_mufu"].value
    number = -(-64 // slow)
    assert alone == 9 * 8 + 1
    assert beside == pytest.approx(alone + number * (slow - 8), abs=1)


def test_only_fitted_constants_can_be_given_values():
    fitted = [name for name, constant in B200.items() if constant.fitted]
    assert len(fitted) <= 6
    assert with_values(B200, {fitted[0]: 1.5})[fitted[0]].value == 1.5
    with pytest.raises(ValueError, match="not fitted"):
        with_values(B200, {"rate_mufu": 32})


# --- align ----------------------------------------------------------------------------------------

LOOP = """
        /*0000*/                   NOP ;
.L_x_0:
        /*0010*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0 ;
        /*0020*/              @!P0 BRA `(.L_x_3) ;
.L_x_1:
        /*0030*/                   LDTM.x32 R4, tmem[UR5] ;
        /*0040*/              @P1  BRA `(.L_x_2) ;
        /*0050*/                   STTM.x16 tmem[UR5], R4 ;
.L_x_2:
        /*0060*/                   SYNCS.ARRIVE.TRANS64 RZ, [UR4], R0 ;
        /*0070*/              @P2  BRA `(.L_x_0) ;
        /*0080*/                   EXIT ;
.L_x_3:
        /*0090*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0 ;
        /*00a0*/              @!P0 BRA `(.L_x_3) ;
        /*00b0*/                   BRA `(.L_x_1) ;
"""


def test_a_path_follows_its_events_through_a_loop_with_a_branch_and_without_retries():
    (function,) = parse(LOOP)
    lines = {"wait": 1, "ld": 2, "st": 3, "arrive": 4}
    kinds = ["wait", "ld", "arrive", "wait", "ld", "st", "arrive", "wait", "ld", "arrive"]
    trace = Trace({(0, 0): [Event(kind, lines[kind]) for kind in kinds]}, {})
    ((path,),) = [list(found.values()) for found in align.paths(function, "", [trace])]
    addresses = [step.instruction.address for step in path]
    plain = [0x10, 0x20, 0x30, 0x40, 0x60, 0x70]
    stored = [0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70]
    assert addresses == [0, *plain, *stored, *plain, 0x80]
    assert [step.event.kind for step in path if step.event] == kinds


TWO_LOOPS = """
        /*0000*/                   NOP ;
.L_x_0:
        /*0010*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0 ;
        /*0020*/                   FADD R1, R1, R2 ;
        /*0030*/                   SYNCS.ARRIVE.TRANS64 RZ, [UR4], R0 ;
        /*0040*/              @P1  BRA `(.L_x_0) ;
.L_x_1:
        /*0050*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0 ;
        /*0060*/                   SYNCS.ARRIVE.TRANS64 RZ, [UR4], R0 ;
        /*0070*/              @P2  BRA `(.L_x_1) ;
        /*0080*/                   EXIT ;
"""


@pytest.mark.parametrize("lines", [(1, 2, 3, 4), (3, 4, 1, 2)], ids=["in order", "last loop first"])
def test_loops_that_wait_and_arrive_alike_are_told_apart_by_the_order_of_execution(lines):
    """Three turns of one loop, then two of another, which the PTX has before or after it."""
    (function,) = parse(TWO_LOOPS)
    first = (("wait", lines[0]), ("arrive", lines[1]))
    second = (("wait", lines[2]), ("arrive", lines[3]))
    events = [Event(kind, line) for kind, line in (*first * 3, *second * 2)]
    ((path,),) = [
        list(found.values()) for found in align.paths(function, "", [Trace({(0, 0): events}, {})])
    ]
    addresses = [step.instruction.address for step in path]
    assert (addresses.count(0x20), addresses.count(0x70)) == (3, 2)


ASKED_EARLY = """
        /*0000*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0 ;
        /*0010*/                   UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10], idesc[UR11], UPT ;
        /*0020*/             @!P0  BRA `(.L_x_1) ;
.L_x_0:
        /*0030*/                   UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10], idesc[UR11], UPT ;
        /*0040*/                   EXIT ;
.L_x_1:
        /*0050*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0 ;
        /*0060*/             @!P0  BRA `(.L_x_1) ;
        /*0070*/                   BRA `(.L_x_0) ;
"""


def test_a_wait_is_where_its_answer_is_asked_for():
    """The source has it between two MMAs; ptxas asks ahead of both, where memory allows, and branches between them."""
    (function,) = parse(ASKED_EARLY)
    events = [Event("mma", 1), Event("wait", 2), Event("mma", 3)]
    traces = [Trace({(0, 0): events}, {})]
    found = align.paths(function, "", traces)
    ((path,),) = [list(warps.values()) for warps in found]
    assert [step.instruction.address for step in path] == [0, 0x10, 0x20, 0x30, 0x40]
    assert [path[n].event for n in (1, 0, 3)] == events
    assert align.unpacked(align.packed(found, traces), function, traces) == found


def test_stored_paths_are_the_paths():
    (function,) = parse(LOOP)
    lines = {"wait": 1, "ld": 2, "st": 3, "arrive": 4}
    kinds = ["wait", "ld", "arrive", "wait", "ld", "st", "arrive"]
    traces = [Trace({(0, 0): [Event(kind, lines[kind], (n,)) for n, kind in enumerate(kinds)]}, {})]
    found = align.paths(function, "", traces)
    assert align.unpacked(align.packed(found, traces), function, traces) == found


def test_events_that_the_code_cannot_produce_are_an_error():
    (function,) = parse(LOOP)
    trace = Trace({(0, 0): [Event("mma", 1), Event("mma", 1)]}, {})
    with pytest.raises(align.AlignmentError, match=r"warp \(0, 0\)"):
        align.paths(function, "", [trace])


def test_a_spilled_register_comes_from_the_first_cache_and_a_load_from_memory():
    """A use waits for its scoreboard: the difference of both programs is that of the latencies."""
    held = ControlCode(stall=1, may_yield=False, write=0, read=None, wait_mask=0, reuse=0)
    use = ControlCode(stall=1, may_yield=False, write=None, read=None, wait_mask=1, reuse=0)

    def cycles_of(load):
        steps, codes = program((load, held), ("MOV R3, R2", use))
        return cycles({0: steps}, codes).cycles

    spilled, loaded = cycles_of("LDL R2, [R1+0x4]"), cycles_of("LDG.E R2, desc[UR4][R4.64]")
    assert loaded - spilled == B200["lat_global"].value - B200["lat_local"].value
