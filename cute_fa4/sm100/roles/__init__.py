"""Warp loops that families share (load, MMA, softmax, correction), and the hooks that an order of products fills in."""
