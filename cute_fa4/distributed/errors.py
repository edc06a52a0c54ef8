"""Errors of this folder, in addition to those of attention.

RankError    before data is sent: a rank refused the call, or ranks disagree; raised on every rank of the group
GroupError   during a message: a rank has exited, or was slower than the timeout of the group
"""


class RankError(ValueError):
    """A rank refused the call, or ranks disagree about it. Nothing was sent; the group can be used again."""


class GroupError(RuntimeError):
    """A message did not arrive. torch's error is the cause; the group cannot be used again."""
