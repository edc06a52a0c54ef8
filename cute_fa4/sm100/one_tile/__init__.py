"""The family of one query tile per CTA, for decode: even and odd key tiles in parallel, merged at the end."""
