"""The family for scales of blocks (MXFP8): the tensor core multiplies each 32 numbers of Q and K by a power of two"""
