"""Loops of the warps that families share (load, MMA, softmax, correction), and the hooks an order of products fills."""
