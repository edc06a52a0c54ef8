"""Problems of gradients that `hopper check` runs (gradients.py)."""

from __future__ import annotations

from dataclasses import dataclass

CAUSAL = (None, 0)


@dataclass(frozen=True)
class Problem:
    """Sizes of a call.

    queries, keys  of each sequence; dense calls have sequences of one length
    heads          of q, and of k and v
    depths         head dims of q and k, and of v
    packed         the sequences share one dimension, with offsets
    lse            the log-sum-exp has a gradient, too
    sink           a sink for each query head, whose gradient is checked, too; dense calls only
    softcap        0: off
    added          dq, dk and dv are added to float32 sums; causal calls without sinks
    blocks         sizes of listed blocks: a third of them is full, of another third a function hides keys; no window
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    heads: tuple[int, int] = (4, 2)
    depths: tuple[int, int] = (128, 128)
    dtype: str = "bf16"
    window: tuple[int | None, int | None] = (None, None)
    packed: bool = False
    lse: bool = False
    sink: bool = False
    softcap: float = 0.0
    added: bool = False
    blocks: tuple[int, int] | None = None

    @property
    def title(self) -> str:
        """
        >>> Problem((300,), (500,), window=CAUSAL).title
        'gradients d=128/128 bf16, heads 4/2, window (None, 0), queries (300,), keys (500,)'
        """
        parts = [f"gradients d={self.depths[0]}/{self.depths[1]} {self.dtype}"]
        parts += ["heads {}/{}".format(*self.heads), f"window {self.window}"]
        parts += ["packed"] * self.packed + ["with lse"] * self.lse + ["sinks"] * self.sink
        parts += [f"soft cap {self.softcap:g}"] * bool(self.softcap)
        parts += ["added to sums"] * self.added
        parts += ["lists of {} x {}".format(*self.blocks)] if self.blocks else []
        return ", ".join((*parts, f"queries {self.queries}", f"keys {self.keys}"))


def dense(batch: int, queries: int, keys: int, **options) -> Problem:
    return Problem((queries,) * batch, (keys,) * batch, **options)


PROBLEMS = (
    # Borders of tiles, more queries than keys and more keys than queries, one of each.
    *(dense(*sizes) for sizes in ((2, 300, 270), (1, 256, 1024), (1, 1000, 200), (1, 1, 1))),
    *(dense(*sizes, window=CAUSAL) for sizes in ((2, 300, 300), (1, 130, 700), (1, 700, 130))),
    dense(1, 600, 600, window=(127, 0)),
    dense(1, 500, 700, window=(100, 30)),
    dense(1, 400, 400, window=(250, -40)),
    dense(2, 300, 300, window=CAUSAL, dtype="fp16"),
    dense(2, 300, 300, window=CAUSAL, depths=(64, 64), heads=(8, 1)),
    dense(2, 200, 330, depths=(40, 72)),
    dense(1, 300, 300, depths=(8, 8), heads=(2, 2)),
    dense(1, 300, 400, window=CAUSAL, depths=(64, 128)),
    dense(2, 300, 350, window=CAUSAL, lse=True),
    dense(2, 300, 300, window=CAUSAL, softcap=5.0),
    dense(2, 200, 330, window=(127, 0), sink=True, lse=True, depths=(64, 64), heads=(8, 1)),
    # S and dP in one place, with a ring of one slot: a long one, and sequences of no rows.
    dense(2, 300, 300, window=CAUSAL, depths=(192, 128)),
    dense(1, 1000, 900, depths=(192, 128), heads=(4, 1), lse=True),
    Problem((300, 1, 0, 64, 500), (300, 5, 10, 200, 900), packed=True, depths=(192, 128)),
    # Tiles of 64 rows of the other side, dK and dV apart: short and long, sequences of no rows, float32 sums.
    dense(2, 300, 300, window=CAUSAL, depths=(256, 256)),
    dense(1, 1000, 900, depths=(200, 136), heads=(4, 1), lse=True),
    Problem((300, 1, 0, 64, 500), (300, 5, 10, 200, 900), packed=True, depths=(256, 256)),
    dense(1, 200, 330, window=CAUSAL, depths=(64, 256), added=True),
    # About 400 CTAs of each kernel on 132 multiprocessors, and long rings.
    dense(4, 1025, 1500, heads=(12, 3), window=CAUSAL),
    dense(1, 4096, 4096, heads=(2, 1)),
    dense(1, 8192, 8192, heads=(2, 2), window=CAUSAL, depths=(64, 64)),
    Problem((300, 1, 0, 64, 500), (300, 5, 10, 200, 900), packed=True, window=CAUSAL),
    Problem((0, 7, 300), (4, 0, 300), packed=True, lse=True),
    Problem(tuple(i * i * 7 % 301 for i in range(32)), tuple(i * i * 11 % 501 for i in range(32)), packed=True),
    # TMA adds chunks of full head dims, and of head dims that end within one.
    dense(2, 300, 350, window=CAUSAL, added=True, lse=True),
    Problem((300, 1, 0, 64, 500), (300, 5, 10, 200, 900), packed=True, window=CAUSAL, depths=(136, 72), added=True),
    # Lists of each head: of one tile and of two a block, empty ones, and long ones.
    dense(2, 300, 700, blocks=(128, 128)),
    dense(1, 4000, 4096, heads=(4, 1), depths=(64, 128), blocks=(256, 256), lse=True),
    Problem((300, 1, 0, 64, 500), (300, 5, 10, 200, 900), packed=True, blocks=(128, 256)),
)  # fmt: skip
