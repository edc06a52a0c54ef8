"""CombineConfig: the compile-time choices of the kernel that merges partial attention results."""

from dataclasses import dataclass

THREADS = 128
ELEMENTS = 4  # columns of a lane: one load of 16 bytes, of 8 where partial results have two bytes
COLUMNS_OF_WARP = 32 * ELEMENTS
MOST_COLUMNS = THREADS * ELEMENTS  # the warps of a CTA may share a row


@dataclass(frozen=True)
class CombineConfig:
    """Every compile-time choice of the combine kernel; sizes and strides are bound at each call.

    o_dtype     "bf16", "fp16", "f32" or "e4m3", of the result
    depth       head dim of O, a multiple of 4 up to 512
    packed      queries are (total_q, heads, depth) with offsets, not (batch, seqlen_q, heads, depth)
    seqused_q   lengths of queries come from a tensor; rows beyond are neither read nor written
    cut         rows are those of work tiles whose lists of key blocks are cut (work/list_parts.py)
    shared      parts are in slots; a tensor lists the slots of each block of queries (work/stream_k.py)
    write_lse   also write the log-sum-exp over all keys, f32, natural logarithm
    sink        a logit for each head takes weight from the keys of all parts; the log-sum-exp does not include it
    sink_dtype  of these logits: "f32", "bf16" or "fp16"
    partial_dtype  "bf16", "fp16" or "f32", of partial results; sums are float32
    dependent_launch  the CTAs may start while the grid before them in the stream ends, and wait for it (programmatic
                   dependent launch)
    arch        "sm_100a" or "sm_103a"
    """

    o_dtype: str
    depth: int
    packed: bool = False
    seqused_q: bool = False
    shared: bool = False
    cut: bool = False
    write_lse: bool = False
    sink: bool = False
    sink_dtype: str = "f32"
    partial_dtype: str = "f32"
    dependent_launch: bool = True
    arch: str = "sm_100a"

    @property
    def warps_of_row(self) -> int:
        """Warps that share a row, 128 columns each: a power of two.

        >>> [CombineConfig("bf16", depth).warps_of_row for depth in (64, 128, 136, 264, 512)]
        [1, 1, 2, 4, 4]
        """
        return 1 << (-(-self.depth // COLUMNS_OF_WARP) - 1).bit_length()

    @property
    def name(self) -> str:
        """
        >>> CombineConfig("bf16", 128, packed=True).name
        'combine_bf16_d128_packed_sm_100a'
        """
        flags = ["packed" if self.packed else "dense"]
        flags += (
            ["seqused"] * self.seqused_q
            + ["shared"] * self.shared
            + ["cut"] * self.cut
            + ["lse"] * self.write_lse
            + [f"sink_{self.sink_dtype}"] * self.sink
        )
        flags += [f"of_{self.partial_dtype}"] * (self.partial_dtype != "f32")
        flags += ["in_order"] * (not self.dependent_launch)
        return "_".join(["combine", self.o_dtype, f"d{self.depth}", *flags, self.arch])
