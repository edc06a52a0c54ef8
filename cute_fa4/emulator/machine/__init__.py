"""The state of the emulated machine: warps, memories, barriers, operations in flight."""
