"""CombineConfig: the compile-time choices of the kernel that merges partial attention results."""

from dataclasses import dataclass

THREADS = 128
ELEMENTS = 4  # float32 values of a lane: one 16-byte load


@dataclass(frozen=True)
class CombineConfig:
    """Every compile-time choice of the combine kernel; sizes and strides are bound at each call.

    o_dtype     "bf16", "fp16" or "f32", of the result; partial results are float32
    depth       head dim of O, a multiple of 4 up to 128
    packed      queries are (total_q, heads, depth) with offsets, not (batch, seqlen_q, heads, depth)
    seqused_q   lengths of queries come from a tensor; rows beyond are neither read nor written
    shared      parts lie in slots, and a tensor says which ones a block of queries has (work/shared_order.py)
    write_lse   also write the log-sum-exp of the whole, f32, natural logarithm
    arch        "sm_100a" or "sm_103a"
    """

    o_dtype: str
    depth: int
    packed: bool = False
    seqused_q: bool = False
    shared: bool = False
    write_lse: bool = False
    arch: str = "sm_100a"

    @property
    def name(self) -> str:
        """
        >>> CombineConfig("bf16", 128, packed=True).name
        'combine_bf16_d128_packed_sm_100a'
        """
        flags = ["packed" if self.packed else "dense"]
        flags += ["seqused"] * self.seqused_q + ["shared"] * self.shared + ["lse"] * self.write_lse
        return "_".join(["combine", self.o_dtype, f"d{self.depth}", *flags, self.arch])
