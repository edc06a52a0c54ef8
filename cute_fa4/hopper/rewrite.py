"""sm_100a PTX -> equivalent sm_90a PTX for a Hopper GPU, with software for the instructions that Hopper lacks.

    unchanged, executed by the GPU
        TMA copies, mbarriers, clusters, named barriers, elect, shared memory, arithmetic

    becomes a call of tcgen05.cu
        tcgen05.alloc, .dealloc, .ld, .st, .mma, .commit     tensor memory is global memory there
        clusterlaunchcontrol.try_cancel                      claims use a table in global memory
        cp.async.bulk.tensor...cta_group::2                  may signal the peer's barrier

    becomes other instructions
        cp.async.bulk.tensor...tile::gather4                 four copies of a box of one row of 128 bytes or more
        redux.sync.max, .min of f32                          five rounds of shuffles
        fma, add, mul, sub .f32x2                            two scalar operations with the same rounding
        fma, add, sub .f32.bf16, .f32.f16                    conversions, which are exact, and the operation in float32
        max, min with three inputs                           two of them with two
        cvt .f16x2.e2m1x2                                    the bits at their place in fp16, times 2^14
        clusterlaunchcontrol.query_cancel                    reads the software's own answer
        tcgen05.wait, tcgen05.fence                          fence.acq_rel.gpu, where they order memory

    is dropped
        setmaxnreg (calls need registers), tcgen05.relinquish_alloc_permit

Other instructions that start with tcgen05 or clusterlaunchcontrol are refused by name. ptxas refuses everything
else that Hopper lacks.

A replaced instruction becomes a separate block (ptx_blocks.py), so its registers and labels need no unique names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from cute_fa4.hopper import in_software, in_steps
from cute_fa4.hopper.ptx_blocks import TARGET, refuse
from cute_fa4.hopper.ptx_text import Token, tokens

# The DSL writes the version of its own toolkit, which an older ptxas refuses. The rewritten PTX needs at most this
# version, which CUDA 12.9 supports.
PTX_VERSION = "8.8"


@dataclass(frozen=True)
class Rewritten:
    """ptx: for sm_90a, to be linked with tcgen05.cu. entries: names of its kernels.

    threads        threads of a CTA: the largest number that an entry declares, or 1024
    scratch_bytes  dynamic shared memory that a launch must add
    """

    ptx: str
    entries: tuple[str, ...]
    threads: int
    scratch_bytes: int


def rewrite(ptx: str) -> Rewritten:
    """Rewrite a module. UnsupportedInstruction names an instruction that cannot be rewritten."""
    return _Rewriter().module(ptx)


def rewrite_instructions(ptx: str) -> str:
    """The same for statements without a module around them."""
    return _Rewriter().text(ptx)


class _Rewriter:
    """One pass over a module.

    elected  predicates set by elect.sync of the whole warp since the last label or branch: all 32 lanes reach an
             instruction under one of them, so they can share its work
    """

    def __init__(self):
        self._elected: set[str] = set()
        self._scratch = 0
        self._shared = ""  # the symbol at the start of dynamic shared memory
        self._entry_begins = False

    def module(self, ptx: str) -> Rewritten:
        out = self.text(ptx)
        entries = tuple(re.findall(r"\.entry\s+([\w$]+)", ptx))
        threads = [
            prod(map(int, match.split(",")))
            for match in re.findall(r"\.(?:req|max)ntid\s+([\d, ]+)", ptx)
        ]
        return Rewritten(out, entries, max(threads, default=1024), self._scratch)

    def text(self, ptx: str) -> str:
        return "".join(map(self._token, tokens(ptx)))

    def _token(self, token: Token) -> str:
        if token.kind == "instruction":
            return self._instruction(token)
        if token.kind == "directive":
            return self._directive(token.text)
        if token.kind == "label":
            self._elected.clear()
        if token.text == "{" and self._entry_begins:
            self._entry_begins = False
            return "{\n" + in_software.BEGIN
        return token.text

    def _directive(self, text: str) -> str:
        if text.startswith(".version"):
            return f".version {min(text.split()[1], PTX_VERSION, key=_version_key)}"
        if text.startswith(".target"):
            return re.sub(r"sm_\w+", TARGET, text)
        if text.startswith(".address_size"):
            return text + in_software.FUNCTIONS
        if text.startswith(".reg"):
            self._elected -= set(re.findall(r"[\w$%]+", text))
        dynamic = re.match(r"\.extern\s+\.shared\b.*?([\w$]+)\s*\[\s*\]", text, re.DOTALL)
        if dynamic:
            self._shared = dynamic[1]
        if ".entry" in text:
            self._entry_begins = True
        return text

    def _instruction(self, token: Token) -> str:
        opcode = token.opcode
        if (
            opcode.startswith("elect.sync")
            and not token.guard
            and int(token.operands[1], 0) & 0xFFFFFFFF == 0xFFFFFFFF
        ):
            self._elected.add(token.operands[0].partition("|")[2])
            return token.text
        if opcode.startswith(("bra", "brx", "ret", "exit", "call")):
            self._elected.clear()
            return token.text
        for prefix, suffix, rule in self._rules():
            if opcode.startswith(prefix) and opcode.endswith(suffix):
                body = rule(token)
                return token.text if body is None else body
        return token.text

    def _rules(self):
        """(prefix of an opcode, suffix, rule): the first match applies; a rule may return None."""
        return (
            ("tcgen05.alloc", "", in_software.alloc),
            ("tcgen05.dealloc", "", in_software.dealloc),
            ("tcgen05.relinquish_alloc_permit", "", in_steps.drop),
            ("tcgen05.wait::ld", "", in_steps.drop),
            ("tcgen05.wait::st", "", in_steps.fence),
            ("tcgen05.fence", "", in_steps.fence),
            ("tcgen05.ld", "", in_software.load),
            ("tcgen05.st", "", in_software.store),
            ("tcgen05.mma", "", self._mma),
            ("tcgen05.cp", "", in_software.copy_scales),
            ("tcgen05.commit", "", in_software.commit),
            ("tcgen05.", "", refuse),
            ("clusterlaunchcontrol.try_cancel", "", in_software.try_cancel),
            ("clusterlaunchcontrol.query_cancel.is_canceled", "", in_steps.is_canceled),
            ("clusterlaunchcontrol.query_cancel.get_first_ctaid", "", in_steps.first_ctaid),
            ("clusterlaunchcontrol.", "", refuse),
            ("cp.async.bulk.tensor", "", self._bulk_load),
            ("setmaxnreg", "", in_steps.drop),
            ("", ".f32x2", in_steps.packed),
            ("", ".f32.bf16", in_steps.mixed),
            ("", ".f32.f16", in_steps.mixed),
            ("cvt.rn.f16x2", ".e2m1x2", in_steps.from_4_bits),
            ("redux.sync", ".f32", in_steps.reduction),
            ("max", ".f32", in_steps.three_inputs),
            ("min", ".f32", in_steps.three_inputs),
        )

    def _mma(self, token: Token) -> str:
        rule = in_software.scaled_mma if "block_scale" in token.opcode else in_software.mma
        return rule(token, wide=token.guard in self._elected)

    def _bulk_load(self, token: Token) -> str | None:
        """A load for a pair may signal the barrier of the other CTA, which Hopper's TMA cannot."""
        if ".tile::scatter4" in token.opcode:
            refuse(token)
        if ".tile::gather4" in token.opcode:
            return in_steps.gather(token, self._load_for_a_pair)
        if ".cta_group::2" in token.opcode:
            return self._load_for_a_pair(token)
        return token.text.replace(".cta_group::1", "") if ".cta_group::1" in token.opcode else None

    def _load_for_a_pair(self, token: Token) -> str:
        self._scratch = in_software.SCRATCH_BYTES
        return in_software.load_for_a_pair(token, self._shared)


def _version_key(version: str) -> tuple[int, ...]:
    """
    >>> _version_key("9.4") < _version_key("10.0")
    True
    """
    return tuple(map(int, version.split(".")))
