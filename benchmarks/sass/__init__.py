"""Reading the machine code (SASS) of a cubin: loops and their cost. Below it: cute_fa4/emulator/model/.

cost.py             loops -> softmax, MMA and correction loop, instructions per tile, spills
our_kernel.py       configuration -> cubin of cute_fa4
flash_attn_4.py     configuration -> cubin of flash-attn-4, in a separate process
"""
