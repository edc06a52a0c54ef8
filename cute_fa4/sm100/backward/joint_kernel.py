"""The roles of the kernel of all gradients (joint.py): what each warp does, between setup and teardown."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ..blueprint.chip import SMEM_BASE_ALIGNMENT
from ..pair.kernel import allocate, meet, say_pair
from ..pair.sync import is_leader
from ..sync.pipelines import initialise
from . import joint_compute, joint_dq, joint_load, joint_products, load, subtracted
from .cta import SET_UP, cta_of, thread_of
from .operands import OwnerArgs
from .work import Work, work_of


@cute.jit
def run(cfg: cutlass.Constexpr, owner: cutlass.Constexpr, args: OwnerArgs):
    """A CTA, from beginning to end."""
    smem, warps = owner.smem, owner.warps
    say_pair()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    base = cute.arch.get_dyn_smem(cutlass.Int8, alignment=SMEM_BASE_ALIGNMENT)
    cta = cta_of(owner, base)
    address = cute.recast_ptr(base + smem.tmem_address.offset, dtype=Int32)
    ticket = cute.recast_ptr(base + smem.ticket.offset, dtype=Int32)
    if warp == warps.mma:
        joint_dq.take_ticket(owner, args, ticket)
    if warp == warps.load:
        counts = [barrier.count for _, _, barrier in owner.barriers.instances()]
        initialise(cta.own_full.mbarriers, counts)
    subtracted.write_ones(owner, base)
    allocate(owner.tmem_columns, address, warp, warps.mma)
    cute.arch.barrier(barrier_id=SET_UP, number_of_threads=warps.threads)
    tmem = cute.make_tensor(address, cute.make_layout(1))[0]
    work = work_of(cfg, owner, args.sizes, None, joint_dq.ticket(ticket))
    if warp < warps.compute.stop:
        cute.arch.setmaxregister_increase(warps.compute_registers)
        thread = thread_of(owner, args, tmem, warp, work)
        joint_compute.run(cfg, owner, args, cta, thread, work)
    elif warp < warps.dq.stop:
        cute.arch.setmaxregister_decrease(warps.dq_registers)
        joint_dq.run(cfg, owner, args, cta, tmem, warp - warps.dq.start, work)
    else:
        cute.arch.setmaxregister_decrease(warps.other_registers)
        if warp == warps.mma:
            multiply(owner, cta, tmem, work)
        elif warp == warps.load:
            load.run(cfg, owner, args, cta, work, joint_load.load_columns_of_keys)
    meet()
    if warp == warps.mma:
        pointer = cute.arch.retrieve_tmem_ptr(Float32, 16, address)
        cute.arch.dealloc_tmem(pointer, owner.tmem_columns, is_two_cta=True)


@cute.jit
def multiply(owner: cutlass.Constexpr, cta, tmem: Int32, work: Work):
    """The MMA warp: every product in CTA 0."""
    if is_leader():
        joint_products.run(owner, cta, tmem, work)
    else:
        joint_products.say_sent(owner, cta, work)
