"""The text of a report: two unordered accesses, their warps, and what would order them.

race on shared offset 0x2400 (dynamic +0x2000, kv[1]): TMA load of 16384 bytes writes it, and nothing orders
that after the earlier read by an MMA (operand B)
  CTA (3, 0, 0)
  warp 13 (load)
  PTX line 812: cp.async.bulk.tensor...
  Python line load.py:88
  the earlier access, read by an MMA (operand B):
  ...
"""

from dataclasses import dataclass

from cute_fa4.emulator.checks.scopes import CLUSTER, CTA, GPU
from cute_fa4.emulator.ptx.syntax import location_lines


@dataclass(frozen=True, slots=True)
class Party:
    """A warp, without its registers."""

    cta: tuple | str  # words for a grid that has ended
    rank: int
    cluster_size: int
    warp: int | str
    role: str
    cluster: tuple = ()

    @classmethod
    def of(cls, warp):
        cta = warp.cta
        return cls(cta.id, cta.rank, cta.cluster.size, warp.index, warp.role, cta.cluster.id)

    def distance(self, other):
        """The narrowest scope (checks/scopes.py) that reaches from here to another warp."""
        if self.cta == other.cta:
            return CTA
        return CLUSTER if self.cluster == other.cluster else GPU


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """An access in a report: its thread, instruction and kind.

    strong  1 + its scope if atomic, volatile, or with a memory-order qualifier: needs no order with its kind; else 0
    """

    party: Party
    ins: object
    what: str
    strong: int = 0

    def where(self, indent="  "):
        """The indented lines of a message: CTA, warp, PTX line, Python line."""
        party, ins = self.party, self.ins
        cluster = f", rank {party.rank} of its cluster" if party.cluster_size > 1 else ""
        lines = [f"CTA {party.cta}{cluster}"]
        lines.append(f"warp {party.warp}" + (f" ({party.role})" if party.role else ""))
        if ins is not None:
            lines += location_lines(ins)
        return "\n".join(indent + line for line in lines)


def report(headline, access, earlier):
    """The whole message: headline, this access, the earlier access."""
    return (
        f"{headline}\n  this access, {access.what}:\n{access.where('    ')}\n"
        f"  the earlier access, {earlier.what}:\n{earlier.where('    ')}"
    )
