"""Reading the machine code (SASS) of a cubin: disassembly, control flow, loops, cost.

nvdisasm.py         cubin -> SASS text, registers and stack from the ELF
program.py          SASS text -> instructions, basic blocks, natural loops
cost.py             loops -> softmax, MMA and correction loop, instructions per tile, spills
our_kernel.py       configuration -> cubin of cute_fa4
flash_attn_4.py     configuration -> cubin of flash-attn-4, in a process of its own
"""
