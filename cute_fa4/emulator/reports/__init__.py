"""What a run shows: traces, coverage, annotated listings, comparisons."""
