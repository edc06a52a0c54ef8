"""Which warp of a CTA does what, and with how many registers.

    warps   role        registers   work
    0-3     softmax 0   192         S0 -> P0
    4-7     softmax 1   192         S1 -> P1
    8-11    correction   88         rescales O0 and O1 when a row maximum moved, then stores them
    12      mma          40         one thread issues every tcgen05.mma
    13      load         40         claims blocks, one thread issues every TMA load
    14      scales       40         brings the scales of keys, where each has its own (roles/token_scales.py)
    15      idle         40         `setmaxnreg` must be executed alike by the four warps of a warpgroup; or
            values                  copies V, where rows are gathered (roles/values.py)

The kernel starts with 65,536 / 512 = 128 registers a thread; `setmaxnreg` moves them to where they are needed.
REGISTERS has the budgets of kernels whose roles do more, by what they do: those with which ptxas spilled nothing
(tests/sm100/test_stacks.py).
"""

from dataclasses import dataclass, replace

from .chip import WARP_SIZE, WARPS_PER_GROUP

OF_PAGES = 48  # registers of the load warp, at least, where keys are paged
# Of softmax, correction, and warps 12 to 15.
REGISTERS = {
    "pages": (192, 80, OF_PAGES),
    "pages, sm_103a": (184, 80, 64),  # softmax takes a row maximum with the scores
    "gathered rows": (184, 88, 56),
    "scales of keys": (192, 72, 56),
    "stream-K, scales of blocks": (168, 80, 96),
    "scales of blocks": (176, 80, 80),  # dequantizing threads hold the codes of two keys
    "scales of blocks, 64 columns": (184, 80, 64),
    "stream-K": (
        184,
        80,
        64,
    ),  # all roles compute where their share of the key tiles begins and ends
    "stream-K, scales of keys": (176, 96, 64),
    "own parts": (176, 120, 40),  # correction has sums of earlier parts on their way
    "own parts, pages": (176, 112, OF_PAGES),
}


@dataclass(frozen=True)
class WarpRoles:
    """Warp ranges and the register budget of each warpgroup (registers a thread, multiples of 8)."""

    softmax: range = range(0, 8)
    correction: range = range(8, 12)
    mma: range = range(12, 13)
    load: range = range(13, 14)
    scales: range = range(14, 15)
    idle: range = range(15, 16)
    values: range = range(0)
    softmax_registers: int = 192
    correction_registers: int = 88
    other_registers: int = 40

    @property
    def softmax_groups(self) -> int:
        """Softmax warpgroups; each has its own S, P and O and the barriers between them.

        >>> WarpRoles().softmax_groups
        2
        """
        return len(self.softmax) // WARPS_PER_GROUP

    @property
    def threads(self) -> int:
        return WARP_SIZE * self.idle.stop

    def with_values(self) -> "WarpRoles":
        """The same, with the idle warp for the copies of V.

        >>> WarpRoles().with_values().role_of(15), WarpRoles().with_values().threads
        ('values', 512)
        """
        end = self.idle.stop
        return replace(self, values=self.idle, idle=range(end, end))

    def with_registers(self, what: str) -> "WarpRoles":
        """The same, with a budget of REGISTERS, unless the roles have one of their own.

        >>> {WarpRoles().with_registers(what).registers for what in REGISTERS}
        {65536}
        """
        if self.other_registers >= OF_PAGES:
            return self
        softmax, correction, other = REGISTERS[what]
        return replace(
            self,
            softmax_registers=softmax,
            correction_registers=correction,
            other_registers=other,
        )

    def threads_of(self, role: str) -> int:
        """Threads of all warps of a role.

        >>> WarpRoles().threads_of("softmax"), WarpRoles().threads_of("mma")
        (256, 32)
        """
        return WARP_SIZE * len(getattr(self, role))

    @property
    def registers(self) -> int:
        """Registers all warps hold together after `setmaxnreg`; an SM has 65,536.

        >>> WarpRoles().registers
        65536
        """
        other = sum(map(len, (self.mma, self.load, self.scales, self.idle, self.values)))
        budget = (
            (self.softmax, self.softmax_registers),
            (self.correction, self.correction_registers),
        )
        return WARP_SIZE * (sum(len(w) * r for w, r in budget) + other * self.other_registers)

    def role_of(self, warp: int) -> str:
        """Name of the role of a warp, as it appears in messages.

        >>> [WarpRoles().role_of(w) for w in (0, 4, 11, 12, 13, 15)]
        ['softmax 0', 'softmax 1', 'correction', 'mma', 'load', 'idle']
        """
        for name in ("softmax", "correction", "mma", "load", "scales", "values", "idle"):
            if warp in getattr(self, name):
                return f"softmax {warp // WARPS_PER_GROUP}" if name == "softmax" else name
        raise ValueError(f"warp {warp}: a CTA has warps 0 to {self.idle.stop - 1}")


# For one query tile: one softmax warpgroup, then the same roles. 384 threads begin with 168 registers each.
ONE_SOFTMAX_GROUP = WarpRoles(
    softmax=range(0, 4),
    correction=range(4, 8),
    mma=range(8, 9),
    load=range(9, 10),
    scales=range(10, 11),
    idle=range(11, 12),
    softmax_registers=240,
    correction_registers=160,
    other_registers=104,
)
