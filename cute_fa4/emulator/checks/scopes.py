"""Scopes: among which threads a release, an acquire or a fence makes an order.

    release.S in CTA a  --->  acquire.T in CTA b      orders, if both S and T reach from a to b

    same CTA             .cta, .cluster, .gpu, .sys
    same cluster               .cluster, .gpu, .sys
    another cluster                      .gpu, .sys

PTX ISA, "Memory Consistency Model": "Scope", and "Morally strong operations", whose scopes must include each other.
One device is all there is here, so .sys is .gpu. A copy or a product that signals an mbarrier reaches everybody: the
ISA gives its complete-tx or arrival release semantics at .cluster scope, and whoever waits there is meant.
"""

import functools

from cute_fa4.emulator.checks.clocks import merged

CTA, CLUSTER, GPU = range(3)
_WORDS = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU, "gl": GPU, "sys": GPU}


@functools.cache
def written_scope(opcode):
    """The scope that an opcode names, or None: a word of its own, unlike the cta of .shared::cta."""
    return next((_WORDS[word] for word in opcode.split(".")[1:] if word in _WORDS), None)


class Published:
    """What releases have made known, apart by where they came from and how far they reach.

    clocks  (place of the CTA, or None for everybody's; scope) -> clock; a place: (its cluster, its rank there)
    """

    __slots__ = ("clocks",)

    def __init__(self, clocks=None):
        self.clocks = {} if clocks is None else clocks

    def add(self, place, scope, clock):
        """A release of the CTA of a place; None: the release is for everybody."""
        self.clocks[place, scope] = merged(self.clocks.get((place, scope)), clock)

    def copy(self):
        """As it is now."""
        return Published({key: clock.copy() for key, clock in self.clocks.items()})

    def reaching(self, place, scope):
        """[(distance, clock)] of what an acquire of this scope in the CTA of a place synchronises with."""
        found = []
        for (source, reach), clock in self.clocks.items():
            if source is None or source == place:
                distance = CTA
            else:
                distance = CLUSTER if source[0] == place[0] else GPU
            if min(reach, scope) >= distance:
                found.append((distance, clock))
        return found
