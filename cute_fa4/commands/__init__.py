"""Larger commands of python -m cute_fa4: export, aot, and check with loaded kernels."""
