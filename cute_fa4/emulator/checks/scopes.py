"""Scopes: the threads among which a release, an acquire or a fence creates an order.

    release.S in CTA a  --->  acquire.T in CTA b      orders, if both S and T include a and b

    same CTA             .cta, .cluster, .gpu, .sys
    same cluster               .cluster, .gpu, .sys
    another cluster                      .gpu, .sys

PTX ISA, "Memory Consistency Model": "Scope", and "Morally strong operations", whose scopes must include each other.
The emulator has one device, so .sys equals .gpu. A copy or an MMA that signals an mbarrier reaches all threads: the
ISA gives its complete-tx or arrival release semantics at .cluster scope, for any thread that waits there.
"""

import functools

from cute_fa4.emulator.checks.clocks import merged

CTA, CLUSTER, GPU = range(3)
_WORDS = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU, "gl": GPU, "sys": GPU}


@functools.cache
def written_scope(opcode):
    """The scope that an opcode names, or None: as a separate qualifier, unlike the cta of .shared::cta."""
    return next((_WORDS[word] for word in opcode.split(".")[1:] if word in _WORDS), None)


class Published:
    """Clocks published by releases, by origin and scope.

    clocks  (place of the CTA, or None for all; scope) -> clock; a place: (its cluster, its rank there)
    """

    __slots__ = ("clocks",)

    def __init__(self, clocks=None):
        self.clocks = {} if clocks is None else clocks

    def add(self, place, scope, clock):
        """A release of the CTA of a place; None: the release reaches all threads."""
        self.clocks[place, scope] = merged(self.clocks.get((place, scope)), clock)

    def copy(self):
        """A snapshot."""
        return Published({key: clock.copy() for key, clock in self.clocks.items()})

    def reaching(self, place, scope):
        """[(distance, clock)] of the releases that an acquire of this scope at this place synchronizes with."""
        found = []
        for (source, reach), clock in self.clocks.items():
            if source is None or source == place:
                distance = CTA
            else:
                distance = CLUSTER if source[0] == place[0] else GPU
            if min(reach, scope) >= distance:
                found.append((distance, clock))
        return found
