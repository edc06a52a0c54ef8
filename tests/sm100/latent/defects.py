"""Defects of the latent kernel, planted in its PTX; one line is one mistake.

Places are roles and mbarriers, as in tests/emulator/mutations/attention_places.py. The subject: two sequences of one
query of 64 heads, 300 keys: two work tiles of three key tiles, the last of them masked, which one CTA claims in order;
scores so wide that a row is rescaled in most tiles. 64 rows: the ring has no slot to spare and P lies over the rotary
columns. 3 is odd, so parities differ from work tile to work tile.
"""

from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.attention_places import (
    A_COMMIT,
    AFTER,
    AN_ARRIVAL,
    AN_INIT,
    INIT,
    MMA,
    PROXY_FENCE,
    WAIT_LD,
    announced,
    arrival,
    at,
    commit,
    expect,
    wait,
)
from tests.emulator.mutations.edits import (
    ALWAYS_TRUE,
    FLIPPED_PARITY,
    PARITY_0,
    delete,
    lines,
    move,
    replace,
)
from tests.emulator.mutations.mutant import (
    ASYNCHRONY,
    COUNTS,
    HANG,
    IN_FLIGHT,
    ORDER,
    WRONG_NUMBERS,
    Mutant,
    Subject,
)
from tests.sm100.few_rows.defects import flipped
from tests.sm100.latent.latent_batches import call_of, config_of, draw, stored

NAME = "latent"
CONFIG = config_of("mla_decode", heads_q=64, calls=("latent",))
attention_places.KNOWN[CONFIG.name] = CONFIG
SPREAD = 12.0  # of the queries: a row's maximum moves by more than 2^8 in most tiles


def subject(level) -> Subject:
    batch = draw(1, [300, 300], heads=64)
    for q in batch.q:
        q *= SPREAD
    call = stored(batch, 64)

    def of(out):
        return call_of(call, num_splits=1, out=out)

    return Subject(NAME, executes(of, call["q"][..., :512].contiguous(), level))


# --- places. A whole tile comes first, a masked one after it, then the end of the work tile.

WHOLE, MASKED = wait("softmax", "s_ready").first, wait("softmax", "s_ready").last
P_FREE = wait("softmax", "pv_done").after(WHOLE).first
P_FREE_MASKED = wait("softmax", "pv_done").after(MASKED).first
O_DONE = wait("softmax", "pv_done").last
P_READY = arrival("softmax", "p_ready").after(WHOLE).first
EXCHANGE = lines("softmax", r"bar\.sync\s+1, 128;")
A_LINE_OF_P = lines("softmax", r"st\.shared\.v4\.b32 (\[%r\d+\]), \{(.*), (.*), (.*), (.*)\};")
Q_FULL, ROPE_FULL = wait("mma", "q_full[0]"), wait("mma", "rope_full")
SLAB_FULL, LAST_SLAB_FULL = wait("mma", "kv_full").first, wait("mma", "kv_full").last
P_THERE, S_DONE = wait("mma", "p_ready"), commit("s_ready")
SLAB_FREE, LAST_SLAB_FREE = commit("kv_empty").first, commit("kv_empty").last
ROPE_FREE, PV_DONE = commit("rope_empty"), commit("pv_done")
Q_EMPTY, ROPE_EMPTY = wait("load", "q_free[0]"), wait("load", "rope_empty")
SLAB_EMPTY, LAST_SLAB_EMPTY = wait("load", "kv_empty").first, wait("load", "kv_empty").last
S_PRODUCT = lines("mma", MMA).between(SLAB_FULL, S_DONE)
ROPE_PRODUCT = lines("mma", MMA).between(ROPE_FULL, S_DONE)
O_PRODUCT = lines("mma", MMA).between(P_THERE, PV_DONE)

EARLY = (*ASYNCHRONY, *COUNTS)
EARLY_OR_HANG = (*EARLY, *HANG)


def planted(name, edit, meant, **why) -> Mutant:
    return Mutant(name, NAME, edit, meant, **why)


def waits():
    """A wait removed, for the wrong parity, or for the parity of the first work tile."""
    for role, place, what in (
        ("mma", Q_FULL, "q_full"),
        ("mma", SLAB_FULL, "the first slab"),
        ("mma", LAST_SLAB_FULL, "the last slab"),
        ("mma", ROPE_FULL, "the rotary columns"),
        ("mma", P_THERE, "p_ready"),
        ("softmax", WHOLE, "s_ready of a whole tile"),
        ("softmax", MASKED, "s_ready of a masked tile"),
        ("softmax", O_DONE, "pv_done before it stores O"),
        ("load", Q_EMPTY, "q_free"),
        ("load", SLAB_EMPTY, "kv_empty before the first slab"),
        ("load", LAST_SLAB_EMPTY, "kv_empty before the last slab"),
    ):
        yield planted(f"{role} does not wait for {what}", replace(place, ALWAYS_TRUE), EARLY)
    yield planted(
        "load does not wait for rope_empty",
        replace(ROPE_EMPTY, ALWAYS_TRUE),
        (),
        equivalent="the last slab of the tile, which comes before, has the slot of the last slab of the tile before",
    )
    for place, what in ((P_FREE, "a whole"), (P_FREE_MASKED, "a masked")):
        yield planted(
            f"softmax does not wait for pv_done before it stores P of {what} tile",
            replace(place, ALWAYS_TRUE),
            (),
            equivalent="with 64 rows S of the tile is made from slabs that the products before have released",
        )
    for role, place, what in (
        ("mma", Q_FULL, "q_full"),
        ("mma", SLAB_FULL, "the first slab"),
        ("mma", ROPE_FULL, "the rotary columns"),
        ("mma", P_THERE, "p_ready"),
        ("softmax", WHOLE, "s_ready"),
        ("softmax", O_DONE, "pv_done before it stores O"),
        ("load", SLAB_EMPTY, "kv_empty before the first slab"),
        ("load", ROPE_EMPTY, "rope_empty"),
    ):
        edit = replace(place, FLIPPED_PARITY)
        yield planted(f"{role} waits for the other parity of {what}", edit, EARLY_OR_HANG)
    edit = replace(Q_FULL, PARITY_0)
    yield planted("mma waits for q_full as in the first work tile", edit, EARLY_OR_HANG)


def arrivals():
    """Arrivals and commits: missing, twice, early, or of the wrong number."""
    yield planted("softmax does not raise p_ready", delete(P_READY), HANG)
    yield planted(
        "softmax raises p_ready twice", replace(P_READY, r"\g<0> " + AN_ARRIVAL), EARLY_OR_HANG
    )
    early = move(P_READY, before=A_LINE_OF_P.ahead_of(P_READY).last, by=AN_ARRIVAL)
    yield planted("p_ready is raised before P is stored", early, ORDER)
    for place, what in (
        (S_DONE, "s_ready"),
        (SLAB_FREE, "kv_empty of the first slab"),
        (LAST_SLAB_FREE, "kv_empty of the last slab"),
        (ROPE_FREE, "rope_empty"),
        (PV_DONE, "pv_done"),
        (commit("q_free[0]"), "q_free"),
    ):
        yield planted(f"no commit on {what}", delete(place), HANG)
    for barrier, place, what, why in (
        (
            "rope_empty",
            ROPE_FREE,
            "rope_empty is committed before the products that read P there",
            dict(
                equivalent="the last slab of the next tile, which comes before, waits for these products"
            ),
        ),
        ("pv_done", PV_DONE, "pv_done is committed before the products", {}),
    ):
        now = f"{A_COMMIT} [__dynamic_shmem__0+{at(CONFIG, barrier + '[0]')}]; "
        yield planted(
            what,
            lambda ptx, now=now, place=place: delete(place)(
                replace(O_PRODUCT.first, now + r"\g<0>")(ptx)
            ),
            () if why else (*EARLY, *IN_FLIGHT),
            **why,
        )
    for name, count in (("p_ready", 127), ("p_ready", 129), ("s_ready", 2), ("rope_empty", 2)):
        lane = CONFIG.barriers.first_index(name)
        mine = "{.reg .pred mine; .reg .b32 lane, changed; mov.u32 lane, %laneid; " + (
            f"setp.eq.u32 mine, lane, {lane}; selp.b32 changed, {count}, "
        )
        edit = replace(lines("prologue", INIT), mine + r"\2, mine; " + AN_INIT + r" \1, changed;}")
        yield planted(f"{name}[0] counts {count} arrivals", edit, (*COUNTS, *HANG))
    for what, nbytes, place, meant in (
        ("half of a slab is expected", 16384, expect("kv_full").first, EARLY_OR_HANG),
        ("half of the rotary columns is expected", 8192, expect("rope_full"), EARLY_OR_HANG),
        ("16 bytes of the last slab too many are expected", 32784, expect("kv_full").last, HANG),
    ):
        yield planted(what, announced(nbytes, place), meant)


def order():
    """Fences, waits for tensor memory, and the barrier of the softmax warps."""
    fence = lines("softmax", PROXY_FENCE)
    yield planted("no proxy fence after P", delete(fence.first), ORDER)
    late = move(fence.ahead_of(P_READY).last, before=A_LINE_OF_P.ahead_of(P_READY).last)
    yield planted("the proxy fence is before P", late, ORDER)
    after = lines("softmax", AFTER)
    yield planted("no tcgen05 fence after s_ready", delete(after.after(WHOLE).first), ORDER)
    yield planted("no tcgen05 fence before O is stored", delete(after.last), ORDER)
    loads = lines("softmax", WAIT_LD)
    yield planted("no wait for the scores", delete(loads.first), ORDER)
    yield planted("no wait for O before it is stored", delete(loads.last), ORDER)
    for place, what in (
        (EXCHANGE.first, "the maxima of a whole tile"),
        (EXCHANGE.last, "the row sums"),
    ):
        yield planted(
            f"no barrier between the warps before {what} are read", delete(place), ASYNCHRONY
        )


def numbers():
    """Defects of arithmetic."""
    vote = lines("softmax", r"vote\.sync\.any\.pred\s+(%p\d+), %p\d+, -1;")
    never = replace(vote.first, r"setp.ne.u32 \1, 0, 0;")
    yield planted("O is never rescaled in a whole tile", never, (WRONG_NUMBERS,))
    for place, value, what in (
        (S_PRODUCT.first, 1, "the first slab adds to the old S"),
        (ROPE_PRODUCT.first, 0, "the rotary columns begin a new S"),
    ):
        edit = replace(
            place, rf"@leader_thread tcgen05.mma.cta_group::1.kind::f16 \1, \2, \3, {value};"
        )
        yield planted(what, edit, (WRONG_NUMBERS, *ASYNCHRONY))
    for place, bit, what in (
        (O_PRODUCT.first, 15, "V is K-major in the instruction descriptor"),
        (O_PRODUCT.last, 16, "P is K-major for the last output"),
        (ROPE_PRODUCT.first, 16, "Q is MN-major for the rotary columns"),
    ):
        yield planted(what, flipped(place, bit), (WRONG_NUMBERS, *ASYNCHRONY, "IllegalAccess"))


def mutants() -> tuple:
    return tuple(mutant for group in (waits, arrivals, order, numbers) for mutant in group())
