"""Names for the numbers of a kernel: warps, shared-memory ranges, tensor-memory columns, mbarriers.

    KernelLabels(
        roles=((range(0, 4), "softmax 0"), (range(12, 13), "mma")),
        shared=((0, 1024, "mbarriers"), (3072, 65536, "O tile")),      # offsets from the first dynamic byte
        tmem=((0, 128, "S0"), (256, 128, "O0")),                       # first column, columns, name
        barriers=((8, "kv.full[0]", "mma", "load"),),                  # offset, name, who waits, who arrives
    )

Names are used only in messages; a kernel without labels runs in the same way. Names that are not given are found
where possible (host/traced_names.py, source_names.py): or_else() joins both.
"""

import re
from dataclasses import dataclass, replace

MBARRIER_BYTES = 8


@dataclass(frozen=True)
class BarrierLabel:
    """Name of one mbarrier and the two roles at its ends (empty strings: not known)."""

    offset: int
    name: str
    waits_role: str = ""
    raised_by_role: str = ""


@dataclass(frozen=True)
class KernelLabels:
    """Names of a kernel's warps and memory. All shared offsets count from the first dynamic byte.

    roles     (warps, name): warps is a range or any container of warp indices in the CTA
    shared    (offset, nbytes, name)
    tmem      (first column, columns, name)
    barriers  (offset, name, waits_role, raised_by_role); the two roles may be left out
    helper_files  Python files that hold shared primitives, as the ends of their paths ("sync/pipelines.py");
              a location in one of them is reported together with the last line of the role file that used it
    dynamic_bytes  shared and barriers hold for launches with so many bytes of dynamic shared memory; None: for all
    """

    roles: tuple = ()
    shared: tuple = ()
    tmem: tuple = ()
    barriers: tuple = ()
    helper_files: tuple = ()
    dynamic_bytes: int | None = None

    def or_else(self, found):
        """These labels, and those of `found` for what these do not name."""
        kinds = ("roles", "shared", "tmem", "barriers")
        return replace(self, **{kind: getattr(self, kind) + getattr(found, kind) for kind in kinds})

    def at(self, dynamic_bytes):
        """What holds in a launch with so many bytes of dynamic shared memory."""
        if self.dynamic_bytes in (None, dynamic_bytes):
            return self
        return replace(self, shared=(), barriers=())

    def role(self, warp_index):
        """Name of the role of a warp, "" if it has none."""
        for warps, name in self.roles:
            if warp_index in warps:
                return name
        return ""

    def barrier(self, offset):
        """BarrierLabel of the mbarrier at a dynamic shared offset, or None.

        An mbarrier without an entry is element i of the labelled range that contains it: "name[i]".
        """
        for entry in self.barriers:
            if entry[0] == offset:
                return BarrierLabel(*entry)
        for start, nbytes, name in self.shared:
            if start <= offset < start + nbytes and (offset - start) % MBARRIER_BYTES == 0:
                one = nbytes == MBARRIER_BYTES
                return BarrierLabel(
                    offset, name if one else f"{name}[{(offset - start) // MBARRIER_BYTES}]"
                )
        return None

    def shared_name(self, offset):
        """ "name+delta" of the labelled range that contains a dynamic shared offset, "" when none does."""
        for start, nbytes, name in self.shared:
            if start <= offset < start + nbytes:
                return name if offset == start else f"{name}+0x{offset - start:x}"
        return ""

    def tmem_name(self, column):
        """ "name[:, i]" of the labelled tensor-memory range that contains a column, "" when none does."""
        for start, columns, name in self.tmem:
            if start <= column < start + columns:
                return f"{name}[:, {column - start}]"
        return ""


NO_LABELS = KernelLabels()


_UNNAMED = (
    (
        r"mbarrier at shared 0x\w+ \(dynamic \+(0x\w+)\)",
        'barriers=(({}, "a name", "who waits", "who arrives"),)',
    ),
    (r"shared offset 0x\w+ \(dynamic \+(0x\w+)\)", 'shared=(({}, nbytes, "a name"),)'),
    (r"tensor memory (?:lane \d+, )?column (\d+)\b(?! \()", 'tmem=(({}, columns, "a name"),)'),
)


def naming_hint(text) -> str:
    """A line that explains how to name the first unnamed address of a report; "" if all have names.

    >>> print(naming_hint("race on shared offset 0x2400 (dynamic +0x2000): nothing orders").strip())
    to see a name instead of +0x2000: labels=KernelLabels(shared=((0x2000, nbytes, "a name"),))
    """
    found = [(m.start(), m[1], how) for p, how in _UNNAMED for m in [re.search(p, text)] if m]
    if not found:
        return ""
    _, place, how = min(found)
    at = f"+{place}" if place.startswith("0x") else f"column {place}"
    return f"\n  to see a name instead of {at}: labels=KernelLabels({how.format(place)})"
