"""What the roles ask of an order of the products: hooks that an order file of a family fills in.

    hook            called by     when                                  P over S               P beside S
    scores_read     softmax       the row's scores are in registers     -                      raises s_free
    may_write_p     softmax       before the factor and P are written   -                      waits for pv_done
    o_complete      correction    before O is rescaled                  -                      waits for pv_done
    sum_early       softmax       (a choice)                            False                  True

Python resolves a hook while it traces, so one that does nothing leaves nothing in the code. (An order
is a dataclass without fields because the compiler carries what is called inside a loop through the loop.)
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Order:
    """P stored over S: the commit behind s_ready covers everything that the others would wait for."""

    sum_early: ClassVar[bool] = False
    """Whether the row sum is taken between the exponentials. Where softmax and P V wait for each other, P must be there
    soon and the sum comes last; where they do not, it fills the gaps."""

    def scores_read(self, events, i):
        """The scores of query tile i are in registers."""

    def may_write_p(self, events, i, phase):
        """Wait until the last factor and the last P of query tile i have been read. phase: of this key tile."""

    def o_complete(self, events, i, phase):
        """Wait until O_i has all products of the key tiles before. phase: of the tile before this one."""
