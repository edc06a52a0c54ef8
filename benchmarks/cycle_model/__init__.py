"""A cycle model of SM100 attention kernels: machine code in, modelled cycles and TFLOPS out.

The model of one kernel, from its machine code and an emulator run to cycles, is cute_fa4/emulator/model/. Here stand
the kernels and problems that are compared with it:

workloads.py        which small problems are traced; problems.py: which large ones are modelled
kernels.py          ours and flash-attn-4's -> cubin, PTX, traces; cache.py keeps them
schedules.py        which work tile comes when; of ours the kernel's own tile scheduler says it
grid.py             cycles of a CTA -> time of a launch: waves, persistence, clock
calibration.py      published rows, the fit, its error
eight_bits.py       8-bit tensors beside flash-attn-4's FP8 kernel
report.py           tables, JSON; timeline.py: pictures of the steady state; plots.py: plots of the tables
pairs.py            pairs of CTAs beside CTAs alone, and the rule of calls; depths.py: head dims

hopper.py           the same method for a chip where time can be measured (../hopper_check.py)

Nothing here is measured but constants of hopper.py. Every other number is modelled from machine code
and from constants of others.
"""
