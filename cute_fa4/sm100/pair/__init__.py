"""Parts common to all kernel families in which two CTAs share an MMA."""
