"""Functions of a score, traced: what they compute as data, their key, and the code that a kernel makes of them."""
