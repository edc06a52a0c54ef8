"""Kernels compiled for Blackwell, run on a Hopper GPU: what Hopper lacks is done in software, the rest by the chip.

    compile for sm_100a -> PTX -> rewrite.py -> PTX for sm_90a -> ptxas, nvlink with tcgen05.cu -> NAME.so

    python -m cute_fa4 hopper build --out DIR      anywhere with nvcc (extra `hopper`)
    python -m cute_fa4 hopper check DIR            on the machine with the GPU

It says whether a kernel computes the right thing and whether it hangs, with TMA, mbarriers, clusters and warps as real
asynchronous hardware has them. It says nothing about speed, and nothing about how a Blackwell GPU orders tcgen05.

    rewrite.py   ptx_text.py    the PTX, instruction by instruction
    in_software.py              those that become calls of tcgen05.cu
    in_steps.py  ptx_blocks.py  those that become several others; what either writes
    tcgen05.cu                  tensor memory, MMAs, claims
    runtime.c                   what stands between host code and driver; behind aot/cuda_runtime.c
    build.py     toolkit.py     any kernel of the CuTe DSL -> NAME.so
    load.py                     NAME.so -> the attention functions, on compute capability 9.0
    variant.py   cases.py       what is run
    draw.py      calls.py       its tensors, and the calls of them
    check.py                    what must hold
    gradient_cases.py  gradients.py    calls that want gradients: their problems; what must hold
    guarded.py                  memory whose neighbours are not mapped
    foreign.py                  flash-attn-4's kernels, to see that all of this is right
    driver.py                   the host library of exported kernels on a real driver, a process for each case
    driver_cases.py             the cases
    driver_calls.py             what they are made of
    run.py       report.py      everything in turn; results -> tables
"""
