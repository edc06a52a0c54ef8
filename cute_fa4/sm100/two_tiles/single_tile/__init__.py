"""Work tiles with rows for one of a CTA's two query tiles: they run the body of a kernel with a single query tile."""
