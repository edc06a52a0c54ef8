"""The switch of a CTA of two query tiles: work tiles with rows for one of them run the body of a single query tile."""
