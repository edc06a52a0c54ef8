"""Result: what a run of the model found (machine.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from cute_fa4.emulator.model import graph as causes


@dataclass
class Result:
    """Cycles from the first instruction to the last completion, and what was busy meanwhile.

    waits      (CTA, warp) -> [(from, until, barrier)] where the warp stood at an mbarrier
    ends       (CTA, warp) -> cycle of its last instruction
    issued     (CTA, sub-partition) -> instructions
    pipe_busy  (CTA, sub-partition, pipe) -> cycles
    tensor     CTA -> [(start, cycles)] of MMAs        copies  CTA -> [(start, cycles)]
    marks      (CTA, warp) -> [(cycle, kind)] of synchronising events, for the picture
    graph      why everything happened when it did, where that was asked for
    """

    cycles: float = 0.0
    waits: dict = field(default_factory=dict)
    ends: dict = field(default_factory=dict)
    issued: dict = field(default_factory=dict)
    pipe_busy: dict = field(default_factory=dict)
    tensor: dict = field(default_factory=dict)
    copies: dict = field(default_factory=dict)
    marks: dict = field(default_factory=dict)
    unknown_opcodes: list = field(default_factory=list)
    graph: causes.Graph | None = None
