"""What `hopper check` runs: variants of the kernel, and problems for each.

Variant   one call of the public functions: depth, dtype, layout of keys, mask, ...      decides the kernel
Problem   queries and keys of each sequence, heads                                      decides the launch
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import torch

from cute_fa4.calls.latent_rows import LATENT, numbers_of, rows_from
from cute_fa4.sm100.choose_config import is_wide

CANARY = -77.0


@dataclass(frozen=True)
class Variant:
    """keys: "dense", "packed" (queries too), "lengths" (dense, seqused_k), "pages" (queries packed) or "latent" (pages
    whose first 512 columns are the values, too).

    head_dim_v   0: as head_dim
    pair         CTAs in pairs (CUTE_FA4_PAIR=on)
    group   query heads of a key head; pack_gqa: they share tiles of rows
    window  (left, right) positions; chunk  positions of a block, of which a query sees its own
    num_splits, tokens_per_split   as the public functions take them
    decode  its problems have a few queries for each sequence
    cache   dtype of K and V where it is not Q's, for calls of few rows, which widen it; with scales between 0.5 and 2
            of each sequence and key head. "rows": a latent cache of 656 bytes a row
    of_tokens   K and V of 8 bits, dense or in pages, have a scale for each token and head
    rope    last columns of K that all heads share, passed as k_rope, 0 for none; rope_dtype where it is not K's
    out     dtype of the output where it is not the one of OUT_DTYPES; with o_scale
    listed  of a latent cache: keys that each query lists as `indices`, 0 for none
    """

    head_dim: int = 128
    dtype: str = "bf16"
    causal: bool = True
    keys: str = "dense"
    page_size: int = 0
    heads_first: bool = False
    window: tuple[int, int] | None = None
    chunk: int = 0
    softcap: float = 0.0
    sink: bool = False
    group: int = 2
    pack_gqa: bool = False
    num_splits: int = 1
    tokens_per_split: int | None = None
    decode: bool = False
    head_dim_v: int = 0
    pair: bool = False
    cache: str = ""
    out: str = ""
    listed: int = 0
    rope: int = 0
    rope_dtype: str = ""
    of_tokens: bool = False

    def dtype_of(self, of: str) -> torch.dtype:
        """Of "q", "k", "v" or "out"."""
        if of == "out":
            return DTYPES[self.out] if self.out else OUT_DTYPES[self.dtype]
        return DTYPES[self.cache if self.cache in DTYPES and of in "kv" else self.dtype]

    def depth(self, of: str) -> int:
        """Of "q", "k", "v" or "out"."""
        return self.head_dim_v or self.head_dim if of in ("v", "out") else self.head_dim

    @property
    def title(self) -> str:
        """
        >>> Variant(causal=False, keys="pages", page_size=16, window=(127, 0)).title
        'window (127, 0), pages of 16'
        """
        masks = [f"{'causal ' * self.causal}chunks of {self.chunk}"] if self.chunk else []
        masks += [f"window {self.window}"] if self.window else []
        masks += [] if masks else ["causal" if self.causal else "full"]
        parts = masks + ["packed Q and K"] * (self.keys == "packed")
        parts += ["lengths"] * (self.keys == "lengths")
        parts += [f"V of {self.head_dim_v}"] * bool(self.head_dim_v and self.keys != "latent")
        parts += [f"latent pages of {self.page_size}"] * (self.keys == "latent")
        parts += [f"pages of {self.page_size}"] * (self.keys == "pages")
        parts += ["heads first"] * self.heads_first + ["sinks"] * self.sink
        parts += [f"soft cap {self.softcap:g}"] * bool(self.softcap)
        parts += [f"groups of {self.group}"] * (self.group != 2)
        parts += ["sharing tiles"] * self.pack_gqa
        parts += ["shared keys"] * (self.num_splits == 0)
        parts += [f"{self.num_splits} parts of the keys"] * (self.num_splits > 1)
        parts += [f"parts of {self.tokens_per_split} keys"] * bool(self.tokens_per_split)
        parts += [" ".join(("K rope of", str(self.rope), self.rope_dtype)).strip()] * bool(
            self.rope
        )
        parts += ["scales of tokens"] * self.of_tokens
        parts += [f"{self.cache} cache"] * bool(self.cache) + [f"{self.out} out"] * bool(self.out)
        parts += [f"{self.listed} listed keys"] * bool(self.listed)
        return ", ".join(["pairs"] * self.pair + ["decode"] * self.decode + parts)

    @property
    def name(self) -> str:
        """
        >>> Variant(64, "fp16").name
        'd=64 fp16 causal'
        """
        return f"d={self.head_dim} {self.dtype} {self.title}"


@dataclass(frozen=True)
class Problem:
    """Sequences of a call. Dense variants take the first sequence's length for all."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    heads: int = 2

    @property
    def title(self) -> str:
        """
        >>> Problem((300,) * 2, (5, 700)).title
        '2 x 300, 5 to 700 keys'
        """
        batch, q, k = len(self.queries), self.queries, self.keys
        rows = f"{min(q)} to {max(q)}" if min(q) < max(q) else f"{q[0]}"
        keys = f"{min(k)} to {max(k)}" if min(k) < max(k) else f"{k[0]}"
        return f"{batch} x {rows}, {keys} keys"


def dense(batch: int, queries: int, keys: int, heads: int = 2) -> Problem:
    return Problem((queries,) * batch, (keys,) * batch, heads)


def decode(**options) -> Variant:
    """Eight heads that share a tile, unless told otherwise, in pages."""
    return Variant(
        **dict(keys="pages", page_size=16, group=8, pack_gqa=True, decode=True) | options
    )


def latent(**options) -> Variant:
    """16 heads over a latent cache of DeepSeek's sizes, keys shared out, unless told otherwise."""
    sizes = dict(head_dim=576, head_dim_v=512, keys="latent", page_size=64)
    return Variant(**sizes | dict(group=16, num_splits=0, decode=True) | options)


def pair(head_dim: int = 128, **options) -> Variant:
    return Variant(head_dim, pair=True, **options)


VARIANTS = (
    *(Variant(depth, dtype, causal) for depth in (64, 128) for dtype in ("bf16", "fp16") for causal in (False, True)),
    *(Variant(depth) for depth in (72, 80, 96)),
    *(Variant(depth, causal=causal, keys="packed") for depth in (64, 128) for causal in (False, True)),
    *(Variant(keys="pages", page_size=size) for size in (8, 16, 64, 128, 256)),
    *(Variant(keys="pages", page_size=size, heads_first=True) for size in (32, 512)),
    Variant(64, keys="pages", page_size=16),
    Variant(64, keys="pages", page_size=16, group=8, pack_gqa=True),
    Variant(80, keys="pages", page_size=16),
    Variant(keys="lengths"),
    Variant(80, keys="lengths", group=4, pack_gqa=True),
    *(Variant(depth, group=1) for depth in (64, 128)),
    *(Variant(depth, causal=False, window=(127, 0)) for depth in (64, 128)),
    Variant(causal=False, window=(100, 20)),
    Variant(causal=False, window=(127, 0), sink=True, keys="pages", page_size=64),
    Variant(causal=False, chunk=64),
    Variant(96, chunk=192),
    Variant(softcap=5.0),
    Variant(causal=False, sink=True, keys="lengths"),
    Variant(64, num_splits=3),
    Variant(keys="packed", num_splits=2),
    Variant(keys="pages", page_size=16, group=8, pack_gqa=True, num_splits=5),
    Variant(64, keys="pages", page_size=16, tokens_per_split=256),
    Variant(causal=False, sink=True, keys="lengths", num_splits=4),
    Variant(64, sink=True, keys="lengths", num_splits=0),
    Variant(keys="packed", num_splits=0),
    Variant(keys="pages", page_size=16, group=8, pack_gqa=True, num_splits=0),
    Variant(64, causal=False, window=(700, 0), keys="pages", page_size=64, num_splits=0),
    *(Variant(depth) for depth in (8, 40, 120)),
    Variant(causal=False, window=(300, -3)),
    *(Variant(64, keys="pages", page_size=size) for size in (1, 7, 24)),
    *(Variant(keys="pages", page_size=size) for size in (3, 48, 784)),
    decode(),
    decode(num_splits=0),
    decode(num_splits=5, dtype="fp16"),
    decode(head_dim=64, num_splits=0, sink=True),
    decode(head_dim=80, group=4, page_size=64),
    decode(head_dim=40, group=2, page_size=1),
    decode(group=16, page_size=48, num_splits=3),
    decode(group=16, page_size=128, heads_first=True, causal=False, window=(1000, 0), num_splits=0),
    decode(head_dim=96, group=1, pack_gqa=False, page_size=3),
    decode(keys="packed", page_size=0, softcap=5.0),
    decode(keys="lengths", page_size=0, tokens_per_split=256),
    *(Variant(192, head_dim_v=128, causal=causal) for causal in (False, True)),
    Variant(192, head_dim_v=128, keys="packed"),
    Variant(192, head_dim_v=128, keys="pages", page_size=16),
    Variant(160, head_dim_v=64, keys="lengths", sink=True),
    decode(head_dim=192, head_dim_v=128, num_splits=0),
    latent(),
    latent(group=128, page_size=16),
    latent(group=8, dtype="fp16", page_size=5, num_splits=3),
    latent(causal=False, page_size=128, num_splits=1),
    *(pair(causal=causal) for causal in (False, True)),
    pair(dtype="fp16", window=(127, 0), causal=False),
    pair(64),
    pair(72, chunk=192),
    pair(96, keys="packed", causal=False),
    pair(keys="packed"),
    pair(keys="lengths", sink=True),
    pair(softcap=5.0),
    *(pair(keys="pages", page_size=size) for size in (16, 3)),
    pair(80, keys="pages", page_size=128, heads_first=True),
    pair(keys="pages", page_size=16, group=8, pack_gqa=True),
    *(Variant(256, causal=causal) for causal in (False, True)),
    Variant(256, keys="pages", page_size=16, sink=True),
    Variant(200, keys="packed", dtype="fp16"),
    Variant(256, keys="packed", window=(127, 0), causal=False),
    Variant(512),
    Variant(512, keys="pages", page_size=64, sink=True),
    *(Variant(depth, "e4m3", causal) for depth in (64, 128) for causal in (False, True)),
    Variant(96, "e5m2"),
    Variant(dtype="e4m3", keys="packed"),
    Variant(dtype="e4m3", causal=False, window=(127, 0), keys="pages", page_size=16, sink=True),
    Variant(dtype="e4m3", keys="lengths", softcap=5.0),
    decode(dtype="e4m3"),
    *(decode(cache="e4m3", group=2, num_splits=splits) for splits in (0, 1)),
    decode(cache="e4m3", group=2, keys="lengths", page_size=0),
    decode(head_dim=64, dtype="fp16", cache="e5m2", group=2, page_size=64, sink=True),
    Variant(dtype="e4m3", out="e4m3"),
    decode(dtype="e4m3", group=2, out="e4m3", num_splits=0),
    latent(dtype="e4m3"),
    latent(dtype="e4m3", group=128, page_size=16, num_splits=1),
    latent(listed=200, causal=False),
    latent(listed=129, causal=False, group=128, dtype="e4m3"),
    latent(cache="rows"),
    latent(cache="rows", group=128, page_size=16, num_splits=1),  # not listed: rows of 528 bytes, see tcgen05.cu
    Variant(192, head_dim_v=128, rope=64),
    Variant(192, head_dim_v=128, rope=64, keys="pages", page_size=16),
    pair(192, head_dim_v=128, rope=64, keys="packed"),
    Variant(192, head_dim_v=128, rope=64, rope_dtype="e4m3", keys="pages", page_size=16),
    Variant(dtype="e4m3", of_tokens=True),
    Variant(dtype="e4m3", of_tokens=True, keys="pages", page_size=16, sink=True),
    decode(dtype="e4m3", of_tokens=True, page_size=64),
)  # fmt: skip


def variants(only: list[str] | None = None) -> tuple[Variant, ...]:
    """Those with one of these texts in their name; all by default. Raises ValueError where a text is in none."""
    for text in only or ():
        if not any(text in variant.name for variant in VARIANTS):
            raise ValueError(
                f"--only {text!r} is in the name of no variant; names are like {VARIANTS[0].name!r}"
            )
    return tuple(v for v in VARIANTS if not only or any(text in v.name for text in only))


# Borders of tiles (128 rows, 128 keys; 256 rows a block), more queries than keys, one of each.
SMALL = (
    *(dense(*sizes) for sizes in ((2, 300, 300), (1, 256, 1024), (1, 1000, 2048), (3, 130, 257))),
    dense(2, 700, 130),
    dense(1, 1, 1),
)
# 400 to 1024 blocks on about 132 multiprocessors that hold one CTA each: most blocks are claimed.
LARGE = (
    *(dense(4, 2048, 2048, 16), dense(5, 1536, 300, 16), dense(4, 1025, 1500, 20)),
    *(dense(64, 130, 257, 8), dense(128, 1, 77, 8)),
)
# Long enough that a lost or doubled phase anywhere in some hundred tiles shows.
LONG = (
    *(dense(1, 8192, 8192), dense(1, 16384, 16384), dense(1, 65536, 65536)),
    *(dense(1, 256, 65536), dense(2, 1, 131072)),
)
UNEVEN = (
    Problem((300, 1, 0, 64, 1000), (300, 5, 10, 200, 2500)),
    Problem((1,) * 20, tuple(1 + 37 * i for i in range(20))),
    Problem((300, 1, 0, 64), (300, 5, 10, 0)),
    Problem((0, 0, 0), (5, 0, 7)),
    Problem((0,) * 199 + (256,), (3,) * 199 + (256,), 8),
    Problem(
        tuple(i * i * 7 % 301 for i in range(64)), tuple(i * i * 11 % 501 for i in range(64)), 16
    ),
)


# Up to 16 drafts, no key up to 70,000, one sequence up to 256, and one long sequence beside many short ones.
DECODE = (
    *(dense(*sizes) for sizes in ((1, 1, 1), (2, 1, 127), (2, 4, 128), (3, 2, 129), (1, 16, 5000), (1, 1, 70000))),
    *(dense(*sizes) for sizes in ((64, 1, 1000), (256, 1, 200))),
)  # fmt: skip
UNEVEN_DECODE = (
    Problem((1,) * 6, (0, 1, 127, 128, 129, 5000)),
    Problem((4, 0, 1, 3), (300, 7, 0, 2)),
    Problem((1,) * 20, tuple(1 + 37 * i for i in range(20))),
    Problem((1,) * 64, (70000,) + (500,) * 63),
    Problem((2,) * 256, tuple(i * i * 11 % 701 for i in range(256))),
    Problem(tuple(i % 17 for i in range(40)), tuple(i * i * 7 % 901 for i in range(40))),
)


def problems(variant: Variant, amount: str) -> tuple[Problem, ...]:
    """For a variant; amount: "quick" (a few small ones), "most", or "all" (with long sequences)."""
    uneven = UNEVEN if variant.keys in ("packed", "pages") else ()
    if variant.decode:
        uneven = UNEVEN_DECODE if uneven else ()
        if variant.keys == "latent":  # as many queries for each sequence
            uneven = tuple(p for p in UNEVEN_DECODE if len(set(p.queries)) == 1)
        found = DECODE[:4] + uneven[:3] if amount == "quick" else DECODE + uneven + _random(variant)
        return tuple(_with_whole_groups(variant, p) for p in found)
    found = SMALL[:3] + uneven[:2]
    if amount != "quick":
        found = SMALL + LARGE + uneven + _random(variant)
    if amount == "all" and variant in LONG_VARIANTS:
        found += LONG
    return tuple(_with_whole_groups(variant, p) for p in found)


def _with_whole_groups(variant: Variant, problem: Problem) -> Problem:
    return replace(problem, heads=-(-problem.heads // variant.group) * variant.group)


def guarded_problems(variant: Variant) -> tuple[Problem, ...]:
    """Those that are run again between unmapped pages."""
    return problems(variant, "quick")


LONG_VARIANTS = (
    Variant(64, causal=False),
    Variant(),
    Variant(keys="packed"),
    Variant(keys="pages", page_size=16),
    *(pair(causal=causal) for causal in (False, True)),
)


def _random(variant: Variant, number: int = 12) -> tuple[Problem, ...]:
    """The same for a variant on every machine: up to 12 sequences, some without queries or keys where that may be."""
    dice = random.Random(variant.title + str(variant.head_dim))
    found, most = [], 8 if variant.decode else 400
    for _ in range(number):
        if variant.keys in ("dense", "lengths", "latent"):
            rows = dice.randint(1, most if variant.decode else 900)
            found.append(dense(dice.randint(1, 6), rows, dice.randint(1, 1300)))
        else:
            batch = dice.randint(1, 12)
            rows, keys = (tuple(dice.randint(0, n) for _ in range(batch)) for n in (most, 900))
            found.append(Problem(rows, keys))
    return tuple(found)


def configurations(variants, amount: str) -> list:
    """FA4Config of every kernel that these variants need: their calls on CPU tensors, as far as asking for one."""
    import warnings
    from unittest.mock import patch

    from cute_fa4 import EmulatorWarning, compile_cache
    from cute_fa4.calls import repeat

    found: dict = {}

    def ask(config, executor):
        found[config] = None
        return lambda *arguments: None

    def empty(variant, device, *shape, of="k"):
        return torch.empty(*shape, variant.depth(of), dtype=variant.dtype_of(of))

    repeat.clear()  # a call like an earlier one would not ask
    try:
        with (
            patch.object(compile_cache, "function_for", ask),
            patch(f"{__name__}._values", empty),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", EmulatorWarning)
            for variant in variants:
                for problem in problems(variant, amount):
                    call(variant, problem, "cpu").launch()
    finally:
        repeat.clear()  # nor may one find functions that do nothing
    return list(found)


# --- a call


@dataclass
class Call:
    """Tensors of one problem. launch() -> (out, lse), freshly allocated and filled with canaries before."""

    variant: Variant
    problem: Problem
    launch: object
    sequences: list  # of (q, k, v, rows of out, of lse): what each sequence should be computed from and where it is
    spare: object  # (out) -> rows of out that belong to no sequence


DTYPES = dict(
    bf16=torch.bfloat16, fp16=torch.float16, e4m3=torch.float8_e4m3fn, e5m2=torch.float8_e5m2
)
OUT_DTYPES = DTYPES | dict(e4m3=torch.bfloat16, e5m2=torch.bfloat16)


def call(variant: Variant, problem: Problem, device: str, seed: int = 0, place=None) -> Call:
    """Random inputs; what no sequence owns in K and V is NaN, in page tables garbage.

    place  (tensor, at_the_end) -> the tensor somewhere else (guarded.Guard.place): Q and K at the beginning of their
           memory, V at its end, with an odd seed the other way round
    """
    make = dict(dense=_dense, lengths=_dense, packed=_packed, pages=_paged, latent=_latent)
    make = make[variant.keys]
    torch.manual_seed(seed)
    place = place or (lambda tensor, at_the_end: tensor)
    sides = [bool(seed % 2), bool(seed % 2), not seed % 2]
    made = make(variant, problem, device, lambda *qkv: list(map(place, qkv, sides)))
    if is_wide(variant.head_dim, variant.head_dim_v or variant.head_dim):
        return made
    return replace(made, launch=_in_pairs(made.launch, "on" if variant.pair else "off"))


def _in_pairs(launch, word: str):
    """The same, with the kernel chosen under CUTE_FA4_PAIR=word: one kernel runs all lengths of a variant."""
    import os
    from unittest.mock import patch

    from cute_fa4.calls import repeat

    def paired():
        repeat.clear()  # a call like an earlier one would not read the variable
        try:
            with patch.dict(os.environ, {"CUTE_FA4_PAIR": word}):
                return launch()
        finally:
            repeat.clear()

    paired.sink = getattr(launch, "sink", None)
    return paired


def _options(variant: Variant, problem: Problem, device: str) -> dict:
    from cute_fa4 import masks

    options = dict(causal=variant.causal and not variant.chunk, return_lse=True)
    options["pack_gqa"] = variant.pack_gqa
    options |= dict(num_splits=variant.num_splits, tokens_per_split=variant.tokens_per_split)
    if variant.window:
        options["window_size"] = variant.window
    if variant.chunk:
        options["mask"] = (masks.chunked_causal if variant.causal else masks.chunked)(variant.chunk)
    if variant.softcap:
        options["softcap"] = variant.softcap
    if variant.sink:
        options["learnable_sink"] = torch.randn(problem.heads, device=device)
    return options


O_SCALE = 64.0
"""Of outputs of 8 bits: averages of 70,000 values are 0.004, of one 4; e4m3 holds 0.016 to 448 with all its bits."""


def _scales(variant: Variant, problem: Problem, device: str) -> dict:
    """The scales that a call of this variant passes, each with its own number for each sequence and head."""
    shape = len(problem.keys), problem.heads // variant.group
    names = ("k_descale", "v_descale") if variant.cache in DTYPES else ()
    scales = {name: 0.5 + 1.5 * torch.rand(shape, device=device) for name in names}
    if variant.out:
        scales["o_scale"] = torch.full((1,), O_SCALE, device=device)
    return scales


def _meant(options: dict, of: str, sequence: int, rows):
    """Rows of K or V of a sequence, (rows, heads, depth), times its scales; those of tokens are in the rows already."""
    scale = options.get(f"{of}_descale")
    if scale is None or scale.dim() > 2:
        return rows
    return rows.double() * scale[sequence].double()[:, None]


def _of_tokens(rows):
    """(a scale between 0.5 and 2 for each token and head, the rows times it)."""
    scale = 0.5 + 1.5 * torch.rand(rows.shape[:-1], device=rows.device)
    return scale, rows.double() * scale.double()[..., None]


def _split(variant: Variant, k, options: dict):
    """K without the columns that all heads share, which go into the options."""
    if not variant.rope:
        return k
    rope = k[..., 0, -variant.rope :]
    options["k_rope"] = rope.to(DTYPES[variant.rope_dtype]) if variant.rope_dtype else rope
    if "page_table" in options:
        options["k_rope_page_table"] = options["page_table"]
    return k[..., : -variant.rope]


def _values(variant: Variant, device: str, *shape: int, of: str = "k"):
    """Normal numbers; all heads of K share the last columns where the variant says so."""
    values = torch.randn(*shape, variant.depth(of), device=device)
    if variant.rope and of == "k":
        shared = values[..., :1, -variant.rope :]
        if variant.rope_dtype:
            shared = shared.to(DTYPES[variant.rope_dtype]).float()
        values[..., -variant.rope :] = shared
    return values.to(variant.dtype_of(of))


def _out(variant: Variant, q, canary: float):
    shape, dtype = (*q.shape[:-1], variant.depth("out")), variant.dtype_of("out")
    return torch.full(shape, canary, dtype=dtype, device=q.device)


def _dense(variant: Variant, problem: Problem, device: str, place) -> Call:
    from cute_fa4 import flash_attn_func, flash_attn_with_kvcache

    batch, rows, keys = len(problem.queries), problem.queries[0], problem.keys[0]
    q = _values(variant, device, batch, rows, problem.heads, of="q")
    kv_heads = problem.heads // variant.group
    k, v = (_values(variant, device, batch, keys, kv_heads, of=of) for of in "kv")
    options, lengths = _options(variant, problem, device), [keys] * batch
    options |= _scales(variant, problem, device)
    if variant.keys == "lengths":
        lengths = [keys * (i + 1) // batch for i in range(batch)]
        for i, length in enumerate(lengths):
            k[i, length:], v[i, length:] = math.nan, math.nan
        options["cache_seqlens"] = _int32(lengths, device)
    q, k, v = place(q, k, v)
    nope, meant = _split(variant, k, options), dict(k=k, v=v)
    if variant.of_tokens:
        for of in "kv":
            options[f"{of}_descale"], meant[of] = _of_tokens(meant[of])

    def launch():
        out = _out(variant, q, math.nan)
        function = flash_attn_with_kvcache if variant.keys == "lengths" else flash_attn_func
        return function(q, nope, v, out=out, **options)

    sequences = [
        (q[i], _meant(options, "k", i, meant["k"][i, :n]), _meant(options, "v", i, meant["v"][i, :n]),
         lambda out, i=i: out[i], lambda lse, i=i: lse[i])
        for i, n in enumerate(lengths)
    ]  # fmt: skip
    return Call(variant, problem, _with_sink(launch, options), sequences, lambda out: out[:0])


def _starts(numbers) -> list[int]:
    starts = [0]
    for number in numbers:
        starts.append(starts[-1] + number)
    return starts


def _int32(numbers, device: str):
    return torch.tensor(numbers, dtype=torch.int32, device=device)


SPARE_ROWS = 300
"""Rows of packed tensors behind the last sequence: more than a block of 256 queries."""


def _ragged_call(variant, problem, device, place, k, v, each_k, each_v, options) -> Call:
    from cute_fa4 import flash_attn_varlen_func

    starts = _starts(problem.queries)
    q = _values(variant, device, starts[-1] + SPARE_ROWS, problem.heads, of="q")
    q, k, v = place(q, k, v)
    options |= _options(variant, problem, device) | _scales(variant, problem, device)
    options |= dict(cu_seqlens_q=_int32(starts, device), max_seqlen_q=max(max(problem.queries), 1))
    nope = _split(variant, k, options)

    def launch():
        return flash_attn_varlen_func(q, nope, v, out=_out(variant, q, CANARY), **options)

    sequences = [
        (q[a:b], _meant(options, "k", i, each_k[i]), _meant(options, "v", i, each_v[i]),
         lambda out, a=a, b=b: out[a:b], lambda lse, a=a, b=b: lse[:, a:b])
        for i, (a, b) in enumerate(zip(starts, starts[1:], strict=False))
    ]  # fmt: skip
    return Call(variant, problem, _with_sink(launch, options), sequences, lambda out: out[starts[-1] :])  # fmt: skip


def _packed(variant: Variant, problem: Problem, device: str, place) -> Call:
    starts = _starts(problem.keys)
    k, v = (
        _values(variant, device, starts[-1] + SPARE_ROWS, problem.heads // variant.group, of=of)
        for of in "kv"
    )
    for tensor in (k, v):
        tensor[starts[-1] :] = math.nan
    each_k, each_v = ([x[a:b] for a, b in zip(starts, starts[1:], strict=False)] for x in (k, v))
    options = dict(cu_seqlens_k=_int32(starts, device))
    return _ragged_call(variant, problem, device, place, k, v, each_k, each_v, options)


def _paged(variant: Variant, problem: Problem, device: str, place) -> Call:
    order, table = _pages(variant, problem, device)
    pools, each = zip(*(_pool(variant, problem, device, order, of) for of in "kv"), strict=True)
    options = dict(page_table=table, seqused_k=_int32(problem.keys, device))
    if variant.of_tokens:
        scaled = [[_of_tokens(rows) for rows in own] for own in each]
        each = [[rows for _, rows in own] for own in scaled]
        for of, own in zip("kv", scaled, strict=True):
            scales = [scale for scale, _ in own]
            options[f"{of}_descale"] = _in_pages(scales, variant.page_size, order, math.nan)
    if variant.heads_first:
        options["kv_layout"] = "HND"
    return _ragged_call(variant, problem, device, place, *pools, *each, options)


SPARE_PAGES = 3


def _pages(variant: Variant, problem: Problem, device: str):
    """(where each page of each sequence is in a pool, page table with garbage behind each sequence)."""
    pages = [-(-n // variant.page_size) for n in problem.keys]
    most = max(max(pages), 1) + 2
    order = torch.randperm(sum(pages) + SPARE_PAGES, device=device)
    table = torch.randint(-(2**31), 2**31 - 1, (len(pages), most), device=device).to(torch.int32)
    for i, first in enumerate(_starts(pages)[:-1]):
        table[i, : pages[i]] = order[first : first + pages[i]].to(torch.int32)
    return order, table


def _pool(variant: Variant, problem: Problem, device: str, order, of: str):
    """(pages with NaN where no sequence has a row, the rows of each sequence)."""
    heads = problem.heads // variant.group
    rows = [_values(variant, device, n, heads, of=of) for n in problem.keys]
    pool = _in_pages(rows, variant.page_size, order, math.nan)
    return (pool.transpose(1, 2).contiguous() if variant.heads_first else pool), rows


def _in_pages(rows, size: int, order, filler):
    """Rows of each sequence -> (pages, size, ...), in this order, with the filler where no sequence has a row."""
    blank = torch.full((), filler, device=order.device).to(rows[0].dtype)
    pool = blank.expand(len(order), size, *rows[0].shape[1:]).clone()
    first = 0
    for own in rows:
        number = -(-len(own) // size)
        padded = blank.expand(number * size, *own.shape[1:]).clone()
        padded[: len(own)] = own
        pool[order[first : first + number]] = padded.view(number, size, *own.shape[1:])
        first += number
    return pool


NO_NUMBER = 255
"""Byte of a latent row that is NaN as e4m3, four of them as a float32 scale, two as bf16."""


def _latent_pool(variant: Variant, problem: Problem, device: str, order):
    """As _pool: (latent cache, rows of K as they are meant)."""
    if variant.cache != "rows":
        return _pool(variant, problem, device, order, "k")
    stored = []
    for keys in problem.keys:
        row = _values(variant, device, keys, 1)
        stored.append(rows_from(row[..., :LATENT], row[..., LATENT:]))
    pool = _in_pages(stored, variant.page_size, order, NO_NUMBER)
    return pool, [numbers_of(rows) for rows in stored]


def _latent(variant: Variant, problem: Problem, device: str, place) -> Call:
    from cute_fa4 import flash_mla_with_kvcache

    order, table = _pages(variant, problem, device)
    pool, rows = _latent_pool(variant, problem, device, order)
    batch, queries = len(problem.queries), problem.queries[0]
    q = _values(variant, device, batch, queries, problem.heads, of="q")
    q, pool, _ = place(q, pool, q[:0])
    options = dict(causal=variant.causal, num_splits=variant.num_splits)
    lengths = _int32(problem.keys, device)
    if variant.listed:
        options["indices"], seen = _listed(variant, problem, table, rows)
    else:
        seen = [[k] for k in rows]  # for all queries of a sequence together

    def launch():
        out = _out(variant, q, math.nan)
        return flash_mla_with_kvcache(q, pool, table, lengths, out=out, **options)

    sequences = []
    for i, each in enumerate(seen):
        for first, k in enumerate(each):
            own = slice(first, first + 1) if variant.listed else slice(None)
            sequences.append((
                q[i, own], k, k[..., : variant.depth("out")],
                lambda out, i=i, own=own: out[i, own], lambda lse, i=i, own=own: lse[i][:, own],
            ))  # fmt: skip
    return Call(variant, problem, _with_sink(launch, {}), sequences, lambda out: out[:0])


def _listed(variant: Variant, problem: Problem, table, rows) -> tuple:
    """(indices, the rows that each query of each sequence lists): keys in any order, -1 among them, few of few keys."""
    queries, size = problem.queries[0], variant.page_size
    indices = table.new_full((len(rows), queries, variant.listed), -1)
    seen = []
    for i, own in enumerate(rows):
        seen.append([])
        for query in range(queries):
            keys = torch.randperm(len(own), device=own.device)[: variant.listed - 1]
            places = torch.randperm(variant.listed, device=own.device)[: len(keys)]
            rows_of_pool = table[i, keys // size] * size + (keys % size).to(torch.int32)
            indices[i, query, places] = rows_of_pool
            seen[-1].append(own[keys])
    return indices, seen


def _with_sink(launch, options: dict):
    launch.sink = options.get("learnable_sink")
    return launch
