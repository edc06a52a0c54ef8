"""Where things are in the attention kernel's PTX: mbarriers by name, instructions by pattern."""

import re
from functools import cache

from cute_fa4.sm100.chip import MBARRIER_BYTES
from cute_fa4.sm100.choose_config import choose_config
from tests.emulator.mutations.edits import WAIT, delete, replace

FULL, CAUSAL, FEW_KEYS = "d128_full", "d64_causal", "d64_few_keys"
CONFIGS = {
    name: choose_config(qkv_dtype="bf16", head_dim=depth, causal=causal, write_lse=True)
    for name, depth, causal in ((FULL, 128, False), (CAUSAL, 64, True), (FEW_KEYS, 64, True))
}

COMMIT = r"tcgen05\.commit\.\S+ (\[%r\d+\]);"
A_COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"
ARRIVE = r"mbarrier\.arrive\.shared\.b64 %rd\d+, (\[\S+\]), %r\d+;"
AN_INIT = "mbarrier.init.shared.b64"
AN_ARRIVAL = r"mbarrier.arrive.shared.b64 _, \1, 1;"
EXPECT = r"mbarrier\.arrive\.expect_tx\.shared\.b64 (%rd\d+), (\[\S+\]), (%r\d+);"
STORE_WORD = r"st\.shared\.b32\s+\[\S+\], (%r\d+);"
LOAD_WORD = r"ld\.shared\.b32\s+%r\d+, (\[\S+\]);"
TMEM_STORE = r"tcgen05\.st\.\S+ (\[%r\d+\]),.*;"
TMEM_LOAD = r"tcgen05\.ld\.\S+ \{.*\}, (\[%r\d+\]);"
WAIT_ST, WAIT_LD = r"tcgen05\.wait::st\S*;", r"tcgen05\.wait::ld\S*;"
BEFORE, AFTER = r"tcgen05\.fence::before\S*;", r"tcgen05\.fence::after\S*;"
PROXY_FENCE = r"fence\.proxy\.async\S*;"
CHUNK_BARRIER = r"bar\.sync\s+1, 128;"
TRY_CANCEL = r"clusterlaunchcontrol\.try_cancel\S+\s+(\[\S+\]), \[\S+\];"


@cache
def _first_byte(name, subject):
    cfg = CONFIGS[subject]
    first = cfg.smem.mbarriers.offset
    return first + cfg.barriers.first_index(name) * MBARRIER_BYTES


def at(mbarrier, subject=FULL):
    """Byte of "p_ready[1]" in shared memory. An indexed access (softmax, kv ring) names the first of its kind."""
    name, index = re.fullmatch(r"(\w+)\[(\d)\]", mbarrier).groups()
    return _first_byte(name, subject) + int(index) * MBARRIER_BYTES


def operand(mbarrier, subject=FULL):
    """The same as an address operand."""
    return f"[__dynamic_shmem__0+{at(mbarrier, subject)}]"


def init(name, text):
    """Edit of the mbarrier.init of the first barrier of a kind (d128_full): lane n of one instruction makes barrier n.

    text: instructions with the address as group 1 and the count as group 2; they may use `mine` and `changed`.
    """
    lane = CONFIGS[FULL].barriers.first_index(name)
    return replace(
        "prologue",
        r"mbarrier\.init\.shared\.b64 \s*(\[\S+\]), (%r\d+);",
        "{.reg .pred mine; .reg .b32 lane, changed; mov.u32 lane, %laneid; "
        f"setp.eq.u32 mine, lane, {lane}; {text}}}",
    )


def expect(nbytes, mbarrier, nth=0, of=1):
    """Edit of the bytes that the load warp announces (d128_full)."""
    by = rf"mbarrier.arrive.expect_tx.shared.b64 \1, \2, {nbytes};"
    return replace("load", EXPECT, by, nth, of, on=at(mbarrier))


def wait(role, by, mbarrier, nth=0, of=1, subject=FULL):
    """Edit of a wait."""
    return replace(role, WAIT, by, nth, of, on=at(mbarrier, subject))


def without_commit(mbarrier, nth=0, of=1, subject=FULL):
    return delete("mma", "@leader_thread " + COMMIT, nth, of, on=at(mbarrier, subject))
