"""Plans of calls whose keys are split: which launches they make, and the memory between them."""

from __future__ import annotations

from typing import cast

from cute_fa4.calls.plan import Plan
from cute_fa4.calls.split_keys.split import OwnParts, Shared, Split
from cute_fa4.operands import LENGTHS_OF_QUERIES, CallTensors, fields

_of_queries = fields(LENGTHS_OF_QUERIES)


class SplitPlan(Plan):
    """Attention into a workspace, and the kernel that merges it into out: two launches on one stream.

    combine  None: there is one part, which is the float32 result
    ends     the rows end with a sink: after the merge
    """

    __slots__ = ("combine", "ends", "split")

    def __init__(self, function, combine, split: Split | Shared, ends: bool, *of_the_plan):
        """of_the_plan: the arguments of Plan after the function."""
        super().__init__(function, *of_the_plan)
        self.combine, self.split, self.ends = combine, split, ends

    @property
    def functions(self) -> tuple:
        return (*super().functions, self.combine)

    def __call__(self, tensors: CallTensors):
        if self.combine is not None:  # before anything is written: the workspace may be too small
            partial_o, partial_lse, parts, told = self.split.workspace(tensors.q, tensors.v)
        if self.append is not None:
            self.append(tensors)
        out, lse = self.results.allocated(tensors.q, tensors.out)
        q, k, v, written = self.viewed(tensors, out)
        if self.combine is None:
            partial_o, partial_lse, told = written, lse[None], cast(Split, self.split).told
        sink = None
        if self.ends:
            sink, tensors = tensors.learnable_sink, tensors._replace(learnable_sink=None)
        self.launch(tensors, (q, k, v, partial_o, partial_lse), told)
        if self.combine is not None:
            lengths = _of_queries(tensors)
            self.combine(partial_o, partial_lse, parts, written, lse, *lengths, self.seqlen_q, sink)
        return out if lse is None else (out, lse)


class OwnPartsPlan(Plan):
    """Attention whose CTAs merge the parts of their rows: one launch, with memory for what they keep."""

    __slots__ = ("split",)

    def __init__(self, function, split: OwnParts, *of_the_plan):
        """of_the_plan: the arguments of Plan after the function."""
        super().__init__(function, *of_the_plan)
        self.split = split

    def __call__(self, tensors: CallTensors):
        told = self.split.told(tensors.q)  # before anything is written, as in SplitPlan
        if self.append is not None:
            self.append(tensors)
        out, lse = self.results.allocated(tensors.q, tensors.out)
        self.launch(tensors, (*self.viewed(tensors, out), lse), told)
        return out if lse is None else (out, lse)
