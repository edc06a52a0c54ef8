"""Records of the kernels of decode: cycles of each work at each latency of memory, and where tables take them from."""

from __future__ import annotations

import re
from collections.abc import Iterable

from benchmarks.cycle_model import records
from benchmarks.cycle_model.decode import kernels
from benchmarks.cycle_model.decode.call import Call, call_of
from benchmarks.cycle_model.decode.launch import Streaming
from benchmarks.cycle_model.decode.problems import DecodeProblem
from benchmarks.cycle_model.decode.time import their_merge
from benchmarks.cycle_model.decode.variants import TheirKernel, Work, their_queues
from benchmarks.cycle_model.grid import Curve
from benchmarks.cycle_model.kernels import THEIRS
from benchmarks.cycle_model.modelled import NAN, made_by
from benchmarks.cycle_model.records import Constants, Subject


def label(config) -> str:
    """The name of a configuration without its hash, which changes with each new option.

    >>> from cute_fa4.sm100.combine.config import CombineConfig
    >>> label(CombineConfig("bf16", 128))
    'decode combine_bf16_d128_dense_sm_100a'
    """
    return "decode " + re.sub(r"_[0-9a-f]{8}$", "", config.name)


def _rounded(cycles: Iterable[float]) -> list[float]:
    return [round(each, 2) for each in cycles]


def _figures(found: kernels.Cycles, rows: list[list]) -> dict:
    return {"code": found.code, "ptxas": found.ptxas, "cycles": rows}


def _of_works(found: kernels.Cycles) -> dict:
    """Figures of an attention kernel: [key tiles, blocks, parts, cycles at each latency]."""
    works = sorted(found.of.items(), key=lambda one: (one[0].tiles, one[0].blocks, one[0].parts))
    rows = [[w.tiles, w.blocks, w.parts, *_rounded(cycles)] for w, cycles in works]
    return _figures(found, rows)


def attention(config, seqlen_q: int, constants: Constants) -> Subject:
    def measure() -> dict:
        return _of_works(kernels.attention_cycles(config, seqlen_q, constants))

    kernel = label(config)
    return Subject(f"{kernel} q{seqlen_q}", kernel, constants, measure, lambda: config)


def their_attention(kernel: TheirKernel, constants: Constants) -> Subject:
    def measure() -> dict:
        return _of_works(kernels.their_cycles(kernel, constants))

    return Subject(str(kernel), str(kernel), constants, measure, maker=THEIRS)


def merge(config, constants: Constants) -> Subject:
    def measure() -> dict:
        found = kernels.merging_cycles(config, constants)
        return _figures(found, [[n, round(each, 2)] for n, each in sorted(found.of.items())])

    return Subject(label(config), label(config), constants, measure, lambda: config)


class Recorded:
    """A time.Source of records, which knows what it was asked for."""

    def __init__(self) -> None:
        self.used: dict[str, Subject] = {}

    def _rows(self, subject: Subject) -> list[list]:
        self.used[subject.name] = subject
        return [] if subject.state == "missing" else records.records()[subject.name]["cycles"]

    def _streaming(self, subject: Subject, tile_bytes: float) -> Streaming:
        rows = self._rows(subject) or [[n, 1, 1, *[NAN] * len(kernels.LATENCIES)] for n in (1, 2)]
        of = {Work(*row[:3]): row[3:] for row in rows}
        return kernels.streaming(of, tile_bytes, subject.constants, subject.state)

    def attention(self, config, seqlen_q: int, constants: Constants) -> Streaming:
        tile_bytes = kernels.tile_bytes(config, seqlen_q)
        return self._streaming(attention(config, seqlen_q, constants), tile_bytes)

    def their_attention(self, kernel: TheirKernel, constants: Constants) -> Streaming:
        found = their_attention(kernel, constants)
        return self._streaming(found, kernels.their_tile_bytes(kernel))

    def merge_cycles(self, config, constants: Constants) -> Curve:
        subject = merge(config, constants)
        rows = self._rows(subject) or [(1, NAN), (2, NAN)]
        return Curve(tuple((parts, cycles) for parts, cycles in rows), state=subject.state)

    def made_by(self) -> str:
        """The lines below a table."""
        return made_by(self.used.values())


def _of_call(call: Call, problem: DecodeProblem, constants: Constants) -> list[Subject]:
    found = [attention(call.config, problem.seqlen_q, constants)]
    return found + ([] if call.merge is None else [merge(call.merge, constants)])


def subjects(
    calls: Iterable[tuple[DecodeProblem, dict]],
    theirs: Iterable[DecodeProblem],
    constants: Constants,
) -> list[Subject]:
    """Those of these calls of ours, with what call_of takes besides, and of flash-attn-4, with keys split and not."""
    found = [
        subject
        for problem, options in calls
        for subject in _of_call(call_of(problem, **options), problem, constants)
    ]
    for problem in theirs:
        for split in (True, False):
            parts, _ = their_queues(problem, split, int(constants["sms"].value))
            found.append(their_attention(TheirKernel.of(problem, parts > 1), constants))
            found += [merge(their_merge(problem), constants)] * (parts > 1)
    return found
