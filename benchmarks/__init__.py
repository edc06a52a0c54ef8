"""Measurements: programs to run by hand, and the modules that the tests share with them."""
