"""The family for rotary columns of 8 bits in a tensor of their own, K of 16: two warps widen them in their slot."""
