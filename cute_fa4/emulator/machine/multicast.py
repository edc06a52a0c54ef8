"""Multimem addresses: a range that maps to several tensors of one size, like the memories of several GPUs.

    multimem address  0 ......... n
    tensor 0          0 ......... n        multimem.ld_reduce   combines the values of all of them
    tensor 1          0 ......... n        multimem.st, .red    write, or combine with, all of them

Only multimem instructions may use the range. The tensors are ordinary memory at their own addresses. PTX ISA,
"Multimem addresses".
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Multicast:
    """A range of multimem addresses; replicas: addresses of the tensors; keep: objects that must stay alive."""

    start: int
    nbytes: int
    replicas: tuple
    keep: object = None

    def addresses(self, address, nbytes):
        """Addresses in each tensor of nbytes at a multimem address; None if they are not all in this range."""
        offset = address - self.start
        if offset < 0 or offset + nbytes > self.nbytes:
            return None
        return [replica + offset for replica in self.replicas]
