"""A cycle model of SM100 attention kernels: machine code in, modelled cycles and TFLOPS out.

control_codes.py    cubin -> stall count, yield, scoreboards of every instruction
constants.py        rates, latencies and run conditions, each with its source
trace.py            emulator run -> what each warp did with barriers, tensor core, TMA, in order
kernels.py          ours and flash-attn-4's -> cubin, PTX, traces (cached)
align.py            SASS control flow + trace -> the path of each warp through the machine code
machine.py          paths -> cycles: schedulers, pipes, scoreboards, barriers, tensor core, TMA
grid.py             cycles of a CTA -> time of a launch: tile order, waves, persistence, clock
calibration.py      published rows, the fit, its error
report.py           tables, JSON, the timeline picture

Nothing here is measured. Every number is modelled from machine code and from the constants.
"""
