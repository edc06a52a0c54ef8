"""Scales of 8-bit tensors: factors between stored numbers and the values that they represent.

    q_descale, k_descale, v_descale    values of q, k, v are the stored numbers times these
    o_scale                            out stores its values times this

Each is a float32 tensor of any strides, also 0; its shape tells what each number belongs to:

    one number                      the whole tensor
    (batch, heads_kv)               each sequence and key/value head
    as its tensor without head_dim  q, k, v: each token and head: (batch, seqlen_k, heads_kv), packed (total_k,
                                    heads_kv), paged (num_pages, page_size, heads_kv) or, where kv_layout is "HND",
                                    (num_pages, heads_kv, page_size); a head_dim of 1 may follow
    as its tensor with head_dim/32  q and k, both: each 32 numbers of a row, a power of two (MXFP8). Its dtype is
                                    torch.float8_e8m0fnu; cute_fa4.mxfp8 makes both from a tensor

A packed tensor with as many tokens as sequences makes the second and the third form ambiguous: a head_dim of 1 then
selects the third. Only the device reads the values. softmax_scale * q_descale * k_descale must be within 2^-64 to
2^16 where neither is of tokens of k; with scales of tokens of k, softmax_scale * q_descale. Where it is not, out and
LSE are NaN: the kernel takes the row maximum before it multiplies. Scales of tokens of v beyond 2^126 make out NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from cute_fa4.calls.operands.tensors import FP8, check_is_tensor, check_place
from cute_fa4.dtypes import E8M0
from cute_fa4.layouts.block_scales import BLOCK
from cute_fa4.operands import SCALES, CallTensors
from cute_fa4.scales import BLOCK as BLOCK_OF_ROW
from cute_fa4.scales import HEAD, ROW, Scales
from cute_fa4.sm100.blueprint.reach import DEPTHS_OF_FP8

BLOCKS = E8M0.torch  # dtype of block scales
OF_BLOCKS = ("q_descale", "k_descale")  # tensors that may have block scales
MOST_OF_BLOCKS = DEPTHS_OF_FP8[-1]  # of q and k with block scales


@dataclass(frozen=True)
class GivenScales:
    """The scales of a call, checked.

    tensors  the given ones, by name
    said     what each scale belongs to
    views    how the kernel takes them
    """

    tensors: dict[str, torch.Tensor]
    said: Scales
    views: ScaleViews


def checked_scales(
    tensors: CallTensors, batch: int, heads_first: bool = False
) -> GivenScales | None:
    """Refuse invalid scales; None: there are none.

    tensors      with a k that has the rows of a page first
    heads_first  the caller has the rows after the heads
    """
    if not tensors.has(SCALES):
        return None
    q, k = tensors.q, tensors.k
    by_head = batch, k.shape[-2]
    of_keys = tuple(k.shape[:-1])
    if heads_first:
        of_keys = (of_keys[0], of_keys[2], of_keys[1])
    rows = {"q_descale": tuple(q.shape[:-1]), "k_descale": of_keys, "v_descale": of_keys}
    given = {name: x for name, x in tensors.named(SCALES).items() if x is not None}
    for name, scale in given.items():
        of_rows = rows.get(name)
        if getattr(scale, "dtype", None) is BLOCKS:
            _check_blocks(name, scale, q, k, of_rows)
        else:
            _check(name, scale, q, k, by_head, of_rows)
    _check_both_have_blocks(tensors)
    views = ScaleViews.like(given, by_head, rows, heads_first)
    return GivenScales(given, said_by(given, by_head), views)


def of_made_up_keys(scales: GivenScales | None) -> GivenScales | None:
    """The same where k and v are placeholders: one number instead of the scales of their tokens."""
    tokens = () if scales is None else scales.said.of_keys
    if scales is None or not tokens:
        return scales
    names = [f"{tensor}_descale" for tensor in tokens]
    ones = {name: scales.tensors[name].new_ones(()) for name in names}
    said = replace(scales.said, **dict.fromkeys(tokens, HEAD))
    return GivenScales(scales.tensors | ones, said, scales.views.with_one_number_for(names))


def check_no_scale(q: torch.Tensor, k: torch.Tensor, q_descale) -> None:
    """q of 16 bits over k of 8 has none."""
    if q_descale is not None:
        raise TypeError(
            f"q_descale: given with q of {q.dtype}, which gets scales of its own; accepted: None, or q of {k.dtype}"
        )


def _check(name: str, scale, q: torch.Tensor, k: torch.Tensor, by_head: tuple, of_rows) -> None:
    check_is_tensor(name, scale)
    if name == "q_descale" and q.dtype not in FP8 and k.dtype in FP8:
        check_no_scale(q, k, scale)
    if k.dtype not in FP8 and name != "o_scale":
        raise TypeError(
            f"{name}: given with q of {q.dtype}; accepted: None, scales belong to {' and '.join(map(str, FP8))}; "
            "multiply softmax_scale, or the tensor"
        )
    if scale.dtype != torch.float32:
        raise TypeError(
            f"{name}: dtype {scale.dtype}; accepted: torch.float32; convert with .to(torch.float32)"
        )
    sizes = (by_head,) if of_rows is None else (by_head, of_rows, (*of_rows, 1))
    if scale.numel() != 1 and tuple(scale.shape) not in sizes:
        more = f", or {of_rows}, one for each token and head" if len(sizes) > 1 else ""
        raise ValueError(
            f"{name}: shape {tuple(scale.shape)}; accepted: one number, or {by_head}, one for each sequence and "
            f"key/value head{more}"
        )
    check_place(name, scale, q.device)


def _check_blocks(name: str, scale, q: torch.Tensor, k: torch.Tensor, of_rows) -> None:
    check_is_tensor(name, scale)
    if name not in OF_BLOCKS:
        raise TypeError(
            f"{name}: dtype {scale.dtype}; accepted: torch.float32, one number or one for each sequence and key/value "
            "head; blocks of q and k alone have scales"
        )
    if q.dtype not in FP8 or k.dtype is not q.dtype:
        raise TypeError(
            f"{name}: scales of blocks, {BLOCKS}, with q of {q.dtype} and k of {k.dtype}; accepted: q and k of "
            f"{' or '.join(map(str, FP8))}, both the same; cute_fa4.mxfp8.quantise makes them"
        )
    depth = q.shape[-1]
    if depth % BLOCK or depth > MOST_OF_BLOCKS:
        remedy = (
            "pad q and k with zeros" if depth < MOST_OF_BLOCKS else "give scales of tokens instead"
        )
        raise ValueError(
            f"{name}: scales of blocks with a head dim of {depth} of q and k; accepted: a multiple of {BLOCK} up to "
            f"{MOST_OF_BLOCKS}; {remedy}"
        )
    if tuple(scale.shape) != (*of_rows, depth // BLOCK):
        raise ValueError(
            f"{name}: shape {tuple(scale.shape)}; accepted: {(*of_rows, depth // BLOCK)}, one for each {BLOCK} numbers "
            "of a row"
        )
    check_place(name, scale, q.device)


def _check_both_have_blocks(tensors: CallTensors) -> None:
    """Block scales must be given for both operands of a product."""
    has = [getattr(getattr(tensors, name), "dtype", None) is BLOCKS for name in OF_BLOCKS]
    if has[0] != has[1]:
        name, other = OF_BLOCKS if has[0] else reversed(OF_BLOCKS)
        raise TypeError(
            f"{other}: no scales of blocks while {name} has them; accepted: both of {BLOCKS}, or neither; "
            "cute_fa4.mxfp8.quantise makes them from tensors of 16 bits or more"
        )


def said_by(given: dict[str, torch.Tensor], by_head: tuple) -> Scales:
    """The Scales of a call, by the dtypes and shapes of its tensors. by_head: (batch, heads_kv)

    >>> said_by({"k_descale": torch.ones(1), "v_descale": torch.ones(1)}, (2, 2)), said_by({}, (2, 2))
    ('kv', '')
    >>> of_tokens = {"q_descale": torch.ones(2, 3, 4, 1), "k_descale": torch.ones(2, 9, 2)}
    >>> said_by(of_tokens | {"v_descale": torch.ones(2, 2)}, (2, 2))
    'QKv'
    """
    return Scales(**{name[0]: _kind_of(scale, by_head) for name, scale in given.items()})


def _kind_of(scale: torch.Tensor, by_head: tuple) -> str:
    if scale.dtype is BLOCKS:
        return BLOCK_OF_ROW
    return ROW if is_by_row(scale, by_head) else HEAD


def is_by_row(scale: torch.Tensor, by_head: tuple) -> bool:
    """Whether a scale has a number for each token and head. by_head: (batch, heads_kv)"""
    return scale.numel() != 1 and tuple(scale.shape) != by_head


@dataclass(frozen=True)
class ScaleViews:
    """Scales as the kernel takes them; decided by the shapes of those that a call has.

    Scales per head are (batch, heads_kv). Scales per token have a depth of 1 for q; for k and v they have none and
    have rows first. Scales per block are bytes, rows first.

    sizes    (batch, heads_kv)
    changes  the function that makes a view of each given scale, by name
    """

    sizes: tuple
    changes: dict[str, Callable[[torch.Tensor], torch.Tensor]]

    @staticmethod
    def like(given: dict[str, torch.Tensor], sizes: tuple, rows: dict, heads_first: bool):
        """rows: sizes of scales of tokens, by name"""
        found = ScaleViews(sizes, {})
        for name, scale in given.items():
            found.changes[name] = found._change(name, scale, rows.get(name), heads_first)
        return found

    def _change(self, name: str, scale: torch.Tensor, of_rows: tuple | None, heads_first: bool):
        """The function that makes a view of a scale like this one."""
        if scale.dtype is BLOCKS:
            return _bytes_rows_first if heads_first and name == "k_descale" else _bytes
        if not is_by_row(scale, self.sizes):
            return _as_it_is if tuple(scale.shape) == self.sizes else self._of_one_number
        has_depth = scale.dim() > len(of_rows or ())
        if name == "q_descale":
            return _as_it_is if has_depth else _with_depth
        return {
            (False, False): _as_it_is,
            (False, True): _without_depth,
            (True, False): _rows_first,
            (True, True): _rows_first_without_depth,
        }[heads_first, has_depth]

    def _of_one_number(self, scale: torch.Tensor) -> torch.Tensor:
        return scale.as_strided(self.sizes, (0, 0))

    def with_one_number_for(self, names: list[str]) -> ScaleViews:
        """The same where some scales are one number."""
        return ScaleViews(self.sizes, self.changes | dict.fromkeys(names, self._of_one_number))

    def of_cache(self) -> ScaleViews:
        """The views of k_descale and v_descale only."""
        names = [name for name in ("k_descale", "v_descale") if name in self.changes]
        return ScaleViews(self.sizes, {name: self.changes[name] for name in names})

    def of(self, tensors: CallTensors) -> tuple | None:
        """The scales of a call that has as many; None: there are none."""
        changes = self.changes.items()
        return tuple(change(getattr(tensors, name)) for name, change in changes) or None


def _as_it_is(scale: torch.Tensor) -> torch.Tensor:
    return scale


def _bytes(scale: torch.Tensor) -> torch.Tensor:
    return scale.view(torch.uint8)


def _bytes_rows_first(scale: torch.Tensor) -> torch.Tensor:
    return scale.view(torch.uint8).transpose(1, 2)


def _with_depth(scale: torch.Tensor) -> torch.Tensor:
    return scale.unsqueeze(-1)


def _without_depth(scale: torch.Tensor) -> torch.Tensor:
    return scale.squeeze(-1)


def _rows_first(scale: torch.Tensor) -> torch.Tensor:
    return scale.transpose(1, 2)


def _rows_first_without_depth(scale: torch.Tensor) -> torch.Tensor:
    return scale.squeeze(-1).transpose(1, 2)
