"""The barrier, tensor core, tensor memory and TMA operations of every warp of an emulated CTA, in order.

    event      PTX                                  carries
    wait       mbarrier.try_wait that succeeded     barrier, parity
    arrive     mbarrier.arrive[.expect_tx]          effects: arrivals and bytes on barriers
    mma        tcgen05.mma                          N, M, A in tensor memory, CTAs
    commit     tcgen05.commit                       effects, once the MMAs before it are complete
    load       cp.async.bulk[.tensor]               whether from shared memory; effects at completion: its bytes
    store      the same, cp.reduce, to global       bytes, whether it reduces
    send       st.async of vectors                  effects at completion: bytes in another CTA
    drain      cp.async.bulk.wait_group             how many groups may stay open
    claim      clusterlaunchcontrol.try_cancel      effects when the response arrives
    bar        bar.sync, bar.arrive                 number, threads, whether it waits
    ld, st     tcgen05.ld, tcgen05.st               columns
    wgmma      wgmma.mma_async (sm_90)              N
    wgwait     wgmma.wait_group (sm_90)             how many groups may stay open
    gload,     loads and stores of global memory,   nothing
    gstore,    atomics
    atomic
    sload ...  the other kinds of EXTRA             only on request: needed to count the loop iterations of a
                                                    kernel without barriers

An effect is (operation, (CTA rank, shared offset), amount). Those that happen later than the
instruction, because the copy or the MMA completes later, are attributed to the instruction too.

The recorder replaces three functions of the emulator for the duration of a run: the lookup of an
instruction's meaning, the submission of asynchronous work, and the operations of an mbarrier.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from unittest import mock

_KINDS = (
    ("wait", re.compile(r"mbarrier\.(test|try)_wait")),
    ("init", re.compile(r"mbarrier\.init")),
    ("arrive", re.compile(r"mbarrier\.(arrive|expect_tx|complete_tx)")),
    ("mma", re.compile(r"tcgen05\.mma")),
    ("commit", re.compile(r"tcgen05\.commit")),
    ("load", re.compile(r"cp\.async\.bulk\.(tensor\.\w+\.shared|shared)")),
    ("store", re.compile(r"cp\.(reduce\.)?async\.bulk\.(tensor\.\w+\.)?global")),
    ("send", re.compile(r"st\.async\.(\S+\.)?v[24]\.")),
    ("flush", re.compile(r"cp\.async\.bulk\.commit_group")),
    ("drain", re.compile(r"cp\.async\.bulk\.wait_group")),
    ("claim", re.compile(r"clusterlaunchcontrol\.try_cancel")),
    ("bar", re.compile(r"(bar|barrier)\.(cta\.)?(sync|arrive)")),
    ("cluster_bar", re.compile(r"barrier\.cluster")),
    ("ld", re.compile(r"tcgen05\.ld\.")),
    ("st", re.compile(r"tcgen05\.st\.")),
    ("wgmma", re.compile(r"wgmma\.mma_async")),
    ("wgwait", re.compile(r"wgmma\.wait_group")),
)
EXTRA = {
    "gload": re.compile(r"ld\.(\w+\.)*global"),
    "gstore": re.compile(r"st\.(\w+\.)*global"),
    "atomic": re.compile(r"(atom|red)\."),
    "async_copy": re.compile(r"cp\.async\.c[ag]"),
    "sload": re.compile(r"ld\.(\w+\.)*shared"),
    "sstore": re.compile(r"st\.(\w+\.)*shared"),
    "matrices": re.compile(r"ldmatrix"),
    "warp_mma": re.compile(r"mma\.sync"),
    "shuffle": re.compile(r"shfl"),
    "special": re.compile(r"(ex2|lg2|rcp|rsqrt|sqrt|sin|cos|tanh)\.approx(\.ftz)?\.f32$"),
    "multiply_add": re.compile(r"fma\.rn(\.ftz)?\.f32$"),
}
"""Instructions that count the turns of a loop which has none of the others; the assembler keeps them, nearly always."""
ALWAYS = frozenset({"gload", "gstore", "atomic"})
"""Kinds of EXTRA that every trace has: an access in a branch without another event is otherwise on no path."""
# Hopper's matrix instructions have no meaning in the emulator. The order of events does not depend
# on what they compute, so they may do nothing while a trace is taken.
_WITHOUT_MEANING = re.compile(r"wgmma\.")
_COLUMNS = re.compile(r"\.x(\d+)")
_MMA_KIND = re.compile(r"kind::(\w+)")
_DIMENSIONS = re.compile(r"\.tensor\.(\d)d\.")
_STORE_MODES = ".tile::scatter4", ".im2col_no_offs"
_WGMMA_COLUMNS = re.compile(r"m64n(\d+)k")


@dataclass(eq=False, slots=True)
class Event:
    """One executed instruction. line: its PTX line, which names it. data: see the table above."""

    kind: str
    line: int
    data: tuple = ()
    effects: list = field(default_factory=list)


@dataclass
class Trace:
    """Events of every warp of one cluster, in program order; keys are (CTA rank, warp).

    counts: arrivals a phase of every mbarrier, by (CTA rank, offset).
    executed: how often each warp executed an instruction of EXTRA, by (kind, PTX line), events or not.
    """

    warps: dict[tuple[int, int], list[Event]]
    counts: dict[tuple[int, int], int]
    executed: dict[tuple[int, int], Counter] = field(default_factory=lambda: defaultdict(Counter))

    def finished(self) -> Trace:
        """The same without default entries, which cannot be pickled."""
        return Trace(dict(self.warps), self.counts, dict(self.executed))


def kind_of(opcode: str) -> str | None:
    """The kind of event a PTX opcode is; None for everything else."""
    return next(
        (kind for kind, pattern in (*_KINDS, *EXTRA.items()) if pattern.match(opcode)), None
    )


_PTX_INSTRUCTION = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]+)")
_PTX_FUNCTION = re.compile(r"^\s*(?:\.visible\s+|\.weak\s+)*\.(entry|func)\b.*?(\w+)\s*\(")


def lines_of(ptx: str, kernel: str) -> list[tuple[str, int]]:
    """(kind, line) of every instruction of PTX that would be an event, executed or not; without other kernels'."""
    found, is_other = [], False
    for number, line in enumerate(ptx.splitlines(), 1):
        if header := _PTX_FUNCTION.match(line):
            is_other = header[1] == "entry" and header[2] != kernel
        if is_other:
            continue
        instruction = _PTX_INSTRUCTION.match(line)
        kind = instruction and kind_of(instruction[1])
        if kind:
            found.append((kind, number))
    return found


class Recorder:
    """Records cluster number `number` of a launch into `trace`; nothing while that is None.

    Programs decoded while it is installed keep its functions, so one Recorder serves a process.
    """

    def __init__(self):
        self.trace: Trace | None = None
        self.number = 0
        self.extra: frozenset[str] = frozenset()  # kinds of EXTRA that are recorded
        self.current: Event | None = None

    def entry(self, lookup, opcode: str, ins=None):
        """An instruction's meaning that notes its executions."""
        from cute_fa4.emulator.instructions import instruction_table

        if _WITHOUT_MEANING.match(opcode):
            entry = instruction_table.Entry(opcode, lambda warp, ins: None)
        else:
            entry = lookup(opcode, ins)
        kind = kind_of(opcode)
        if kind is None:
            return entry

        def function(warp, ins):
            if self.trace is None or warp.cta.cluster.id != (self.number, 0, 0):
                return entry.function(warp, ins)
            if kind in EXTRA:
                self.trace.executed[warp.cta.rank, warp.index][kind, ins.line] += 1
                if kind not in self.extra:
                    return entry.function(warp, ins)
            event = Event(kind, ins.line, _data(kind, warp, ins))
            with self._attributing(event):
                result = entry.function(warp, ins)
            # Blocked for now: the instruction will execute again.
            if result is None and not (kind == "wait" and _failed(warp, ins)):
                self.trace.warps[warp.cta.rank, warp.index].append(event)
            return result

        return replace(entry, function=function)

    def submission(self, submit, engine, action, *args, **kwargs):
        """AsyncEngine.submit whose action is attributed to the instruction that submits it."""
        event = self.current

        def attributed():
            with self._attributing(event):
                action()

        return submit(engine, attributed, *args, **kwargs)

    def effect(self, operation: str, original):
        """A method of MBarrier that notes itself with the current instruction."""

        def method(barrier, amount=1, *args, **kwargs):
            if self.trace is not None and self.current is not None:
                key = (barrier.cta.rank, barrier.offset)
                self.trace.counts.setdefault(key, barrier.count)
                self.current.effects.append((operation, key, amount))
            return original(barrier, amount, *args, **kwargs)

        return method

    @contextmanager
    def _attributing(self, event: Event | None):
        before, self.current = self.current, event
        try:
            yield
        finally:
            self.current = before


_recorder = Recorder()


@contextmanager
def installed():
    """Programs decoded inside can be recorded; yields the Recorder. Compile and run kernels within one such context."""
    from cute_fa4.emulator.instructions import instruction_table
    from cute_fa4.emulator.machine.async_engine import AsyncEngine
    from cute_fa4.emulator.machine.mbarrier import MBarrier

    methods = {
        name: _recorder.effect(name, getattr(MBarrier, name))
        for name in ("arrive", "expect_tx", "complete_tx")
    }
    lookup, submit = instruction_table.lookup, AsyncEngine.submit
    with (
        mock.patch.object(instruction_table, "lookup", partial(_recorder.entry, lookup)),
        mock.patch.object(AsyncEngine, "submit", partialmethod_of(_recorder.submission, submit)),
        mock.patch.multiple(MBarrier, **methods),
    ):
        yield _recorder


def partialmethod_of(function, *fixed):
    """A plain function, so that it binds as a method, with leading arguments fixed."""

    def method(*args, **kwargs):
        return function(*fixed, *args, **kwargs)

    return method


def record(launch, cluster: int = 0, more: frozenset[str] = frozenset()) -> Trace:
    """The trace of one cluster of the grid that launch() executes, within installed().

    more: kinds of EXTRA besides ALWAYS. RuntimeError when the grid does not have so many. The emulator's checks are
    off: they are the tests' business, and cost time.
    """
    from cute_fa4.emulator.host.session import use

    _recorder.trace, _recorder.number = Trace(defaultdict(list), {}), cluster
    _recorder.extra = ALWAYS | more
    try:
        with use(checks=None):
            launch()
        if not _recorder.trace.warps:
            raise RuntimeError(f"the launch has no cluster number {cluster} that does anything")
        return _recorder.trace.finished()
    finally:
        _recorder.trace = None


def _failed(warp, ins) -> bool:
    return warp.read_pred(ins.operands[0]) & warp.mask != warp.mask


def _found(pattern: re.Pattern[str], ins) -> str:
    """The group of a pattern that each opcode of this kind contains."""
    match = pattern.search(ins.opcode)
    if match is None:
        raise ValueError(f"{ins.opcode} does not contain {pattern.pattern}")
    return match[1]


def _data(kind: str, warp, ins) -> tuple:
    lane = warp.lanes[0]
    if kind == "wait":
        cta, offset = warp.cta.cluster.resolve(_shared(warp, ins, lane))
        return (cta.rank, offset), int(warp.read32(ins.operands[2])[lane]) & 1
    if kind == "mma":
        from cute_fa4.emulator.machine.block_scale import decode_scaled_instruction
        from cute_fa4.emulator.machine.matrix_descriptors import decode_instruction
        from cute_fa4.emulator.ptx.parser import Addr

        group = 2 if "cta_group::2" in ins.opcode else 1
        bits, mma_kind = int(warp.read32(ins.operands[3])[lane]), _found(_MMA_KIND, ins)
        if "block_scale" in ins.opcode:
            shape = decode_scaled_instruction(bits, mma_kind, None, group)
        else:
            shape = decode_instruction(bits, mma_kind, group)
        return shape.m, shape.n, isinstance(ins.operands[1], Addr), group
    if kind == "wgmma":
        return (int(_found(_WGMMA_COLUMNS, ins)),)
    if kind == "wgwait":
        return (int(ins.operands[0].value),)
    if kind in ("ld", "st"):
        return (int(_found(_COLUMNS, ins)),)
    if kind == "load":
        return ("shared::cluster.shared::cta" in ins.opcode,)
    if kind == "store":
        return _stored_bytes(warp, ins), "reduce" in ins.opcode
    if kind == "drain":
        return (int(ins.operands[0].value),)
    if kind == "bar":
        values = [int(warp.read32(operand)[lane]) for operand in ins.operands]
        waits = "sync" in ins.opcode
        return values[0], values[1] if len(values) > 1 else None, waits
    if kind == "cluster_bar":
        return "wait" in ins.opcode, None, "wait" in ins.opcode
    return ()


def _stored_bytes(warp, ins) -> int:
    """Bytes of shared memory that the bulk stores or reductions of all lanes read."""
    from cute_fa4.emulator.instructions import bulk_operands

    rank = _DIMENSIONS.search(ins.opcode)
    copies = set()  # lanes that issue the same store issue one
    for lane in warp.lanes:
        if rank is None:
            nbytes = bulk_operands.bulk_size(warp, ins.operands[2], lane)
            copies.add((int(warp.address(ins.operands[0])[lane]), nbytes))
        else:
            tensor_map, coordinates = bulk_operands.tensor_operand(
                warp, ins.operands[0], lane, int(rank[1])
            )
            mode = next((mode for mode in _STORE_MODES if mode in ins.opcode), "")
            _, nbytes = bulk_operands.boxes_of(warp, tensor_map, coordinates, mode)
            copies.add((coordinates, nbytes))
    return sum(nbytes for _, nbytes in copies)


def _shared(warp, ins, lane: int) -> int:
    from cute_fa4.emulator.instructions.mbarrier import shared_addresses

    return shared_addresses(warp, ins.operands[1], ins.opcode)[0]
