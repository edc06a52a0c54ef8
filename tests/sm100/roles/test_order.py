"""The hooks of an order of the products: few in a group, each in one group, and each filled in by some order."""

from importlib import import_module

import pytest

from cute_fa4.sm100.choose.config import SCHEDULES
from cute_fa4.sm100.roles import order

MOST_HOOKS = 14
# A family's kernel imports its orders.
for schedule in SCHEDULES.values():
    import_module(f"{schedule.__module__.rpartition('.')[0]}.kernel")


def hooks_of(group: type) -> set[str]:
    return {name for name in vars(group) if not name.startswith("_")}


def below(cls: type):
    """Classes that inherit from it."""
    for sub in cls.__subclasses__():
        yield sub
        yield from below(sub)


@pytest.mark.parametrize("group", order.GROUPS)
def test_a_group_has_few_hooks_and_each_is_filled_in(group):
    hooks = hooks_of(group)
    assert 0 < len(hooks) <= MOST_HOOKS
    mixed_in = {cls for sub in below(group) for cls in sub.__mro__ if cls not in order.GROUPS}
    filled_in = {name for cls in mixed_in for name in vars(cls)}
    assert hooks <= filled_in, "what no order changes is no hook"


def test_a_hook_is_in_one_group_and_an_order_has_all():
    names = [name for group in order.GROUPS for name in hooks_of(group)]
    assert len(names) == len(set(names))
    assert all(hasattr(order.Order, name) for name in names)
