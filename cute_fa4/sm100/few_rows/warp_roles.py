"""The roles of the warps of a CTA.

    warps   role       work
    0-3     softmax    S^T -> P^T: a thread owns a key; rescales O^T, stores it at the end
    4       mma        one thread issues every tcgen05.mma
    5       load       claims blocks, one thread issues every TMA load
    6       values     where rows are gathered: loads those of V (roles/values.py)
                       of a latent cache 6 and 7: a share of all rows (latent/gathers.py)

224 threads could have 65,536 / 224 = 292 registers each, more than the 255 that an instruction can name, so no
registers have to be moved between the roles.
"""

from dataclasses import dataclass, replace

from ..blueprint.chip import WARP_SIZE

GATHER_WARPS = 2  # that share the rows of a latent cache with the load warp (latent/gathers.py)


@dataclass(frozen=True)
class SwappedWarpRoles:
    """Warp ranges."""

    softmax: range = range(0, 4)
    mma: range = range(4, 5)
    load: range = range(5, 6)
    values: range = range(0)

    @property
    def threads(self) -> int:
        return WARP_SIZE * max(self.load.stop, self.values.stop)

    def with_values(self, number: int = 1) -> "SwappedWarpRoles":
        """The same roles plus a dedicated warp for the copies of V; of a latent cache several for its rows.

        >>> SwappedWarpRoles().with_values().threads
        224
        """
        return replace(self, values=range(self.load.stop, self.load.stop + number))

    def threads_of(self, role: str) -> int:
        """Threads of all warps of a role.

        >>> SwappedWarpRoles().threads_of("softmax"), SwappedWarpRoles().threads_of("mma")
        (128, 32)
        """
        return WARP_SIZE * len(getattr(self, role))

    def role_of(self, warp: int) -> str:
        """Name of the role of a warp, as it appears in messages.

        >>> [SwappedWarpRoles().with_values().role_of(w) for w in (0, 3, 4, 5, 6)]
        ['softmax', 'softmax', 'mma', 'load', 'values']
        """
        for name in ("softmax", "mma", "load", "values"):
            if warp in getattr(self, name):
                return name
        raise ValueError(f"warp {warp}: a CTA has warps 0 to {self.threads // WARP_SIZE - 1}")
