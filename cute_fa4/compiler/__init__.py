"""From a configuration to a compiled function: the registry of functions, the compiler's arguments, when it may run."""
