"""python -m cute_fa4 bench: speed on a Blackwell GPU, beside flash-attn-4, cuDNN and FlashAttention in torch.

problems.py   what is computed: shapes, operations, bytes, random inputs
backends.py   the packages to compare: one function each, which returns a launch
timing.py     how long it takes: CUDA events, cold L2, warm clock; the only file that needs a GPU
run.py        correct first, then timed: problems x backends -> results
report.py     results -> table, JSON
command.py    the command line

A result that is wrong has no speed, and the emulator's time is never one: without a GPU that runs the kernel the
command exits with 2. Everything but the GPU's clock is tested on the CPU (tests/bench).
"""
