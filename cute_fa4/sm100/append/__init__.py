"""The append kernel: new rows of K and V into the pages of a cache; no tensor core."""
