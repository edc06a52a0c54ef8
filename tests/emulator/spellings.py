"""Every spelling of the chapters of the PTX ISA that Blackwell's kernels are made of, and many of the others' (those
of general_spellings.py): meaning, test, users.

    python -m tests.emulator.spellings record      run the tests of instructions, and note which spellings they execute
    python -m tests.emulator.foreign_kernels ...   notes those of foreign kernels
    python docs/generate.py                        writes the table of docs/emulator_coverage.md

A spelling is an opcode with its modifiers, without operands. A template stands for several: {a|b} is either, {.x|} an
optional .x. spellings.json has the spellings that the tests and the foreign kernels execute.
"""

import itertools
import json
import re
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cute_fa4.emulator.instructions import instruction_table
from tests.emulator.general_spellings import GENERAL

RECORD = Path(__file__).with_name("spellings.json")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a chapter; missing: why spellings without a meaning have none."""

    chapter: str
    name: str
    templates: tuple
    missing: str = ""

    @cached_property
    def spellings(self):
        return tuple(dict.fromkeys(itertools.chain(*map(expanded, self.templates))))

    @property
    def with_meaning(self):
        return tuple(filter(has_meaning, self.spellings))


def expanded(template):
    """The spellings of a template, in order.

    >>> list(expanded("mapa{.shared::cluster|}.{u32|u64}"))[1:3]
    ['mapa.shared::cluster.u64', 'mapa.u32']
    """
    parts = [part.split("|") for part in re.split(r"[{}]", template)]
    return map("".join, itertools.product(*parts))


def has_meaning(opcode):
    """Can the emulator execute the opcode?"""
    return instruction_table.find(opcode) is not None


_GROUP = "cta_group::{1|2}"
_NUMBERS = "x{1|2|4|8|16|32|64|128}"
_COLLECTOR_A = (
    "{.collector::a::fill|.collector::a::use|.collector::a::lastuse|.collector::a::discard|}"
)
_COLLECTOR_B = "{|" + "|".join(
    f".collector::b{n}::{use}" for n in range(4) for use in ("fill", "use", "lastuse", "discard")
) + "}"  # fmt: skip
_DENSE = "kind::{f16|tf32|f8f6f4|i8}"
_SCALED = (
    "kind::mxf8f6f4.block_scale{.scale_vec::1X|.block32|}",
    "kind::mxf4.block_scale{.scale_vec::2X|.block32|}",
    "kind::mxf4nvf4.block_scale{.scale_vec::2X|.scale_vec::4X|.block16|.block32}",
)
_SPACE, _OWN_SPACE = "{.shared|.shared::cta|.shared::cluster|}", "{.shared|.shared::cta|}"
_RELEASE = "{.release.cta|.release.cluster|.relaxed.cta|.relaxed.cluster|}"
_ACQUIRE = "{.acquire.cta|.acquire.cluster|.relaxed.cta|.relaxed.cluster|}"
_HINT = "{.L2::cache_hint|}"
_BYTES = "mbarrier::complete_tx::bytes"
_IM2COL = "{.im2col|.im2col::w|.im2col::w::128}"
_NO_WIDE = "im2col::w and ::w::128: the bits of their tensor maps are not public"

INSTRUCTIONS = (
    Instruction("tcgen05", "alloc, dealloc, relinquish_alloc_permit", (
        f"tcgen05.alloc.{_GROUP}.sync.aligned{{.shared::cta|}}.b32",
        f"tcgen05.dealloc.{_GROUP}.sync.aligned.b32",
        f"tcgen05.relinquish_alloc_permit.{_GROUP}.sync.aligned",
    )),
    Instruction("tcgen05", "ld", (
        f"tcgen05.ld.sync.aligned.{{16x64b|32x32b|16x32bx2}}.{_NUMBERS}{{.pack::16b|}}.b32",
        "tcgen05.ld.sync.aligned.16x128b.x{1|2|4|8|16|32|64}{.pack::16b|}.b32",
        "tcgen05.ld.sync.aligned.16x256b.x{1|2|4|8|16|32}{.pack::16b|}.b32",
    )),
    Instruction("tcgen05", "ld.red", (
        "tcgen05.ld.red.sync.aligned.{32x32b|16x32bx2}.x{2|4|8|16|32|64|128}.{min|max}{.abs|}{.NaN|}.f32",
        "tcgen05.ld.red.sync.aligned.{32x32b|16x32bx2}.x{2|4|8|16|32|64|128}.{min|max}.{u32|s32}",
    )),
    Instruction("tcgen05", "st", (
        f"tcgen05.st.sync.aligned.{{16x64b|32x32b|16x32bx2}}.{_NUMBERS}{{.unpack::16b|}}.b32",
        "tcgen05.st.sync.aligned.16x128b.x{1|2|4|8|16|32|64}{.unpack::16b|}.b32",
        "tcgen05.st.sync.aligned.16x256b.x{1|2|4|8|16|32}{.unpack::16b|}.b32",
    )),
    Instruction("tcgen05", "wait, fence", (
        "tcgen05.wait::{ld|st}.sync.aligned", "tcgen05.fence::{before|after}_thread_sync",
    )),
    Instruction("tcgen05", "cp", (
        f"tcgen05.cp.{_GROUP}."
        "{128x256b|4x256b|128x128b|64x128b.warpx2::02_13|64x128b.warpx2::01_23|32x128b.warpx4}"
        "{.b8x16.b6x16_p32|.b8x16.b4x16_p64|}",
    )),
    Instruction("tcgen05", "shift", (f"tcgen05.shift.{_GROUP}.down",)),
    Instruction("tcgen05", "mma", (f"tcgen05.mma.{_GROUP}.{_DENSE}{_COLLECTOR_A}",)),
    Instruction("tcgen05", "mma with .ashift", (
        f"tcgen05.mma.{_GROUP}.{_DENSE}.ashift{{.collector::a::lastuse|.collector::a::discard|}}",
    )),
    Instruction("tcgen05", "mma, block-scaled", tuple(
        f"tcgen05.mma.{_GROUP}.{scaled}{_COLLECTOR_A}" for scaled in _SCALED
    )),
    Instruction("tcgen05", "mma.ws", (f"tcgen05.mma.ws.cta_group::1.{_DENSE}{_COLLECTOR_B}",)),
    Instruction("tcgen05", "mma.sp", (
        f"tcgen05.mma.sp.{_GROUP}.{_DENSE}{_COLLECTOR_A}",
        *(f"tcgen05.mma.sp.{_GROUP}.{scaled}{_COLLECTOR_A}" for scaled in _SCALED),
        f"tcgen05.mma.ws.sp.cta_group::1.{_DENSE}{_COLLECTOR_B}",
    )),
    Instruction("tcgen05", "commit", (
        f"tcgen05.commit.{_GROUP}.mbarrier::arrive::one{{.shared::cluster|}}{{.multicast::cluster|}}.b64",
    )),
    Instruction("TMA", "cp.async.bulk", (
        f"cp.async.bulk.shared::cluster.global.{_BYTES}{{.multicast::cluster|}}{_HINT}",
        f"cp.async.bulk.shared::cta.global.{_BYTES}{_HINT}",
        f"cp.async.bulk.shared::cluster.shared::cta.{_BYTES}",
        f"cp.async.bulk.global.shared::cta.bulk_group{_HINT}{{.cp_mask|}}",
    )),
    Instruction("TMA", "cp.reduce.async.bulk", (
        f"cp.reduce.async.bulk.shared::cluster.shared::cta.{_BYTES}."
        "{and.b32|or.b32|xor.b32|add.u32|add.s32|add.u64|inc.u32|dec.u32|min.u32|min.s32|max.u32|max.s32}",
        f"cp.reduce.async.bulk.global.shared::cta.bulk_group{_HINT}."
        "{and.b32|or.b32|xor.b32|and.b64|or.b64|xor.b64|add.u32|add.s32|add.u64|add.f32|add.f64|add.noftz.f16|"
        "add.noftz.bf16|inc.u32|dec.u32|min.u32|min.s32|min.u64|min.s64|min.f16|min.bf16|max.u32|max.s32|max.u64|"
        "max.s64|max.f16|max.bf16}",
    )),
    Instruction("TMA", "cp.async.bulk.tensor, load, .tile", (
        f"cp.async.bulk.tensor.{{1|2|3|4|5}}d.shared::cluster.global{{.tile|}}.{_BYTES}{{.multicast::cluster|}}"
        f"{{.cta_group::1|.cta_group::2|}}{_HINT}",
        f"cp.async.bulk.tensor.{{1|2|3|4|5}}d.shared::cta.global{{.tile|}}.{_BYTES}{{.cta_group::1|.cta_group::2|}}{_HINT}",
    )),
    Instruction("TMA", "cp.async.bulk.tensor, load, .tile::gather4", (
        f"cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.{_BYTES}{{.multicast::cluster|}}"
        f"{{.cta_group::1|.cta_group::2|}}{_HINT}",
        f"cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.{_BYTES}{{.cta_group::1|.cta_group::2|}}{_HINT}",
    )),
    Instruction("TMA", "cp.async.bulk.tensor, load, .im2col", (
        f"cp.async.bulk.tensor.{{3|4|5}}d.shared::cluster.global{_IM2COL}.{_BYTES}{{.multicast::cluster|}}"
        f"{{.cta_group::1|.cta_group::2|}}{_HINT}",
        f"cp.async.bulk.tensor.{{3|4|5}}d.shared::cta.global{_IM2COL}.{_BYTES}{{.cta_group::1|.cta_group::2|}}{_HINT}",
    ), _NO_WIDE),
    Instruction("TMA", "cp.async.bulk.tensor, store", (
        f"cp.async.bulk.tensor.{{1|2|3|4|5}}d.global.shared::cta{{.tile|}}.bulk_group{_HINT}",
        f"cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group{_HINT}",
        f"cp.async.bulk.tensor.{{3|4|5}}d.global.shared::cta.im2col_no_offs.bulk_group{_HINT}",
    )),
    Instruction("TMA", "cp.reduce.async.bulk.tensor", (
        "cp.reduce.async.bulk.tensor.{1|2|3|4|5}d.global.shared::cta.{add|min|max|inc|dec|and|or|xor}{.tile|}"
        f".bulk_group{_HINT}",
        "cp.reduce.async.bulk.tensor.{3|4|5}d.global.shared::cta.{add|min|max|inc|dec|and|or|xor}.im2col_no_offs"
        f".bulk_group{_HINT}",
    )),
    Instruction("TMA", "cp.async.bulk.prefetch", (
        f"cp.async.bulk.prefetch.L2.global{_HINT}",
        f"cp.async.bulk.prefetch.tensor.{{1|2|3|4|5}}d.L2.global{{.tile|}}{_HINT}",
        f"cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4{_HINT}",
        f"cp.async.bulk.prefetch.tensor.{{3|4|5}}d.L2.global{_IM2COL}{_HINT}",
    ), _NO_WIDE),
    Instruction("TMA", "cp.async.bulk.commit_group, wait_group", (
        "cp.async.bulk.commit_group", "cp.async.bulk.wait_group{.read|}",
    )),
    Instruction("TMA", "tensormap.replace, cp_fenceproxy", (
        "tensormap.replace.tile.global_address{.global|.shared::cta|}.b1024.b64",
        "tensormap.replace.tile.{rank|box_dim|global_dim|element_stride|elemtype|interleave_layout|swizzle_mode|"
        "swizzle_atomicity|fill_mode}{.global|.shared::cta|}.b1024.b32",
        "tensormap.replace.tile.global_stride{.global|.shared::cta|}.b1024.b64",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.{cta|cluster|gpu|sys}.sync.aligned",
    )),
    Instruction("TMA", "fence.proxy", (
        "fence.proxy.{alias|async|async.global|async.shared::cta|async.shared::cluster}",
        "fence.proxy.tensormap::generic.{release|acquire}.{cta|cluster|gpu|sys}",
        "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster",
        "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster",
    )),
    Instruction("mbarrier", "init, inval", (f"mbarrier.{{init|inval}}{_OWN_SPACE}.b64",)),
    Instruction("mbarrier", "expect_tx, complete_tx", (
        f"mbarrier.{{expect_tx|complete_tx}}{{.relaxed.cta|.relaxed.cluster|}}{_SPACE}.b64",
    )),
    Instruction("mbarrier", "arrive", (
        f"mbarrier.arrive{_RELEASE}{_SPACE}.b64",
        f"mbarrier.arrive.expect_tx{_RELEASE}{_SPACE}.b64",
        f"mbarrier.arrive.noComplete{{.release.cta|}}{_OWN_SPACE}.b64",
    )),
    Instruction("mbarrier", "arrive_drop", (
        f"mbarrier.arrive_drop{_RELEASE}{_SPACE}.b64",
        f"mbarrier.arrive_drop.expect_tx{_RELEASE}{_SPACE}.b64",
        f"mbarrier.arrive_drop.noComplete{{.release.cta|}}{_OWN_SPACE}.b64",
    )),
    Instruction("mbarrier", "test_wait, try_wait", (
        f"mbarrier.{{test_wait|try_wait}}{{.parity|}}{_ACQUIRE}{_OWN_SPACE}.b64",
    )),
    Instruction("mbarrier", "pending_count", ("mbarrier.pending_count.b64",)),
    Instruction(
        "mbarrier", "cp.async.mbarrier.arrive", (f"cp.async.mbarrier.arrive{{.noinc|}}{_OWN_SPACE}.b64",)
    ),
    Instruction("mbarrier", "fence.mbarrier_init", ("fence.mbarrier_init.release.cluster",)),
    Instruction("cluster", "barrier.cluster", (
        "barrier.cluster.arrive{.release|.relaxed|}{.aligned|}", "barrier.cluster.wait{.acquire|}{.aligned|}",
    )),
    Instruction("cluster", "mapa, getctarank", (
        "mapa{.shared::cluster|}.{u32|u64}", "getctarank{.shared::cluster|}.{u32|u64}",
    )),
    Instruction("cluster", "st.async, red.async", (
        f"st.async{{.weak|}}{{.shared::cluster|}}.{_BYTES}.{{b32|b64|v2.b32|v2.b64|v4.b32}}",
        f"red.async{{.relaxed.cluster|}}{{.shared::cluster|}}.{_BYTES}."
        "{inc.u32|dec.u32|min.u32|min.s32|max.u32|max.s32|add.u32|add.s32|add.u64|and.b32|or.b32|xor.b32}",
    )),
    Instruction("cluster", "clusterlaunchcontrol", (
        f"clusterlaunchcontrol.try_cancel.async{{.shared::cta|}}.{_BYTES}{{.multicast::cluster::all|}}.b128",
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid{::x|::y|::z}.b32.b128",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128",
    )),
)  # fmt: skip


ALL_GPUS = tuple(Instruction(*row) for row in GENERAL)


def known():
    """Every spelling of the chapters."""
    return {s for instruction in (*INSTRUCTIONS, *ALL_GPUS) for s in instruction.spellings}


def record():
    """What tests and foreign kernels execute: {"tests": opcodes, "foreign": {origin: opcodes}}."""
    return json.loads(RECORD.read_text()) if RECORD.exists() else {"tests": [], "foreign": {}}


def note(kind, opcodes, origin=None):
    """Keep the spellings of the chapters among opcodes as those of the tests, or of a foreign origin."""
    kept, chosen = record(), sorted(known() & set(opcodes))
    if kind == "tests":
        kept["tests"] = chosen
    else:
        kept["foreign"][origin] = sorted({*kept["foreign"].get(origin, ()), *chosen})
    kept["foreign"] = dict(sorted(kept["foreign"].items()))
    RECORD.write_text(json.dumps(kept, indent=1) + "\n")


def table():
    """Markdown: per instruction how many spellings there are, have a meaning, a test, a foreign user.

    Foreign users are noted of the chapters of Blackwell and Hopper only.
    """
    kept = record()
    foreign = set().union(*kept["foreign"].values())
    parts = [
        _part(INSTRUCTIONS, {"in a test": set(kept["tests"]), "in foreign kernels": foreign}),
        f"Foreign kernels: {', '.join(kept['foreign'])}.",
        "The chapters that all GPUs have. Of qualifiers that only name an order or a scope, some stand for all:",
        _part(ALL_GPUS, {"in a test": set(kept["tests"])}),
    ]
    return "\n\n".join(parts)


def _part(instructions, users):
    """A table. users: name of a column -> the spellings that it counts."""
    lines = [
        f"| chapter | instruction | spellings | with a meaning | {' | '.join(users)} | what is missing |",
        "|---|---|" + "---:|" * (2 + len(users)) + "---|",
    ]
    rows = []
    for one in instructions:
        counts = [len(one.spellings), len(one.with_meaning)]
        counts += [sum(s in used for s in one.spellings) for used in users.values()]
        rows.append(counts)
        missing = one.missing if counts[1] < counts[0] else ""
        numbers = " | ".join(f"{n:,}" for n in counts)
        lines.append(f"| {one.chapter} | `{one.name}` | {numbers} | {missing} |")
    total = [sum(column) for column in zip(*rows, strict=True)]
    lines.append("| | together | " + " | ".join(f"{n:,}" for n in total) + " | |")
    return "\n".join(lines)


# --- recording ----------------------------------------------------------------------------------------

TESTS = (
    "core", "checks", "gpu", "instructions", "test_warp_matrices.py",
    "test_block_scale.py", "test_bulk_copy.py", "test_bulk_reduce.py",
    "test_cluster_launch_control.py", "test_dependent_launch.py", "test_device_tensor_maps.py",
    "test_reducing_loads.py", "test_tcgen05.py", "test_tcgen05_copies.py", "test_tensor_core.py",
    "test_weight_stationary.py", "test_sparse.py", "test_im2col.py", "test_interrupts.py", "test_every_spelling.py",
)  # fmt: skip


class _Asked(dict):
    """The table's entries, which record the requested opcodes."""

    def __init__(self, entries):
        super().__init__(entries)
        self.opcodes = set()

    def get(self, opcode, default=None):
        self.opcodes.add(opcode)
        return super().get(opcode, default)


def record_tests():
    """Run the tests of instructions and keep what they execute."""
    import pytest

    instruction_table.lane_operations()  # so that no family registers later
    whole = instruction_table._table
    whole.entries = asked = _Asked(whole.entries)
    here = Path(__file__).parent
    arguments = [str(here / name) for name in TESTS]
    status = pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *arguments])
    if status:
        return int(status)
    note("tests", {o for o in asked.opcodes if has_meaning(o)})
    print(f"{len(record()['tests'])} spellings")
    return 0


if __name__ == "__main__":
    if sys.argv[1:] != ["record"]:
        raise SystemExit(__doc__)
    sys.exit(record_tests())
