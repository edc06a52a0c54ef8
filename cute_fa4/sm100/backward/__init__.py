"""The backward pass: one kernel whose CTAs own queries (dQ), one whose CTAs own keys (dK, dV), no atomics."""
