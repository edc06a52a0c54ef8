"""Kernels compiled for Blackwell, run on a Hopper GPU: software replaces the instructions that Hopper lacks.

    compile for sm_100a -> PTX -> rewrite.py -> PTX for sm_90a -> ptxas, nvlink with tcgen05.cu -> NAME.so

    python -m cute_fa4 hopper build --out DIR      anywhere with nvcc (extra `hopper`)
    python -m cute_fa4 hopper check DIR            on the machine with the GPU

This shows whether a kernel computes right results and whether it hangs, with the real asynchrony of TMA, mbarriers,
clusters and warps. It shows nothing about speed, or about the order of tcgen05 operations on a Blackwell GPU.

    rewrite.py   ptx_text.py    the PTX, instruction by instruction
    in_software.py              instructions that become calls of tcgen05.cu
    in_steps.py  ptx_blocks.py  instructions that become several others; helpers of both
    tcgen05.cu                  tensor memory, MMAs, claims
    runtime.c                   the layer between host code and driver, below aot/cuda_runtime.c
    build.py     toolkit.py     any kernel of the CuTe DSL -> NAME.so
    load.py                     NAME.so -> the attention functions, on compute capability 9.0
    variant.py   cases.py       variants and problems
    draw.py      calls.py       their tensors, and their calls
    check.py                    the checks
    gradient_cases.py  gradients.py    calls that need gradients: their problems, and the checks
    guarded.py                  memory between unmapped pages
    foreign.py                  flash-attn-4's kernels, as a test of this software
    driver.py                   the host library of exported kernels on a real driver, one process per case
    driver_cases.py             the cases
    driver_calls.py             helpers of the cases
    run.py       report.py      runs everything; results -> tables
"""
