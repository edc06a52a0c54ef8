"""A cycle model of one kernel on SM100: machine code and an emulator run in, modelled cycles out.

nvdisasm.py         cubin -> SASS text, registers and stack from the ELF
program.py          SASS text -> instructions, basic blocks, natural loops
control_codes.py    cubin -> stall count, yield, scoreboards of every instruction
constants.py        rates, latencies and run conditions, each with its source
trace.py            emulator run -> what each warp did with barriers, tensor core, TMA, in order
align.py            SASS control flow + trace -> the path of each warp through the machine code
uncounted.py        memory accesses that a warp executed and its path lacks
pipes.py, engines.py  what an instruction occupies; barriers, tensor core, copies
machine.py          paths -> cycles: schedulers, pipes, scoreboards, barriers, tensor core, TMA
launches.py         which launches of a program are recorded, and the names that they have
ptxas.py            PTX -> cubin, for kernels that come without one
graph.py, accounts.py  why everything happened when it did; cycles by reason
loops.py, names.py  main loop of a warp; roles, mbarriers and reasons in words
profile.py          all that for one launch, as plain numbers
report.py           profile(), the context around a program, JSON; table.py, timeline.py, page.py: how it is shown
starts.py           several beginnings of a CTA, whose cycles are averaged

Nothing here is measured. Every number is modelled from machine code and from published constants.
"""
