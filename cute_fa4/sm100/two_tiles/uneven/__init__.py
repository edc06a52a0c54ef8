"""Masks under which the query tiles of a CTA see different key tiles: each has its own, and warpgroups take turns."""
