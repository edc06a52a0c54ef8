"""python -m cute_fa4 bench: speed on a Blackwell GPU, compared with flash-attn-4, FROST, cuDNN and torch.

problems.py   problems: shapes, operations, bytes, random inputs
backends.py   the packages to compare: one function each, which returns a launch
timing.py     timing: CUDA events, cold L2, warm clock; the only file that needs a GPU
run.py        checks results, then times them: problems x backends -> results
report.py     results -> table, JSON
command.py    the command line

A wrong result has no speed, and the emulator's time is never reported as one: without a GPU that runs the kernel
the command exits with 2. Everything but the GPU timing is tested on the CPU (tests/bench).
"""
