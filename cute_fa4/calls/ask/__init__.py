"""capabilities(): which calls run, and why the others do not."""
