"""Places in the attention kernel's PTX, in its own words: which role, which mbarrier, which tile.

    wait("mma", "p_ready[1]")           every wait of a role for an mbarrier
    arrival("softmax", "row_scale")     every arrival; without an index: of any mbarrier of the kind
    commit("o_ready[0]")                every tcgen05.commit of the MMA warp
    expect("kv_full")                   every arrival of the load warp that announces bytes

Addresses come from the barrier table of the configuration, which the kernel's name tells: the same words find their
places in every kernel of the family. Where a role names an mbarrier several times, landmarks say which is meant: the
nearest event of the same role that belongs to one tile, or one stage, only. They are listed below the primitives.
"""

from __future__ import annotations

import dataclasses
import re
from functools import cache

from cute_fa4 import masks
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.blueprint.chip import MBARRIER_BYTES
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.choose.config import FA4Config
from tests.emulator.mutations.edits import WAIT, Place, PlantingError, lines, move, replace

FULL, CAUSAL, FEW_KEYS, WINDOW = "d128_full", "d64_causal", "d64_few_keys", "d64_window"
ONE_TILE, SINGLE, LAGGED, CROSSED = "one_tile", "single", "d64_lagged", "d128_crossed"
CONFIGS = {
    name: choose_config(
        qkv_dtype="bf16", head_dim=depth, causal=causal, write_lse=True, maximum="exact"
    )
    for name, depth, causal in ((FULL, 128, False), (CAUSAL, 64, True), (FEW_KEYS, 64, True))
}
CONFIGS[WINDOW] = choose_config(
    qkv_dtype="bf16", head_dim=64, mask=masks.Window(), write_lse=True, maximum="exact"
)
CONFIGS[LAGGED] = choose_config(
    qkv_dtype="bf16", head_dim=64, write_lse=True, first_reference="quarter"
)
CONFIGS[CROSSED] = choose_config(qkv_dtype="e4m3", head_dim=128, write_lse=True)
CONFIGS[ONE_TILE] = choose_config(qkv_dtype="bf16", head_dim=128, write_lse=True, family="mha1q")
CONFIGS[SINGLE] = choose_config(
    qkv_dtype="bf16",
    head_dim=64,
    write_lse=True,
    q_layout="packed",
    kv_layout="packed",
    maximum="exact",
)

COMMIT = r"@leader_thread tcgen05\.commit\.\S+ (\[%r\d+\]);"
A_COMMIT = "@leader_thread tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"
ARRIVE = r"mbarrier\.arrive\.shared\.b64 %rd\d+, (\[\S+\]), %r\d+;"
AN_INIT = "mbarrier.init.shared.b64"
AN_ARRIVAL = r"mbarrier.arrive.shared.b64 _, \1, 1;"
EXPECT = r"mbarrier\.arrive\.expect_tx\.shared\.b64 (%rd\d+), (\[\S+\]), (%r\d+);"
INIT = r"mbarrier\.init\.shared\.b64 \s*(\[\S+\]), (%r\d+);"
STORE_WORD = r"st\.shared\.b32\s+\[\S+\], (%r\d+);"
LOAD_WORD = r"ld\.shared\.b32\s+%r\d+, (\[\S+\]);"
TMEM_STORE = r"tcgen05\.st\.\S+ (\[%r\d+\]),.*;"
TMEM_LOAD = r"tcgen05\.ld\.\S+ \{.*\}, (\[%r\d+\]);"
WAIT_ST, WAIT_LD = r"tcgen05\.wait::st\S*;", r"tcgen05\.wait::ld\S*;"
BEFORE, AFTER = r"tcgen05\.fence::before\S*;", r"tcgen05\.fence::after\S*;"
PROXY_FENCE = r"fence\.proxy\.async\S*;"
BUFFER_READ = r"cp\.async\.bulk\.wait_group\.read\s+1;"
CHUNK_BARRIER = r"bar\.sync\s+1, 128;"
TRY_CANCEL = r"clusterlaunchcontrol\.try_cancel\S+\s+(\[\S+\]), \[\S+\];"
MMA = r"@leader_thread tcgen05\.mma\S+ (\[\S+\]), (.*), (0x[0-9a-f]+), (\w+);"


# Calls of the subjects: a reference from a quarter of the first key tile is a choice that no default makes.
TABLE = tuning.shipped().changed(first_reference="quarter")


# --- mbarriers by name


# By the name of the kernel: what places can be looked up in.
KNOWN = {config.name: config for config in CONFIGS.values()}


def config_of(text: list[str]) -> FA4Config:
    """The configuration of a kernel, by the name of its entry."""
    entry = next(found[1] for line in text if (found := re.search(r"\.entry\s+(\w+)", line)))
    for name, config in KNOWN.items():
        if f"_{name}_" in entry:
            return config
    raise PlantingError(f"the kernel {entry} is of none of the configurations KNOWN")


def at(config: FA4Config, mbarrier: str) -> int:
    """Byte of "p_ready[1]" in dynamic shared memory."""
    name, index = re.fullmatch(r"(\w+)\[(\d)\]", mbarrier).groups()
    first = config.smem.mbarriers.offset
    return first + (config.barriers.first_index(name) + int(index)) * MBARRIER_BYTES


@cache
def bytes_of(config: FA4Config, mbarrier: str) -> frozenset:
    """Bytes that name the mbarrier; of every index for a name without one."""
    first = config.smem.mbarriers.offset
    return frozenset(
        first + index * MBARRIER_BYTES
        for index, name, _ in config.barriers.instances()
        if mbarrier in (name, name.partition("[")[0])
    )


def address(text: list[str], number: int) -> int | None:
    """The byte of dynamic shared memory that the first [operand] of a line names, at index 0 of an array; or None."""
    base, _, offset = re.search(r"\[(\S+?)\]", text[number])[1].partition("+")
    if offset or not base.startswith("%"):
        return int(offset or 0)
    for line in reversed(text[:number]):
        if definition := re.match(rf"\s*add\.s32\s+{base}, \S+, (\d+);", line):
            return int(definition[1])
    return None


def on(place: Place, mbarrier: str, words: str) -> Place:
    """The lines of a place that name an mbarrier."""

    def which(text):
        wanted = bytes_of(config_of(text), mbarrier)
        if not wanted:
            raise PlantingError(f"{config_of(text).name} has no mbarrier {mbarrier}")
        return [n for n in place.which(text) if address(text, n) in wanted]

    return dataclasses.replace(place, words=words, which=which)


def wait(role: str, mbarrier: str) -> Place:
    return on(lines(role, WAIT), mbarrier, f"wait of {role} for {mbarrier}")


def arrival(role: str, mbarrier: str) -> Place:
    return on(lines(role, ARRIVE), mbarrier, f"arrival of {role} at {mbarrier}")


def commit(mbarrier: str) -> Place:
    return on(lines("mma", COMMIT), mbarrier, f"commit on {mbarrier}")


def expect(mbarrier: str) -> Place:
    return on(lines("load", EXPECT), mbarrier, f"bytes announced on {mbarrier}")


def operand(mbarrier: str, subject: str = FULL) -> str:
    """An mbarrier as an address operand."""
    return f"[__dynamic_shmem__0+{at(CONFIGS[subject], mbarrier)}]"


def region(name: str) -> int:
    """Byte of dynamic shared memory where a region begins (d128_full)."""
    return getattr(CONFIGS[FULL].smem, name).offset


# --- landmarks: softmax. A whole tile comes first, a masked one after it, then the row sums.

WHOLE_TILE, MASKED_TILE = wait("softmax", "s_ready").first, wait("softmax", "s_ready").last
FACTOR = arrival("softmax", "row_scale").after(WHOLE_TILE).first
P_READY = arrival("softmax", "p_ready").after(WHOLE_TILE).first
P_LAST = arrival("softmax", "p_last").after(WHOLE_TILE).first
SUMS_WAIT = wait("softmax", "p_ready")
SUMS = arrival("softmax", "row_scale").after(SUMS_WAIT)
UNUSED_PHASE = arrival("softmax", "p_ready").after(wait("softmax", "work_ready").last)

# --- correction. Before the first key tile, in a key tile, and at the end of a work tile when O is free.


def rescale(i: int) -> Place:
    """The wait for the factor of query tile i."""
    return wait("correction", f"row_scale[{i}]").first


def rescaled(i: int) -> Place:
    """The arrival that lets the MMA warp add to O of query tile i."""
    return arrival("correction", f"p_ready[{i}]").after(rescale(i)).first


def sums(i: int) -> Place:
    """The wait for the row sums of query tile i."""
    return wait("correction", f"row_scale[{i}]").last


def o_ready(i: int) -> Place:
    """The wait for O of query tile i, complete."""
    return wait("correction", f"o_ready[{i}]")


def chunk_barriers(chunks: int) -> dict[str, Place]:
    """The barriers of correction before and after each chunk of O that it writes, in the order of the text.

    Chunks of O come first, then those of rows without keys, of zeros.
    """
    when = ("before", "after")
    names = (f"{word} chunk {chunk}" for chunk in range(chunks) for word in when)
    return lines("correction", CHUNK_BARRIER).named(*names)


def in_columns(place: Place, column: int) -> Place:
    """The lines of a place whose address in tensor memory is that column."""

    def which(text):
        return [n for n in place.which(text) if address(text, n) == column]

    return dataclasses.replace(place, words=f"{place.words} in column {column}", which=which)


def o_free(i: int) -> Place:
    """The arrival after the last read of O of query tile i."""
    return arrival("correction", f"p_ready[{i}]").after(o_ready(i)).first


# --- mma. The products of the loop, and those of the last tile after the check for the next work tile.

NEXT_WORK = wait("mma", "work_ready").last
S0_DONE, S1_DONE = commit("s_ready[0]"), commit("s_ready[1]")
K_FULL = wait("mma", "kv_full").ahead_of(S0_DONE).last
V_FULL = wait("mma", "kv_full").after(S1_DONE).first
PV_READY = {
    "O0": wait("mma", "p_ready[0]").after(S1_DONE).first,
    "O1": wait("mma", "p_ready[1]").ahead_of(NEXT_WORK),
    "the last O1": wait("mma", "p_ready[1]").after(NEXT_WORK),
}
PV_LAST = {
    "O0": wait("mma", "p_last[0]").after(S1_DONE).first,
    "O1": wait("mma", "p_last[1]").ahead_of(NEXT_WORK),
    "the last O1": wait("mma", "p_last[1]").after(NEXT_WORK),
}
PV_DONE = {
    "O0": commit("o_ready[0]").after(S1_DONE).first,
    "O1": commit("o_ready[1]").ahead_of(NEXT_WORK),
    "the last O1": commit("o_ready[1]").after(NEXT_WORK),
}
K_FREE = commit("kv_empty").after(S1_DONE).first
V_FREE = commit("kv_empty").after(PV_DONE["O1"]).first


def product(name: str, pattern: str = MMA) -> Place:
    """The steps of a product, or other lines among them: S0, S1, O0, O1, the last O1 (P over S, d128_full)."""
    words = f"{pattern!r} of {name}"
    if name.startswith("S"):
        i = name[1]
        begin, end = wait("mma", f"q_full[{i}]"), commit(f"s_ready[{i}]")
    else:
        begin, end = PV_READY[name], PV_DONE[name]
    return dataclasses.replace(lines("mma", pattern).between(begin, end), words=words)


# --- load. K follows Q0, V follows Q1.

K_EMPTY = wait("load", "kv_empty").after(wait("load", "q_free[0]")).first
V_EMPTY = wait("load", "kv_empty").after(wait("load", "q_free[1]")).first
K_BYTES = expect("kv_full").after(K_EMPTY).first
V_BYTES = expect("kv_full").after(V_EMPTY).first


# --- edits of several defects


def init(name: str, text: str, subject: str = FULL):
    """Edit of the mbarrier.init of the first barrier of a kind: lane n of one instruction makes barrier n.

    text: instructions with the address as group 1 and the count as group 2; they may use `mine` and `changed`.
    """
    lane = CONFIGS[subject].barriers.first_index(name)
    return replace(
        lines("prologue", INIT),
        "{.reg .pred mine; .reg .b32 lane, changed; mov.u32 lane, %laneid; "
        f"setp.eq.u32 mine, lane, {lane}; {text}}}",
    )


def announced(nbytes: int, place: Place):
    """Edit of the bytes that the load warp announces."""
    return replace(place, rf"mbarrier.arrive.expect_tx.shared.b64 \1, \2, {nbytes};")


def before(role, place, instruction):
    """Edit: an arrival is moved to before the nearest instruction of its role ahead of it."""
    return move(place, before=lines(role, instruction).ahead_of(place).last, by=AN_ARRIVAL)
