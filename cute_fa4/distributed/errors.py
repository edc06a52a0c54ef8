"""What the functions of this folder raise besides what attention raises.

RankError    before anything is sent: a rank refused the call, or ranks disagree; raised on every rank of the group
GroupError   while something was sent: a rank has ended, or was slower than the timeout of the group
"""


class RankError(ValueError):
    """A rank refused the call, or ranks disagree about it. Nothing was sent; the group can be used again."""


class GroupError(RuntimeError):
    """A message did not arrive. What torch says is the cause; the group cannot be used again."""
