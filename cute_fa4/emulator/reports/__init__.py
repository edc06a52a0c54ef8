"""Reports of a run: traces, coverage, annotated listings, comparisons."""
