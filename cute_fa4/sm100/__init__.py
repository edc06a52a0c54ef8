"""The SM100 kernels: a problem, a family that runs it, and the parts that families share.

Read mha2q/kernel.py first, then mha1q/kernel.py.
"""
