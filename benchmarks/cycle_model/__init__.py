"""A cycle model of SM100 attention kernels: machine code in, modelled cycles and TFLOPS out.

control_codes.py    cubin -> stall count, yield, scoreboards of every instruction
constants.py        rates, latencies and run conditions, each with its source
trace.py            emulator run -> what each warp did with barriers, tensor core, TMA, in order
workloads.py        which small problems are traced; problems.py: which large ones are modelled
kernels.py          ours and flash-attn-4's -> cubin, PTX, traces; cache.py keeps them
align.py            SASS control flow + trace -> the path of each warp through the machine code
machine.py          paths -> cycles: schedulers, pipes, scoreboards, barriers, tensor core, TMA
starts.py           several beginnings of a CTA, whose cycles are averaged
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
