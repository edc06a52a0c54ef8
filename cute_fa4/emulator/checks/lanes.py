"""Lanes of one warp against each other: use(checks=("ptx", "lanes")).

The other checks treat a warp as one actor. It executes in lockstep, so a missing __syncwarp changes nothing. PTX
orders shared-memory accesses of two lanes of a warp by bar.warp.sync, or by a barrier that both pass:

    lane 0   st.shared [x]   |               lane 0   st.shared [x]
    lane 1   ld.shared [x]   |   a race      all      bar.warp.sync -1
                                             lane 1   ld.shared [x]      ordered

The check keeps, for each byte, the last lane that wrote it and the last lane that read it, with the number of the
access. A bar.warp.sync orders everything before it. A barrier, or a wait for an mbarrier, orders what the warp had
done when it arrived there. If only some lanes arrive, they count as all lanes: the check reports no ordered
accesses, but may miss some unordered ones. It is enabled by name only, because it processes every access to shared
memory in Python.
"""

import numpy as np

from cute_fa4.emulator.ptx.errors import RaceError

_SEVERAL = 63
_LANES = 64  # of a code: number of the access * 64 + lane


class LaneAccesses:
    """Accesses of a warp's lanes to shared memory; met: number up to which they are ordered."""

    __slots__ = ("met", "of")

    def __init__(self):
        self.met, self.of = 0, {}

    def access(self, warp, shared, offsets, nbytes, write, number):
        """The executing lanes read or write an item of nbytes each, access `number`. Raises RaceError."""
        lanes = np.array(warp.lanes)
        if len(lanes) != len(offsets):
            return
        written, read = self._codes(shared)
        at = offsets[:, None] + np.arange(nbytes)
        lane, code = lanes[:, None], (number * _LANES + lanes)[:, None] + np.zeros_like(at)
        for earlier, what in ((written, "wrote"), (read, "read"))[: 1 + write]:
            found = earlier[at]
            bad = (found // _LANES > self.met) & (found % _LANES != lane)
            if bad.any():
                self._report(warp, shared, at[bad][0], code[bad][0], found[bad][0], what, write)
        column = written if write else read
        before = column[at]
        column[at] = code
        # Several lanes access the byte, together or one after another.
        mixed = (column[at] != code) | ((before // _LANES > self.met) & (before % _LANES != lane))
        column[at[mixed]] = number * _LANES + _SEVERAL

    def _codes(self, shared):
        codes = self.of.get(id(shared))
        if codes is None:
            size = len(shared.bytes)
            codes = self.of[id(shared)] = np.zeros(size, np.int64), np.zeros(size, np.int64)
        return codes

    @staticmethod
    def _report(warp, shared, offset, code, earlier, what, write):
        who = "several lanes" if earlier % _LANES == _SEVERAL else f"lane {earlier % _LANES}"
        doing = "a write to" if write else "a read of"
        warp.fault(
            f"race on shared offset {shared.describe(int(offset))} between lanes of a warp: nothing orders {doing} it "
            f"by lane {code % _LANES} after the access of {who}, which {what} it; bar.warp.sync between them does",
            RaceError,
        )
