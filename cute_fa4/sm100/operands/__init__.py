"""Operands of TMA and the tensor core: views of Q, K, V and O, and the K and V buffers of the ring."""
