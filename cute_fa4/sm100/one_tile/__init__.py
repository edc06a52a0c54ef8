"""The family of one query tile a CTA: even and odd key tiles side by side, merged at the end; decode."""
