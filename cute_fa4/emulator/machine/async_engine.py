"""Operations in flight: their effects happen when the scheduler completes them, never at issue.

    submit(action, label, issuer)                  unordered: may complete before or after any other
    submit(action, label, issuer, queue=key)       same key: complete one at a time, in submission order

             queue ("tensor", cta)   mma1 -> mma2 -> commit          only the head can complete
             unordered               copyA   copyB   arriveC         each one can complete

Bulk copies, tensor-core instructions and arrivals on another CTA's barriers are submitted here. schedules.py
decides which of the possible completions comes next.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cute_fa4.emulator.ptx.errors import EmulatorError


@dataclass(eq=False, slots=True)
class Operation:
    """One submitted operation: what it does at completion, and who issued it."""

    action: Callable[[], None]
    label: str
    issuer: object
    queue: object
    number: int
    cta: object = field(default=None)
    outlives_cta: bool = False
    kept_for: bool = False


class AsyncEngine:
    """The set of pending asynchronous operations of a machine."""

    def __init__(self):
        self._queues = {}  # queue key (or a fresh object when unordered) -> deque of Operation
        self.submitted = 0
        self.completed = 0
        self.observer = None

    def submit(self, action, label, issuer, queue=None, outlives_cta=False, kept_for=False):
        """Put ``action()`` in flight; it runs when the scheduler completes the operation.

        label   a few words for messages, e.g. "TMA load of 16384 bytes"
        issuer  warp.issuer() of the instruction, for messages
        queue   hashable; operations of one queue complete in submission order. None: unordered.
        outlives_cta  True if the issuing CTA may exit before the completion (a store to global memory that
                has already read its source)
        kept_for      True if the CTA's memory is kept until the completion (a store that reads it)
        Returns the Operation.
        """
        self.submitted += 1
        operation = Operation(
            action,
            label,
            issuer,
            queue,
            self.submitted,
            getattr(issuer, "cta", None),
            outlives_cta,
            kept_for,
        )
        # An unordered operation is the only member of a separate queue.
        key = ("unordered", self.submitted) if queue is None else queue
        pending = self._queues.get(key)
        if pending is None:
            self._queues[key] = deque((operation,))
        else:
            pending.append(operation)
        if self.observer is not None:
            self.observer.submit(operation)
        return operation

    @property
    def pending(self):
        """Number of operations in flight."""
        return self.submitted - self.completed

    def heads(self):
        """The operations that can complete now, one per queue, in order of submission."""
        return sorted((q[0] for q in self._queues.values()), key=lambda op: op.number)

    def operations(self):
        """Every operation in flight, in order of submission."""
        return sorted((op for q in self._queues.values() for op in q), key=lambda op: op.number)

    def complete(self, operation):
        """Run the action of a queue's head. Its errors include the issuer's location."""
        key = ("unordered", operation.number) if operation.queue is None else operation.queue
        pending = self._queues[key]
        if pending[0] is not operation:
            raise ValueError(f"{operation.label} is not at the head of its queue")
        pending.popleft()
        if not pending:
            del self._queues[key]
        self.completed += 1
        if self.observer is not None:
            self.observer.complete(operation)
        try:
            operation.action()
        except EmulatorError as error:
            text = f"{error}\n  at completion of: {operation.label}"
            if operation.issuer is not None and "PTX line" not in text:
                text += f"\n{operation.issuer.where()}"
            error.args = (text, *error.args[1:])
            raise

    def complete_oldest(self):
        """Complete the operation that was submitted first among those that can complete."""
        self.complete(min((q[0] for q in self._queues.values()), key=lambda op: op.number))

    def drain(self):
        """Complete everything, oldest first, including what completions submit."""
        while self._queues:
            self.complete_oldest()
