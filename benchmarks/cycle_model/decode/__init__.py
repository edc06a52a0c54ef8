"""Decode in the cycle model: a few queries per sequence over a long cache, bound by reading it.

problems.py    decode calls, their bytes, published times
variants.py    flash-attn-4's kernels, and the small launches that are emulated
call.py        choices of a public call: kernel, number of parts, merge
our_decode.py  ours -> machine code and traces; their_decode.py: the same for flash-attn-4
kernels.py     both, kept in the cache -> cycles of a CTA at several latencies of memory
memory.py      memory bandwidth as a function of bytes in flight
launch.py      CTAs -> time of a launch; they share the memory
time.py        launches of a call -> its time, and its bound
report.py      tables of docs/performance/decode.md; latent.py has that of latent caches
check.py       the same formulas against measurements on an H200 (../../hopper_decode.cu)
"""
