"""The load warp of the kernel of all gradients (joint.py) loads as that of other pairs, and columns of K, once.

K rows  Q rows 0 | V  dO rows 0 | K columns | dO columns 0  Q rows 1  Q columns 0  dO rows 1 | dO columns 1 ...
"""

from ..pair.barriers import CTAS
from . import operands, pair
from .joint import DEPTH, K_COLUMNS
from .load import own_rows
from .operands import OwnerArgs
from .owner import ROWS
from .work import Work


def load_columns_of_keys(cfg, owner, args: OwnerArgs, cta, work: Work):
    """Half of the columns of the keys of both CTAs."""
    first, length, row = own_rows(owner, work)
    nbytes = owner.columns_of_keys.nbytes
    mbarrier = pair.own_full(owner, cta, K_COLUMNS).arrive_and_expect(K_COLUMNS, nbytes)
    column = work.rank * (DEPTH // CTAS)
    for half in range(CTAS):
        rows = first, length, row + (half - work.rank) * ROWS
        to = cta.base + owner.own_offset(K_COLUMNS) + half * (nbytes // CTAS)
        operands.load(cfg, args.joint.columns, to, mbarrier, work.sequence, rows, work.head, column)
