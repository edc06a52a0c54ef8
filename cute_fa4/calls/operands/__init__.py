"""A call's tensors: one file per group, from the argument to what the launch takes."""
