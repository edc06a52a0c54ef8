"""capabilities() and the questions it asks."""
