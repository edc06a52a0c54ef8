"""Gradients of the tensors that a score function reads in float64, and how far off those of a correct kernel are."""

import torch

from cute_fa4.reference import max_error


def exact_and_allowed(
    tensors, function, aux, visible=None, dlse=None, out=None
) -> tuple[list, list]:
    """By the definition dF = P (dP - delta + dlse), which is pulled back through the function by torch.

    The kernel's delta is of an out that is rounded to 16 bits: twice the error that this alone makes, the rounding of
    the result, and 4e-6 of the absolute sum for float32 and the hardware's exponential.

    tensors: q, k, v and the gradient of out, dense; function: function(scores, aux) of all scores
    out: the result of the forward pass that delta is of, dense. Its rounding, and that of P in it, is then no error of
        the gradient's: exact is of this out, and the first of the three allowances is 0
    """
    q, k, v, dout = (x.detach().double().transpose(1, 2) for x in tensors)
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    wanted = [x.detach().double().requires_grad_(x.is_floating_point()) for x in aux]
    value = function(q @ k.transpose(2, 3) * q.shape[-1] ** -0.5, wanted)
    hidden = value.detach()
    if visible is not None:
        hidden = hidden.masked_fill(~visible, -torch.inf)
    p = torch.exp(hidden - hidden.logsumexp(-1, keepdim=True)).nan_to_num(0.0)
    dp = dout @ v.transpose(2, 3)
    of_lse = 0.0 if dlse is None else dlse[..., None]
    of_out = [p @ v, (p @ v).to(tensors[0].dtype).double()]
    if out is not None:
        of_out = [out.detach().double().transpose(1, 2)] * 2
    df = [p * (dp - (dout * o).sum(-1, keepdim=True) + of_lse) for o in of_out]
    df.append(df[0].abs())

    def back(x):
        """Where all scores of an element are hidden, 0, even if the slope is infinite."""
        found = torch.autograd.grad(value, wanted, x, retain_graph=True)
        return [gradient.nan_to_num(0.0) for gradient in found]

    exact, rounded, total = map(back, df)
    allowed = [
        2 * max_error(a, b) + max_error(b.to(x.dtype), b) + 4e-6 * float(c.abs().max())
        for a, b, c, x in zip(rounded, exact, total, aux, strict=True)
    ]
    return exact, allowed


def are_within(found, exact, allowed) -> bool:
    return all(max_error(a, b) <= most for a, b, most in zip(found, exact, allowed, strict=True))
