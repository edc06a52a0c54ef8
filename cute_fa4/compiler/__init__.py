"""From a configuration to a compiled function: registry, compiler, arguments, labels, when it may run."""
