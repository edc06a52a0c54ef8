"""Equal writes of two warps are a note; whatever else two warps write unordered is a race (checks/equal_writes.py)."""

import numpy as np
import pytest

from cute_fa4.emulator.ptx.errors import BarrierError, RaceError
from tests.emulator.checks.planted_bugs import START
from tests.emulator.core.ptx_bench import run_ptx

SEVEN = "mov.b32 %r5, 7;"
# Both write one word, or one a vector: single bytes and whole chunks of the shadow.
PLACES = {
    "shared word": "st.shared.b32 [%r2], {0};",
    "shared vector": "st.shared.v4.b32 [%r2], {{{0}, {0}, {0}, {0}}};",
    "global word": "st.global.b32 [%rd2+512], {0};",
    "global vector": "st.global.v4.b32 [%rd2+512], {{{0}, {0}, {0}, {0}}};",
}
READS = {"shared": "ld.shared.b32 %r4, [%r2];", "global": "ld.global.b32 %r4, [%rd2+512];"}
places = pytest.mark.parametrize("place", PLACES)


def run(body, checks="ptx", **launch):
    out, source = np.zeros(256, np.uint32), np.arange(256, dtype=np.uint32)
    return run_ptx(
        START + SEVEN + body, out, source, threads=64, shared=4096, checks=checks, **launch
    )


@places
@pytest.mark.parametrize("level", ["ptx", "hardware"])
def test_two_warps_may_write_the_same_bytes(place, level):
    """The order of 7 and 7 cannot be seen: one note for the instruction, and readers after a barrier pass."""
    body = PLACES[place].format("%r5") + "bar.sync 0;" + READS[place.split()[0]]
    result = run(body, checks=level)
    assert [note.check for note in result.notes] == ["equal_writes"]
    assert result.notes[0].count("PTX line") == 2, "both writes are named"


@places
def test_different_bytes_are_a_race(place):
    with pytest.raises(RaceError, match="nothing orders a write"):
        run(PLACES[place].format("%r1"))


@places
def test_one_that_reads_between_is_a_race(place):
    """Warp 0 reads its 7 while warp 1 writes another one."""
    with pytest.raises(RaceError, match="which read it"):
        run(PLACES[place].format("%r5") + f"@%p1 {READS[place.split()[0]]}")


@places
def test_the_write_that_was_replaced_is_not_forgotten(place):
    """Warp 1 wrote last; what it writes next differs, and comes after its own 7, but not after that of warp 0."""
    write = PLACES[place]
    with pytest.raises(RaceError, match="the access of warp 0, which wrote it"):
        run(write.format("%r5") + f"@!%p1 {write.format('%r1')}")


def test_clusters_may_write_the_same_bytes():
    """Three clusters raise one flag in global memory, one after the other here, at any time on a chip."""
    write = PLACES["global word"]
    assert len(run(write.format("%r5"), grid=(3, 1, 1)).notes) == 1
    with pytest.raises(RaceError, match="in another cluster"):
        run("mov.u32 %r6, %ctaid.x;" + write.format("%r6"), grid=(3, 1, 1))


def test_a_copy_is_no_equal_write():
    """The same bytes by a bulk copy that nothing orders: a race, whatever the bytes."""
    body = """
        @%p2 mbarrier.init.shared.b64 [%r2+1024], 1;
        @%p2 fence.mbarrier_init.release.cluster; bar.sync 0;
        @%p2 mbarrier.arrive.expect_tx.shared.b64 _, [%r2+1024], 16;
        @%p2 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd2], 16, [%r2+1024];
        bar.sync 0;
        @!%p1 ld.global.b32 %r5, [%rd2];
        @!%p1 st.shared.b32 [%r2], %r5;
    """
    with pytest.raises(RaceError):
        run(body)


def test_the_note_can_be_made_an_error():
    with pytest.raises(BarrierError, match="the same bytes to the same place"):
        run(PLACES["shared word"].format("%r5"), checks=("ptx", "equal_writes"))
