"""Decode in the cycle model: a few queries a sequence against a long cache, whose time is that of reading it.

problems.py    calls of decode, their bytes, what others have published for them
variants.py    flash-attn-4's kernels, and which small launches are emulated
call.py        what a public call of ours chooses: kernel, number of parts, what merges them
our_decode.py  ours -> machine code and traces; their_decode.py the same of flash-attn-4
kernels.py     both, kept in the cache -> cycles of a CTA at several latencies of memory
memory.py      what a chip's memory gives for so many bytes in flight
launch.py      CTAs -> time of a launch, all of them sharing the memory
time.py        launches of a call -> its time, and what binds it
report.py      tables of docs/performance/decode.md; latent.py has that of latent caches
check.py       the same arithmetic against what an H200 measured (../../hopper_decode.cu)
"""
