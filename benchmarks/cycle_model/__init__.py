"""A cycle model of SM100 attention kernels: from machine code to modeled cycles and TFLOPS.

The model of one kernel, from its machine code and an emulator run to cycles, is cute_fa4/emulator/model/. This folder
has the kernels and problems to compare with it:

workloads.py        the small problems that are traced; problems.py: the large problems that are modeled
kernels.py          ours and flash-attn-4's -> cubin, PTX, traces; cache.py caches them
schedules.py        the order of work tiles, from the kernel's own tile scheduler
grid.py             cycles of a CTA -> time of a launch: waves, persistence, clock
calibration.py      published rows, the fit, its error
eight_bits.py       8-bit tensors compared with flash-attn-4's FP8 kernel
four_bits.py        what 4-bit q and k could gain over 8 bits
report.py           tables, JSON; timeline.py: pictures of the steady state; plots.py: plots of the tables
pairs.py            CTA pairs compared with single CTAs, and the rule of calls; depths.py: head dims

hopper.py           the same method on a GPU where time can be measured (../hopper_check.py)

Only the constants of hopper.py are measured here. Every other number is modeled from machine code and from
constants of others.
"""
