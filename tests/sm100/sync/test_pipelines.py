"""The K/V ring: producer and consumer meet in the order of the design, for every ring size."""

from dataclasses import dataclass, field

import pytest

from cute_fa4.sm100.sync import pipelines


@dataclass
class Log:
    """Records what the pipelines would do to the mbarriers."""

    events: list = field(default_factory=list)


@pytest.fixture
def log(monkeypatch):
    log = Log()

    class Arch:
        @staticmethod
        def mbarrier_wait(mbarrier, phase):
            log.events.append(("wait", int(mbarrier), int(phase)))

    monkeypatch.setattr(pipelines.cute, "arch", Arch)
    monkeypatch.setattr(pipelines, "Int32", int)
    monkeypatch.setattr(
        pipelines.tensor_core,
        "commit",
        lambda address: log.events.append(("commit", int(address))),
    )
    return log


class Address(int):
    """An mbarrier address: adding gives another one, toint() the number."""

    def __add__(self, other):
        return Address(int(self) + other)

    def toint(self):
        return int(self)


FULL, EMPTY = Address(0), Address(1000)


@pytest.mark.parametrize("slots", [3, 4, 5, 12])
def test_the_consumer_follows_the_traced_order(log, slots):
    """wait K0, release K0, wait V0, then for each n: wait Kn, release V(n-1), release Kn, wait Vn."""
    kv = pipelines.KVConsumerPipeline(FULL, EMPTY, slots, 1)
    at = kv.first()
    kv.wait_k(at, 0)
    kv.release(at)
    at = kv.advance_to_v(at)
    kv.wait_v(at)
    for _ in range(6):
        at = kv.advance_to_k(at)
        kv.wait_k(at, 0)
        kv.release_v(at)
        kv.release(at)
        at = kv.advance_to_v(at)
        kv.wait_v(at)

    def wait(position):
        return ("wait", position % slots, position // slots % 2)

    def release(position):
        return ("commit", 1000 + position % slots)

    expected = [wait(0), release(0), wait(1)]
    for n in range(1, 7):  # K of tile n is the ring's 2n-th tile, V the one after
        expected += [wait(2 * n), release(2 * n - 1), release(2 * n), wait(2 * n + 1)]
    assert log.events == expected


@pytest.mark.parametrize("slots", [3, 5])
def test_the_producer_finds_every_slot_free_once_and_then_waits_for_the_release(log, slots):
    producer = pipelines.TMAProducerPipeline(FULL, EMPTY, slots, 1, k_bytes=(1,), v_bytes=1)
    at = producer.first()
    for _ in range(3 * slots):
        producer.acquire(at)
        at = producer.commit_step(at)
    # A fresh barrier lets parity 1 through; the n-th time round waits for the n-th release.
    assert log.events == [
        ("wait", 1000 + i % slots, (i // slots + 1) % 2) for i in range(3 * slots)
    ]


def test_slots_are_released_in_the_order_in_which_they_were_filled(log):
    """Otherwise the producer, which walks the ring in order, would wait for a slot after a free one."""
    kv = pipelines.KVConsumerPipeline(FULL, EMPTY, 5, 1)
    at = kv.first()
    kv.release(at)
    at = kv.advance_to_v(at)
    for _ in range(9):
        at = kv.advance_to_k(at)
        kv.release_v(at)
        kv.release(at)
        at = kv.advance_to_v(at)
    released = [address - 1000 for _, address in log.events]
    assert released == [i % 5 for i in range(len(released))]
