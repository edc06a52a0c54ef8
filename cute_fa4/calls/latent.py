"""A call over a latent cache (multi-head latent attention, absorbed), checked and compiled.

    q             (batch, seqlen_q, heads, 576)
    latent cache  (num_pages, page_size, 1, 576): columns 0 to 511 are keys and values, 512 to 575 keys alone
    page table    (batch, pages) int32; lengths (batch,) int32, both on the device

Values are a view of the cache, so that everything else of calls/ is as for any other attention.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager

import torch

from cute_fa4.calls.prepare import prepare_attention
from cute_fa4.calls.tensors import PAGED, check_is_tensor, check_rank
from cute_fa4.sm100.choose_config import LATENT_DEPTHS

NAMES = {"k": "k_cache", "v": "k_cache", "seqused_k": "cache_seqlens", "page_table": "block_table"}


def values_of(cache: torch.Tensor) -> torch.Tensor:
    """The columns that are values too."""
    return cache.as_strided((*cache.shape[:-1], LATENT_DEPTHS[1]), cache.stride())


def check_latent_tensors(q, cache, page_table, lengths, out) -> None:
    """They are there: tensors, of which views can be made."""
    given = {"q": q, "k_cache": cache, "block_table": page_table, "cache_seqlens": lengths}
    for name, tensor in given.items():
        check_is_tensor(name, tensor)
    if out is not None:
        check_is_tensor("out", out)
    check_rank("k_cache", cache, PAGED)
    if cache.shape[-1] != LATENT_DEPTHS[0]:
        raise ValueError(
            f"k_cache: {cache.shape[-1]} columns, shape {tuple(cache.shape)}; accepted: {LATENT_DEPTHS[0]}, "
            f"{LATENT_DEPTHS[1]} latent and {LATENT_DEPTHS[0] - LATENT_DEPTHS[1]} rotary ones"
        )


def prepare_latent_attention(tensors: tuple, asked: tuple) -> Callable:
    """As prepare_attention; refusals name the parameters of the latent call."""
    with names():
        return prepare_attention(tensors, asked)


@contextmanager
def names():
    """Inside, attention calls the cache k and v; refusals have the caller's names."""
    try:
        yield
    except (TypeError, ValueError, NotImplementedError) as error:
        (text,) = error.args if len(error.args) == 1 else (None,)
        if isinstance(text, str) and "accepted:" in text:
            name, colon, rest = text.partition(":")
            raise type(error)(f"{NAMES.get(name, name)}{colon}{rest}") from None
        raise
