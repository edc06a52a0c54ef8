"""TMA: descriptors for Q, K, V and O, and the bulk copies that use them."""
