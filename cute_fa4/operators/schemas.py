"""Schemas of the attention operators, made from the table of a call's tensors (cute_fa4/operands.py)."""

from __future__ import annotations

from cute_fa4.operands import ARGUMENTS

# Arguments that are not tensors. mask, score_mod and mask_mod: as spelling.py spells them; a soft cap is a score_mod.
_NO_TENSORS = {
    "max_seqlen_q": "SymInt? max_seqlen_q=None",
    "max_seqlen_k": "SymInt? max_seqlen_k=None",
    "seqused_k_excludes_new": "bool seqused_k_excludes_new=False",
    "kv_layout": "str kv_layout='NHD'",
    "v_block_scale_layout": "str v_block_scale_layout='linear'",
    "four_over_six": "bool four_over_six=False",
    "softmax_scale": "float? softmax_scale=None",
    "mask": "str mask='Full()'",
    "mask_sizes": "SymInt[] mask_sizes=[]",
    "pack_gqa": "bool? pack_gqa=None",
    "score_mod": "str score_mod=''",
    "mask_mod": "str mask_mod=''",
    "aux_tensors": "Tensor[]? aux_tensors=None",
    "num_splits": "int? num_splits=1",
    "tokens_per_split": "int? tokens_per_split=None",
    "return_lse": "bool return_lse=False",
    "return_max": "bool return_max=False",
    "batch_invariant": "bool? batch_invariant=None",
    "skip_softmax_threshold_scale_factor": "float? skip_softmax_threshold_scale_factor=None",
    "block_size": "int[] block_size=[]",  # of listed blocks: queries, keys
}
CACHES = ("k_cache", "v_cache", "k_block_scale", "v_block_scale")  # written by an append
# Scales of the tokens of new rows that are quantised on append; they are written with the rows.
WRITTEN_SCALES = ("k_descale", "v_descale")
_ALIASES = {"_descale": "s", "_block_scale": "b"}  # what an alias name has after k or v
WORKSPACE = "Tensor(workspace!)? workspace=None"


def names_of(way: str) -> tuple[str, ...]:
    """Names of the arguments in one entry of ARGUMENTS."""
    return tuple(ARGUMENTS[way].replace("* ", "").split())


def arguments_of(way: str, written: tuple[str, ...] = ()) -> str:
    """The arguments of an operator, as in its schema. written: the arguments that it writes to."""
    required, optional = ARGUMENTS[way].split(" * ")
    optional += " " + ARGUMENTS["all"]
    return ", ".join(
        (
            *(f"{_tensor(name, written)} {name}" for name in required.split()),
            "*",
            *(
                _NO_TENSORS.get(name, f"{_tensor(name, written)}? {name}=None")
                for name in optional.split()
            ),
        )
    )


def _tensor(name: str, written: tuple[str, ...]) -> str:
    """The type, with an alias name if it is a tensor of the caller that is written."""
    if name not in written:
        return "Tensor"
    return f"Tensor({name[0]}{_ALIASES.get(name[1:], '')}!)"
