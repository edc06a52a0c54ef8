"""One call of the public functions, from its arguments to the launch: checks, choices, plans that are kept, strides."""
