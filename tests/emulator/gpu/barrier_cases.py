"""Barriers inside of a CTA: named barriers, and mbarriers over many phases against a model of their definition."""

import random

import numpy as np

from tests.emulator.gpu.ptx_cases import Case, Results, init_barriers, kernel, wait

THREADS = np.arange(128)


def cases():
    """All cases of this file."""
    yield exchange()
    yield producer_consumer()
    yield reduction()
    yield half_warps()
    for seed in range(6):
        yield mbarrier_operations(seed)
    yield reinitialised()
    yield late_expectation()
    yield pending_count()
    yield ring()
    yield many_arrivals()


def case(name, body, results, section, shared=1024, **options):
    text = kernel(body, threads=results.threads)
    return Case(
        name, text, (results.fresh,), (results.expected,), block=(results.threads, 1, 1),
        shared=shared, section=section, **options,
    )  # fmt: skip


# --- named barriers -----------------------------------------------------------------------------------------------


def exchange():
    """Two pairs of warps, each with its own barrier of 64 threads (number and count in registers), three rounds."""
    results = Results(128)
    body = "shr.u32 %r1, warp, 1; add.s32 %r1, %r1, 1; mov.b32 %r2, 64; mov.b32 %r8, tid;"
    body += "shl.b32 %r3, tid, 2; add.s32 %r3, smem, %r3; xor.b32 %r4, %r3, 128;\n    "
    value = THREADS
    for step in range(3):
        body += "st.shared.b32 [%r3], %r8; bar.sync %r1, %r2; ld.shared.b32 %r8, [%r4];"
        body += f"mad.lo.s32 %r8, %r8, 3, {step}; bar.sync %r1, %r2;\n    "
        value = value[THREADS ^ 32] * 3 + step
        body += results.save("%r8", value)
    return case("barrier/pairs", body, results, "bar")


def producer_consumer():
    """Warp 0 fills a slot that warp 1 adds up, 6 times; bar.arrive by the one that need not wait."""
    results = Results(64)
    body = "shl.b32 %r3, lane, 2; add.s32 %r3, smem, %r3; mov.b32 %r5, 0; mov.b32 %r6, 0;"
    body += "setp.eq.b32 %p1, warp, 1; @%p1 bra CONSUMER;\n    "
    body += "PRODUCE: bar.sync 2, 64; mad.lo.s32 %r4, lane, 5, %r6; st.shared.b32 [%r3], %r4;"
    body += "bar.arrive 1, 64; add.s32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, 6; @%p2 bra PRODUCE;"
    body += "mov.b32 %r5, 1; bra.uni DONE;\n    "
    body += "CONSUMER: bar.arrive 2, 64; bar.sync 1, 64; ld.shared.b32 %r4, [%r3]; add.s32 %r5, %r5, %r4;"
    body += "add.s32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, 6; @%p2 bra CONSUMER;\n    DONE:"
    lane = np.arange(64) % 32
    body += results.save("%r5", np.where(np.arange(64) < 32, 1, 6 * 5 * lane + 15))
    return case("barrier/arrive", body, results, "bar")


def reduction():
    """popc, and, or of a predicate over the CTA and over three of four warps."""
    results, body = Results(128), "setp.lt.u32 %p9, warp, 3;"
    tests = {
        "setp.lt.u32 %p1, tid, 40;": THREADS < 40,
        "setp.lt.u32 %p1, tid, 96;": THREADS < 96,
        "setp.gt.u32 %p1, tid, 200;": THREADS > 200,
    }
    for text, true in tests.items():
        for guard, operands, members in (
            ("", "0", THREADS >= 0),
            ("@%p9 ", "3, 96", THREADS < 96),
        ):
            body += f"{text} mov.b32 %r1, 500; {guard}bar.red.popc.u32 %r1, {operands}, %p1;\n    "
            body += results.save("%r1", np.where(members, (true & members).sum(), 500))
            for mode, outcome in (("and", true[members].all()), ("or", true[members].any())):
                body += "setp.ne.b32 %p3, tid, tid;"
                body += f"{guard}bar.red.{mode}.pred %p3, {operands}, !%p1;\n    "
                negated = ~true[members]
                outcome = negated.all() if mode == "and" else negated.any()
                body += results.save_pred("%p3", members & outcome)
    return case("barrier/red", body, results, "bar")


def half_warps():
    """barrier.sync (not .aligned) in both sides of a branch: 16 + 16 threads of one warp and 32 of another."""
    results = Results(64)
    body = "shl.b32 %r3, tid, 2; add.s32 %r3, smem, %r3; setp.lt.u32 %p1, tid, 16; @%p1 bra LOW;"
    body += "mul.lo.s32 %r4, tid, 3; st.shared.b32 [%r3], %r4; barrier.sync 4, 64; bra MEET;\n    "
    body += "LOW: mul.lo.s32 %r4, tid, 5; st.shared.b32 [%r3], %r4; barrier.sync 4, 64;\n    MEET:"
    body += "sub.s32 %r5, 63, tid; shl.b32 %r5, %r5, 2; add.s32 %r5, smem, %r5; ld.shared.b32 %r1, [%r5];\n    "
    other = 63 - np.arange(64)
    body += results.save("%r1", np.where(other < 16, 5 * other, 3 * other))
    return case("barrier/half warps", body, results, "barrier")


# --- mbarrier operations, one thread --------------------------------------------------------------------------------


class Model:
    """An mbarrier as PTX ISA, "Phase of the mbarrier object", defines it: counts and a completion rule."""

    def __init__(self, count):
        self.expected = self.pending = count
        self.tx = self.phase = 0

    def apply(self, operation, n):
        if operation in ("expect_tx", "arrive.expect_tx", "arrive_drop.expect_tx"):
            self.tx += n
        if operation == "complete_tx":
            self.tx -= n
        if operation.startswith("arrive"):
            arrivals = 1 if operation.endswith("expect_tx") else n
            self.pending -= arrivals
            if "drop" in operation:
                self.expected -= arrivals
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.expected

    def legal(self, operation, n):
        """Is the operation defined here, and does it leave the barrier where later ones are defined?"""
        arrivals = 1 if operation.endswith("expect_tx") else n
        tx = self.tx + (n if "expect" in operation else 0)
        if operation == "complete_tx":
            # bytes may come before they are expected, as long as an arrival is still to come
            return n <= self.tx or (self.pending > 0 and self.tx - n > -4096)
        if operation == "expect_tx":
            return self.pending > 0
        if "drop" in operation and self.expected - arrivals < 1:
            return False
        limit = self.pending - 1 if "noComplete" in operation else self.pending
        return arrivals <= limit and (arrivals < self.pending or tx >= 0)


def operation_text(operation, n):
    """(PTX on the mbarrier at smem, whether it puts a state into %d1)."""
    if operation in ("expect_tx", "complete_tx"):
        return f"mbarrier.{operation}.relaxed.cta.shared::cta.b64 [smem], {n};", False
    count = f", {n}" if n != 1 or "expect" in operation or "noComplete" in operation else ""
    return f"mbarrier.{operation}.shared::cta.b64 %d1, [smem]{count};", True


OPERATIONS = (
    "arrive", "arrive", "arrive.expect_tx", "expect_tx", "complete_tx", "complete_tx",
    "arrive.noComplete", "arrive_drop", "arrive_drop.expect_tx", "arrive_drop.noComplete",
)  # fmt: skip


def mbarrier_operations(seed):
    """40 random legal operations; after each: both parities, and the state of the latest arrival."""
    rng, results = random.Random(seed), Results(1)
    model, state = Model(rng.randint(3, 12)), None
    body = init_barriers(model.expected) + "@!%p0 bra END;\n    "
    steps = 0
    while steps < 40:
        operation = rng.choice(OPERATIONS)
        if "drop" in operation and rng.random() < 0.5:
            continue
        n = rng.randint(1, 3) if operation.startswith("arrive") else 16 * rng.randint(1, 9)
        if operation.endswith("expect_tx"):
            n = 16 * rng.randint(1, 9)
        if operation == "complete_tx" and model.tx > 0 and rng.random() < 0.7:
            n = model.tx
        if not model.legal(operation, n):
            continue
        steps += 1
        text, gives_state = operation_text(operation, n)
        if gives_state:
            state = model.phase
        model.apply(operation, n)
        body += text + "\n    "
        for parity in (0, 1):
            body += f"mbarrier.test_wait.parity.shared::cta.b64 %p1, [smem], {parity};"
            body += results.save_pred("%p1", (model.phase - 1) & 1 == parity)
        if state is not None and state >= model.phase - 1:
            body += "mbarrier.test_wait.shared::cta.b64 %p1, [smem], %d1;"
            body += results.save_pred("%p1", model.phase > state)
            body += (
                "mbarrier.try_wait.shared::cta.b64 %p1, [smem], %d1, 0;"
                if model.phase > state
                else ""
            )
            body += results.save_pred("%p1", True) if model.phase > state else ""
    return case(f"mbarrier/operations {seed}", body, results, "mbarrier")


def reinitialised():
    """mbarrier.inval, then the same bytes as ordinary memory, then a fresh barrier in phase 0."""
    results = Results(1)
    body = init_barriers(1) + "@!%p0 bra END; mbarrier.arrive.shared::cta.b64 %d1, [smem];"
    body += "mbarrier.test_wait.parity.shared::cta.b64 %p1, [smem], 0;" + results.save_pred(
        "%p1", 1
    )
    body += "mbarrier.inval.shared::cta.b64 [smem]; mov.b32 %r1, 77; st.shared.b32 [smem], %r1;"
    body += "ld.shared.b32 %r2, [smem]; mbarrier.init.shared::cta.b64 [smem], 2;\n    "
    body += results.save("%r2", 77)
    for arrivals in range(3):
        for parity in (0, 1):
            body += f"mbarrier.test_wait.parity.shared::cta.b64 %p1, [smem], {parity};"
            body += results.save_pred("%p1", (arrivals // 2 - 1) & 1 == parity)
        body += "mbarrier.arrive.shared::cta.b64 %d1, [smem];\n    "
    return case("mbarrier/inval", body, results, "mbarrier.inval")


def late_expectation():
    """The last arrival comes while tx-count is negative; then expect_tx brings it back to zero."""
    results = Results(1)
    body = init_barriers(1) + "@!%p0 bra END;"
    body += "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [smem], 64; mbarrier.arrive.shared::cta.b64 _, [smem];"
    body += "mbarrier.test_wait.parity.shared::cta.b64 %p1, [smem], 0;\n    "
    body += results.save_pred("%p1", False)
    body += "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [smem], 64;"
    body += "mbarrier.test_wait.parity.shared::cta.b64 %p1, [smem], 0;\n    "
    body += results.save_pred("%p1", False)
    mask = np.repeat([False, True], 4)
    question = "does an expect_tx that brings tx-count back to zero complete the phase? (emulator: no; H200: yes)"
    return case("mbarrier/late expect_tx", body, results, "expect-tx operation", open=(mask,),
                question=question)  # fmt: skip


def pending_count():
    """mbarrier.pending_count of the states of five arrivals: the count before each."""
    results = Results(1)
    body = init_barriers(5) + "@!%p0 bra END;\n    "
    for arrivals in range(5):
        body += "mbarrier.arrive.shared::cta.b64 %d1, [smem]; mbarrier.pending_count.b64 %r1, %d1;\n    "
        body += results.save("%r1", 5 - arrivals)
    return case("mbarrier/pending_count", body, results, "mbarrier.pending_count")


# --- mbarriers between warps -----------------------------------------------------------------------------------------


def ring():
    """Two producer and two consumer warps, a ring of two slots, 10 rounds: full and empty barriers of 64 arrivals."""
    results, rounds = Results(128), 10
    body = init_barriers(64, 64, 64, 64)  # full 0, full 1, empty 0, empty 1
    body += "and.b32 %r1, tid, 63; shl.b32 %r2, %r1, 2; add.s32 %r2, smem, %r2; mov.b32 %r3, 0; mov.b32 %r8, 0;"
    body += "setp.ge.u32 %p1, tid, 64; @%p1 bra CONSUMER;\n    "
    position = "and.b32 %r4, %r3, 1; shr.u32 %r5, %r3, 1; and.b32 %r5, %r5, 1; shl.b32 %r6, %r4, 3;"
    position += "add.s32 %r6, smem, %r6; shl.b32 %r7, %r4, 8; add.s32 %r7, %r2, %r7;\n    "
    again = f"add.s32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, {rounds};"
    body += f"PRODUCE: {position} xor.b32 %r5, %r5, 1; add.s32 %r9, %r6, 16; {wait('%r9', '%r5')}"
    body += "mad.lo.s32 %r10, %r1, 3, %r3; st.shared.b32 [%r7+64], %r10;"
    body += (
        f"mbarrier.arrive.shared::cta.b64 _, [%r6]; {again} @%p2 bra PRODUCE; bra.uni DONE;\n    "
    )
    body += f"CONSUMER: {position} {wait('%r6', '%r5')} ld.shared.b32 %r10, [%r7+64]; add.s32 %r8, %r8, %r10;"
    body += f"mbarrier.arrive.shared::cta.b64 _, [%r6+16]; {again} @%p2 bra CONSUMER;\n    DONE:"
    column = THREADS % 64
    sums = rounds * 3 * column + rounds * (rounds - 1) // 2
    body += results.save("%r8", np.where(THREADS < 64, 0, sums))
    return case("mbarrier/ring", body, results, "mbarrier.try_wait")


def many_arrivals():
    """128 threads arrive with their own counts (1 to 4): 320 in all; then every second thread drops out."""
    counts = THREADS % 4 + 1
    results = Results(128)
    body = init_barriers(int(counts.sum()))
    body += "and.b32 %r1, tid, 3; add.s32 %r1, %r1, 1; setp.ge.u32 %p1, %r1, 3;\n    "
    # counts 3 and 4 drop out in the first phase: 1 + 2 of every four threads are left for the next ones
    body += "@%p1 mbarrier.arrive_drop.shared::cta.b64 _, [smem], %r1;"
    body += "@!%p1 mbarrier.arrive.shared::cta.b64 _, [smem], %r1;\n    " + wait("smem", 0)
    for phase in (1, 2):
        body += "mbarrier.test_wait.parity.shared::cta.b64 %p2, [smem], 1; bar.sync 0;\n    "
        if phase == 1:
            body += results.save_pred("%p2", False)
        body += f"@!%p1 mbarrier.arrive.shared::cta.b64 _, [smem], %r1; {wait('smem', phase & 1)} bar.sync 0;\n    "
        body += f"mbarrier.test_wait.parity.shared::cta.b64 %p2, [smem], {phase & 1};\n    "
        body += results.save_pred("%p2", True)
    return case("mbarrier/counts and drops", body, results, "mbarrier.arrive_drop")
