"""Hooks of an order whose CTAs merge the parts of their rows' keys (work/own_parts.py).

role         difference
load         after a part the next part of the same block, without a claim (work/queue.py)
mma          none: a part is a work tile
softmax i    leaves the log-sum-exp of a part for correction, and writes none itself
correction   correction.py: adds O of a part to the sum of those before it, and stores the sum after the last
"""

from ...roles.order import Order
from ...steps.scores import row_lse
from ..p_beside_s import PBesideSCode
from ..p_crossed import PCrossedCode
from ..p_over_s import POverSCode
from . import correction


class OwnParts(Order):
    nothing_corrected = staticmethod(correction.Merged.none)
    correct_tiles = staticmethod(correction.correct_tiles)
    correct_empty = staticmethod(correction.write_empty)

    def writes_lse(self, cfg, work):
        return False

    def leave_lse(self, cfg, args, work, row, state):
        lse = row_lse(cfg, args, work, row.head, state, row.factor)
        args.splits.lse[correction.cta(), row.thread] = lse


class OverS(OwnParts, POverSCode):
    pass


class BesideS(OwnParts, PBesideSCode):
    pass


class Crossed(OwnParts, PCrossedCode):
    pass


CODE = {"p_over_s": OverS(), "p_beside_s": BesideS(), "p_crossed": Crossed()}
