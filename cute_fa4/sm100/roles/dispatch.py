"""Assigns roles to the warps of a CTA, for families of two softmax warpgroups (warp_roles.py).

A family supplies its order of products, which fills in the hooks of order.py.
"""

import cutlass
import cutlass.cute as cute

from ..sync.kernel_args import KernelArgs
from ..work.blocks import own_block
from . import correction, load, softmax, token_scales, values


def own_lanes(tmem_address, warp):
    """The tensor-memory address of the 32 lanes that a warp can access, given by its rank in the warpgroup."""
    return first_column(tmem_address) + (warp % 4) * (32 << 16)


def first_column(tmem_address: cute.Pointer):
    """The tensor-memory address that tcgen05.alloc wrote to a shared address."""
    return cute.make_tensor(tmem_address, cute.make_layout(1))[0]


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    args: KernelArgs,
    cta,
    warp,
):
    """cta: a CTA of kernel.py."""
    warps = cfg.warps
    if warp < warps.softmax.stop:
        cute.arch.setmaxregister_increase(warps.softmax_registers)
        i = warp // 4
        s_address = own_lanes(cta.tmem_address, warp) + i * (cfg.tmem.s[-1] - cfg.tmem.s[0])
        events = cta.events.seen_by("softmax")
        softmax.run(cfg, order, args, cta.smem, s_address, events, cta.queue, i)
    elif warp < warps.correction.stop:
        cute.arch.setmaxregister_decrease(warps.correction_registers)
        lanes = own_lanes(cta.tmem_address, warp)
        events = cta.events.seen_by("correction")
        correction.run(cfg, order, args, cta.smem, lanes, events, cta.queue)
    else:
        cute.arch.setmaxregister_decrease(warps.other_registers)
        if warp == warps.mma.start:
            tmem = first_column(cta.tmem_address)
            order.run(cfg, args, cta.smem, tmem, cta.events, cta.consumer, cta.queue)
        elif warp == warps.load.start:
            block = own_block(cfg)
            own = cta.of_load if cutlass.const_expr(cfg.load_apart) else cta
            load.run(cfg, args, own.smem, own.events, own.producer, own.queue, block, order)
        if cutlass.const_expr(cfg.token_scales):
            if warp == warps.scales.start:
                token_scales.run(cfg, order, args, cta.smem, cta.events, cta.queue)
        if cutlass.const_expr(warps.values):
            if warp == warps.values.start:
                values.run(cfg, args, cta.smem, cta.producer, cta.queue)
