"""Matrix products of many small factors, in C: the bits of torch's, in half the time.

torch hands them to MKL, which is made for larger ones and leaves half of AVX-512's speed on AMD's processors. The
kernel adds up in the plainest order, and so does MKL where sums are short. That is tried out for every shape before
it is used; where a bit differs, or the kernel cannot be used, the product is torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_int64, c_void_p
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .native import Unavailable, library

COLUMNS = 64
"""The kernel computes so many columns at once; torch aligns memory to as many bytes."""

TINY = 3e-45
"""Makes products subnormal or zero, of either sign. Few are tried: some processors are slow with them."""

Numbers: TypeAlias = Sequence[int]


def product(one: Tensor, other: Tensor) -> Tensor:
    """``one @ other`` of matrices, or of as many matrices on the right as there are."""
    if not _suit(one, other):
        return one @ other
    found: Tensor = _PRODUCT(one, other)
    return found


def which_products() -> str:
    """Whose products these are on this machine, and why."""
    kernel = _kernel()
    return f"torch's own ({kernel})" if isinstance(kernel, Unavailable) else "compiled here"


class _Product(torch.autograd.Function):
    """Its derivatives are products again, so it can be differentiated as often as one likes."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, other: Tensor) -> Tensor:
        of_one, of_other = ctx.needs_input_grad
        ctx.save_for_backward(one if of_other else None, other if of_one else None)
        return _computed(one, other)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None]:
        one, other = ctx.saved_tensors
        return (
            None if other is None else product(slope, other.mT),
            None if one is None else product(one.mT, slope),
        )


_PRODUCT: Callable[..., Any] = _Product.apply  # torch leaves it untyped


def _suit(one: Tensor, other: Tensor) -> bool:
    """Whether these are plain numbers in memory, which nobody watches or transforms, and the kernel takes them."""
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return False
    return (
        torch.get_num_threads() == 1  # several share the sums among them
        and not torch.overrides.has_torch_function((one, other))
        and not torch._C._are_functorch_transforms_active()
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch.is_autocast_enabled("cpu")
        and torch.get_float32_matmul_precision() == "highest"
        and _plain(one)
        and _plain(other)
        and (one.ndim == other.ndim or not one.requires_grad)  # its gradient would be a sum over the others
        and _exact(one.shape, one.stride(), other.shape, other.stride())
    )


def _plain(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.dtype == torch.float32
        and tensor.layout == torch.strided
        and not tensor.is_neg()
        and _aligned(tensor)
        and forward_ad.unpack_dual(tensor).tangent is None  # type: ignore[no-untyped-call]
    )


def _aligned(tensor: Tensor) -> bool:
    """Whether it begins where tensors do; on other addresses MKL may add up in another order."""
    try:
        return tensor.data_ptr() % COLUMNS == 0
    except RuntimeError:  # many slopes at once, which only torch's own functions take
        return False


@lru_cache(maxsize=4096)  # some twenty for each size of batch
def _exact(one_shape: Numbers, one_stride: Numbers, other_shape: Numbers, other_stride: Numbers) -> bool:
    """Whether the kernel takes operands that lie like this, and gives every bit of what torch gives."""
    if not 2 <= len(one_shape) <= len(other_shape) <= 3 or 0 in (*one_shape, *other_shape):
        return False
    if one_shape[-1] != other_shape[-2] or other_shape[-1] % COLUMNS:
        return False
    if len(one_shape) == 3 and one_shape[0] != other_shape[0]:
        return False
    if isinstance(_kernel(), Unavailable):
        return False
    with torch.inference_mode(False), torch.no_grad():
        one, other = _noise(one_shape, one_stride), _noise(other_shape, other_stride, start=COLUMNS)
        if not (other.is_contiguous() or other.mT.is_contiguous()):
            return False
        other = other.clone()
        (other if other.ndim == 2 else other[0])[:, :COLUMNS] *= TINY
        return torch.equal(_computed(one, other).view(torch.int32), (one @ other).view(torch.int32))


def _noise(shape: Numbers, stride: Numbers, start: int = 0) -> Tensor:
    """Numbers without order, that lie in memory as is said. A prime number of them comes again and again: all of
    them would take as much memory as a client's vectors, in every worker."""
    reach = start + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    few = _numbers()
    return few.repeat(-(-reach // len(few))).as_strided(shape, stride, start)


@cache
def _numbers() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(65_537, generator=generator, dtype=torch.float32, device="cpu")


def _computed(one: Tensor, other: Tensor) -> Tensor:
    kernel = _kernel()
    assert not isinstance(kernel, Unavailable)
    count = other.shape[0] if other.ndim == 3 else 1
    (tall, inner), wide = one.shape[-2:], other.shape[-1]
    found = one.new_empty((*other.shape[:-2], tall, wide))
    space = None if other.is_contiguous() else one.new_empty(inner, wide)
    kernel(
        one.data_ptr(),
        other.data_ptr(),
        found.data_ptr(),
        None if space is None else space.data_ptr(),
        *(count, tall, inner, wide),
        one.stride(0) if one.ndim == 3 else 0,
        *one.stride()[-2:],
        inner * wide,
    )
    return found


@cache
def _kernel() -> Callable[..., None] | Unavailable:
    try:
        function = library(Path(__file__).with_suffix(".c")).products
    except Unavailable as reason:
        return reason
    function.argtypes = [c_void_p] * 4 + [c_int64] * 8
    function.restype = None
    return function
