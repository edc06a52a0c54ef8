"""Scales: which of q, k, v and out are multiplied by scales, and what one scale belongs to.

    Scales(q="row", k="row", v="head")

    "head"     a float32 for each sequence and key/value head
    "row"      a float32 for each row: query and head, or key and head
    "block"    a power of two for each block of a row (MXFP8): the tensor core multiplies by it

Names of kernels, options of configurations, catalogues and manifests spell them with one letter for each tensor, in the
order in which a kernel takes them: "QKv" is the example above.

           q    k    v    out
    head   q    k    v    o
    row    Q    K    V
    block  x    y
"""

from __future__ import annotations

from dataclasses import dataclass, replace

HEAD, ROW, BLOCK = "head", "row", "block"
SPELLING = {
    ("q", HEAD): "q", ("q", ROW): "Q", ("q", BLOCK): "x",
    ("k", HEAD): "k", ("k", ROW): "K", ("k", BLOCK): "y",
    ("v", HEAD): "v", ("v", ROW): "V",
    ("o", HEAD): "o",
}  # fmt: skip
TENSORS = tuple(dict.fromkeys(tensor for tensor, _ in SPELLING))
LETTERS = "".join(SPELLING.values())
_MEANING = {letter: said for said, letter in SPELLING.items()}


@dataclass(frozen=True, repr=False)
class Scales:
    """Scales of each tensor: "head", "row", "block" or None (no scales). repr gives the letters, which options take.

    >>> Scales(q="row", k="row", v="head").letters, Scales.of("xyv").k
    ('QKv', 'block')
    """

    q: str | None = None
    k: str | None = None
    v: str | None = None
    o: str | None = None

    def __post_init__(self):
        for tensor in TENSORS:
            kind = getattr(self, tensor)
            if kind is not None and (tensor, kind) not in SPELLING:
                accepted = (repr(of) for name, of in SPELLING if name == tensor)
                raise ValueError(
                    f"{tensor}={kind!r}: a kind of scales; use None or {' or '.join(accepted)}"
                )

    @classmethod
    def of(cls, said: str | Scales) -> Scales:
        """Scales as they are, or of their letters. ValueError for letters that mean nothing."""
        if isinstance(said, Scales):
            return said
        meant = [_MEANING.get(letter) for letter in said]
        if None in meant or sorted(said, key=LETTERS.index) != list(said):
            raise ValueError(
                f"descales={said!r}: use letters of {LETTERS!r}, each once and in this order"
            )
        if len(dict(meant)) < len(meant):
            raise ValueError(
                f"descales={said!r}: a tensor has scales of one kind, and its letter stands once: use the small one, "
                "the large one, or x of Q and y of K"
            )
        return cls(**dict(meant))

    @property
    def given(self) -> tuple[tuple[str, str], ...]:
        """(tensor, kind) of those that there are, in the order in which a kernel takes them.

        >>> Scales.of("Kv").given
        (('k', 'row'), ('v', 'head'))
        """
        each = ((tensor, getattr(self, tensor)) for tensor in TENSORS)
        return tuple((tensor, kind) for tensor, kind in each if kind is not None)

    @property
    def letters(self) -> str:
        return "".join(SPELLING[said] for said in self.given)

    @property
    def of_blocks(self) -> bool:
        """Whether Q or K has scales of blocks."""
        return BLOCK in (self.q, self.k)

    @property
    def of_keys(self) -> tuple[str, ...]:
        """Which of k and v have a scale for each key and head."""
        return tuple(tensor for tensor in ("k", "v") if getattr(self, tensor) == ROW)

    def place(self, tensor: str) -> int:
        """Of a tensor's scales among those that a kernel takes."""
        return [name for name, _ in self.given].index(tensor)

    def only(self, *tensors: str) -> Scales:
        """Those of some tensors.

        >>> Scales.of("qkvo").only("k", "v")
        'kv'
        """
        return replace(self, **{name: None for name in TENSORS if name not in tensors})

    def __bool__(self) -> bool:
        return bool(self.given)

    def __repr__(self) -> str:
        return repr(self.letters)
