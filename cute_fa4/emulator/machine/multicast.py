"""Multimem addresses: a range that leads to several tensors of one size at once, as to the memories of several GPUs.

    multimem address  0 ......... n
    tensor 0          0 ......... n        multimem.ld_reduce   combines what all of them have there
    tensor 1          0 ......... n        multimem.st, .red    write, or combine with, all of them

Only multimem instructions may use it. The tensors are ordinary memory under their own addresses. PTX ISA, "Multimem
addresses".
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Multicast:
    """A range of multimem addresses; replicas: addresses of the tensors it leads to; keep: what must stay alive."""

    start: int
    nbytes: int
    replicas: tuple
    keep: object = None

    def addresses(self, address, nbytes):
        """Where nbytes from a multimem address on lie in each tensor; None when they are not all in this range."""
        offset = address - self.start
        if offset < 0 or offset + nbytes > self.nbytes:
            return None
        return [replica + offset for replica in self.replicas]
