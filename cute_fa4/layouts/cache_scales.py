"""Where the scales of blocks of V in a 4-bit cache (NVFP4) lie: a byte for each 16 columns of a token and head.

    linear        row t, byte s                                      of token t, block s
    interleaved4  row 4 (t / 4) + s / (S / 4), byte 4 (s % (S / 4)) + t % 4      for S blocks of a head

Rows 0 and 1 of each four, for eight blocks (letters are tokens, digits are blocks):

    linear        a0 a1 a2 a3 a4 a5 a6 a7   b0 b1 b2 b3 b4 b5 b6 b7
    interleaved4  a0 b0 c0 d0 a1 b1 c1 d1   a2 b2 c2 d2 a3 b3 c3 d3

Tokens are rows of a page, or of a sequence of a dense cache. The second is what kernels of TensorRT-LLM for SM100 read,
what FlashInfer's nvfp4_quantize_paged_kv_cache returns for V, and what vLLM's reshape_and_cache_flash writes; scales of
K are linear in all of them.
"""

LINEAR, INTERLEAVED4 = "linear", "interleaved4"
LAYOUTS = (LINEAR, INTERLEAVED4)
TOKENS = 4  # that the interleaved layout mixes; blocks are as many or a multiple


def place(layout: str, token, block, blocks: int) -> tuple:
    """-> (row, byte of the row) of the scale of a token and block; both may be values of a kernel.

    blocks: of a head

    >>> place(INTERLEAVED4, 6, 5, 8), place(LINEAR, 6, 5, 8)
    ((6, 6), (6, 5))
    """
    row, byte = first_place(layout, token)
    rows, more = after_first(layout, block, blocks)
    return row + rows, byte + more


def first_place(layout: str, token) -> tuple:
    """place of block 0."""
    inside = 0 if layout == LINEAR else token % TOKENS
    return token - inside, inside


def after_first(layout: str, block, blocks: int) -> tuple:
    """-> (rows, bytes) from the place of block 0 to that of a block: the same for every token."""
    if layout == LINEAR:
        return 0, block
    of_row = blocks // TOKENS
    return block // of_row, block % of_row * TOKENS
