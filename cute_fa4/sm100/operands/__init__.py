"""What TMA and the tensor core are given: views of Q, K, V and O, and the K and V buffer of the ring."""
