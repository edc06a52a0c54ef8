"""mbarriers that CTAs of a cluster raise for each other.

tcgen05.fence around the barrier orders accesses to tensor memory, so the barrier itself may be relaxed (PTX ISA,
"tcgen05 memory consistency model": canonical synchronization patterns). With .release.cluster and .acquire.cluster,
ptxas puts MEMBAR.ALL.GPU before the arrival and CCTL.IVALL after the wait, as for global memory. For shared memory
only, dedicated fences allow a relaxed arrival and a relaxed wait (PTX ISA, "membar/fence": .sync_restrict, PTX 8.6):
release_shared and acquire_shared, one instruction each.
"""

import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm, nvvm
from cutlass.cutlass_dsl import T

LONGEST_TRY_NS = 10_000_000


def arrive_at(rank, mbarrier, relaxed: bool = True):
    """One arrival on the mbarrier at this address in the CTA of a rank."""
    cute.arch.mbarrier_arrive(
        mbarrier,
        peer_cta_rank_in_cluster=rank,
        relaxed=relaxed,
        scope=nvvm.MemScopeKind.CLUSTER,
    )


def release_shared():
    """Before a relaxed arrival: makes the arrival release earlier writes to this CTA's shared memory."""
    _asm_alone("fence.release.sync_restrict::shared::cta.cluster;")


def acquire_shared():
    """After a relaxed wait: acquires the released writes to shared memory of the cluster."""
    _asm_alone("fence.acquire.sync_restrict::shared::cluster.cluster;")


def store_at(rank, pointer, word):
    """Store a 32-bit word at this shared-memory address in the CTA of a rank; all three Int32."""
    text = "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, $0, $2;\n"
    text += "st.shared::cluster.b32 [there], $1;\n}"
    _asm(text, pointer, word, rank)


def there(rank, address) -> Int32:
    """The address in the CTA of a rank that corresponds to an address of this CTA. PTX ISA, "mapa"."""
    return Int32(
        llvm.inline_asm(
            T.i32(),
            [Int32(address).ir_value(), Int32(rank).ir_value()],
            "mapa.shared::cluster.u32 $0, $1, $2;",
            "=r,r,r",
            has_side_effects=False,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )


def load_from(address) -> Int32:
    """The 32-bit word of another CTA at an address from there()."""
    return Int32(
        llvm.inline_asm(
            T.i32(),
            [Int32(address).ir_value()],
            "ld.shared::cluster.b32 $0, [$1];",
            "=r,r,~{memory}",  # not before a barrier of the cluster
            has_side_effects=True,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )


def send(address, value, mbarrier):
    """Send a float32 to another CTA, whose mbarrier counts its 4 bytes; both addresses come from there().

    PTX ISA, "st.async"
    """
    llvm.inline_asm(
        None,
        [Int32(address).ir_value(), Float32(value).ir_value(), Int32(mbarrier).ir_value()],
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [$0], $1, [$2];",
        "r,f,r,~{memory}",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def send_words(address, words: list, mbarrier):
    """Send four words to another CTA, whose mbarrier counts their 16 bytes; both addresses come from there()."""
    llvm.inline_asm(
        None,
        [Int32(value).ir_value() for value in (address, *words, mbarrier)],
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [$0], {$1, $2, $3, $4}, [$5];",
        "r,r,r,r,r,r,~{memory}",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def wait_for_cluster(mbarrier, phase, relaxed: bool = True):
    """Wait for a phase of an mbarrier of this CTA that other CTAs raise as well."""
    order = "relaxed" if relaxed else "acquire"
    text = "{\n.reg .pred complete;\nTRY_AGAIN:\n"
    text += f"mbarrier.try_wait.parity.{order}.cluster.shared::cta.b64 complete, [$0], $1, {LONGEST_TRY_NS};\n"
    text += "@complete bra.uni COMPLETE;\nbra.uni TRY_AGAIN;\nCOMPLETE:\n}"
    _asm(text, mbarrier, phase)


def arrive_and_wait(mbarrier, count: int):
    """One thread makes `count` arrivals on an mbarrier of this CTA, and waits until others have completed the phase."""
    text = "{\n.reg .pred complete, one_thread;\n.reg .b64 state;\nelect.sync _|one_thread, 0xffffffff;\n"
    text += "@!one_thread bra COMPLETE;\n"
    text += "mbarrier.arrive.relaxed.cluster.shared::cta.b64 state, [$0], $1;\nTRY_AGAIN:\n"
    text += "mbarrier.try_wait.relaxed.cluster.shared::cta.b64 complete, [$0], state;\n"
    text += (
        "@complete bra.uni COMPLETE;\nbra.uni TRY_AGAIN;\nCOMPLETE:\nbar.warp.sync 0xffffffff;\n}"
    )
    _asm(text, mbarrier, count)


def _asm_alone(text: str):
    llvm.inline_asm(
        None,
        [],
        text,
        "~{memory}",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def _asm(text: str, pointer, *numbers):
    llvm.inline_asm(
        None,
        [Int32(value).ir_value() for value in (pointer.toint(), *numbers)],
        text,
        ",".join("r" * (1 + len(numbers))) + ",~{memory}",  # nothing is read before a wait
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
