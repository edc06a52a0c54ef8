"""The dtypes of a model and the scales of its 8-bit tensors, for configs_for_model()."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cute_fa4.compiler.policy import BEFORE
from cute_fa4.dtypes import CACHED, QUANTIZED, UNQUANTIZED, is_quantized, row_of
from cute_fa4.scales import ROW, Scales

WITHOUT_OUT = ("cascade", "latent")
"""Calls for which servers pass no out=, so that it has the default dtype of the functions."""


@dataclass(frozen=True)
class Dtypes:
    """Dtypes and scales, as configs_for_model takes them."""

    dtype: str
    kv_dtype: str | None
    o_dtype: str | None
    descales: Scales

    @property
    def stored(self) -> str:
        """The dtype of k and v."""
        return self.kv_dtype or self.dtype

    @property
    def is_quantized(self) -> bool:
        return self.stored in CACHED

    def check(self, calls: tuple) -> None:
        if self.kv_dtype is not None:
            if self.kv_dtype not in CACHED or is_quantized(self.dtype):
                raise ValueError(
                    f"kv_dtype: {self.kv_dtype!r} with dtype={self.dtype!r}; accepted: None, or "
                    f"{' or '.join(CACHED)} with {' or '.join(UNQUANTIZED)}"
                )
            if self.descales.of_blocks:
                raise ValueError(
                    f"descales: {self.descales!r} with kv_dtype={self.kv_dtype!r}; accepted: scales of blocks where q "
                    "has eight bits, too"
                )
        if self.is_quantized and "ranks" in calls:
            raise ValueError(
                f"calls: ranks with {self.stored}; accepted: {' or '.join(UNQUANTIZED)}"
            )

    def quantised_before(self, calls: tuple) -> list[dict]:
        """Arguments of configs_for_model for calls whose q has kv_dtype, by dtype of out. ValueError if q cannot.

        It has o_dtype, or else dtype where servers pass out=.
        """
        if self.kv_dtype not in QUANTIZED:
            raise ValueError(
                f"q_quantize: {BEFORE!r} with kv_dtype={self.kv_dtype!r}; accepted: kv_dtype "
                f"{' or '.join(QUANTIZED)}"
            )
        of_8 = {"dtype": self.kv_dtype, "kv_dtype": None, "q_quantize": None}
        without = tuple(call for call in calls if call in WITHOUT_OUT)
        given = tuple(call for call in calls if call not in WITHOUT_OUT)
        asked = (given, self.o_dtype or self.dtype), (without, self.o_dtype)
        return [of_8 | {"calls": some, "o_dtype": out} for some, out in asked if some]

    def of_problem(self) -> dict:
        """Fields of a configuration, unless 16-bit queries read an 8-bit cache: dequantized, quantized."""
        descales = self.descales if self.is_quantized else self.descales.only("o")
        return {"qkv_dtype": self.dtype, "o_dtype": self.o_dtype, "descales": descales}

    @property
    def dequantized(self) -> dict:
        """Fields for 16-bit queries over 8-bit caches, in kernels that take both unchanged."""
        if self.kv_dtype is None:
            return {}
        return {"kv_dtype": self.kv_dtype, "descales": self.descales.only("k", "v", "o")}

    @property
    def quantised(self) -> dict:
        """The same, where they have 8 bits in the kernel."""
        if self.kv_dtype is None:
            return {}
        out = self.o_dtype or self.dtype
        descales = replace(self.descales.only("k", "v", "o"), q=ROW)
        return {"qkv_dtype": self.kv_dtype, "o_dtype": out, "descales": descales}

    def of_new_rows(self) -> list[str]:
        """Dtypes of rows that are appended to a cache: its own, and 16 bits, quantised by the append.

        A cache whose blocks have scales takes 16 bits only.
        """
        if not row_of(self.stored).is_operand:
            return [self.dtype]
        if not self.is_quantized or self.descales.of_blocks:
            return [self.stored]
        return [self.stored, self.dtype if self.kv_dtype else row_of(self.dtype).out]
