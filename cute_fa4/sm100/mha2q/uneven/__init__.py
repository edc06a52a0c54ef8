"""Masks under which the query tiles of a CTA see different key tiles: the second one first, and warpgroups in turn."""
