"""Commands of python -m cute_fa4 that are more than a screen: export, aot, and what check does with loaded kernels."""
