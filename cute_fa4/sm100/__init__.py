"""The SM100 forward kernel: one class that composes one file for each warp role. Read mha2q/kernel.py first."""
