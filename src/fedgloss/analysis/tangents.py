"""The Hessian-vector product of one batch.

With outputs z(w) and their tangent dz = z'(w) v, the product H v is the gradient of <loss'(z), dz>. So a tangent
runs forward beside the activations, layer by layer, and one backward pass returns the product. PyTorch's own ways
(backward twice, or forward mode over backward) compute convolutions whose result is zero or thrown away and leave
the channels-last layout in max-pooling: for a convolutional network they need 3 times a gradient, this needs 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ..tasks import Loss

Function: TypeAlias = Callable[..., Any]


def hessian_vector(
    module: nn.Module,
    loss: Loss,
    parameters: Sequence[Tensor],
    inputs: Tensor,
    targets: Tensor,
    vector: Sequence[Tensor],
) -> list[Tensor | None]:
    """The Hessian of the batch's mean loss times the vector, a tensor per parameter; None where it is zero."""
    tangents = Tangents(zip(parameters, vector, strict=True))
    with tangents:
        outputs = module(inputs)
    slope = tangents[outputs]
    cut = outputs.detach().requires_grad_()
    (first,) = torch.autograd.grad(loss(cut, targets), cut, create_graph=True)
    pulled = [(outputs, _second(first, cut, slope.detach())), (slope, first.detach())]
    return _gradients([(tensor, weight) for tensor, weight in pulled if tensor.requires_grad], parameters)


def hessian_vector_by_double_backward(
    module: nn.Module,
    loss: Loss,
    parameters: Sequence[Tensor],
    inputs: Tensor,
    targets: Tensor,
    vector: Sequence[Tensor],
) -> list[Tensor | None]:
    """The same by differentiating the gradient: slower, but right for whatever autograd can differentiate twice."""
    value = loss(module(inputs), targets)
    first = torch.autograd.grad(value, parameters, create_graph=True, allow_unused=True)
    pulled = [(g, part) for g, part in zip(first, vector, strict=True) if g is not None and g.requires_grad]
    return _gradients(pulled, parameters)


def _second(first: Tensor, cut: Tensor, slope: Tensor) -> Tensor:
    """The loss's own second derivative, at the outputs; zero for a loss that is linear in them."""
    if not first.requires_grad:
        return torch.zeros_like(cut)
    (found,) = torch.autograd.grad(first, cut, slope, allow_unused=True)
    return torch.zeros_like(cut) if found is None else found


def _gradients(pulled: Sequence[tuple[Tensor, Tensor]], parameters: Sequence[Tensor]) -> list[Tensor | None]:
    if not pulled:
        return [None] * len(parameters)
    tensors, weights = zip(*pulled, strict=True)
    return list(torch.autograd.grad(tensors, parameters, weights, allow_unused=True))


class Tangents(TorchFunctionMode):
    """While active, every tensor computed from the given ones gets a tangent beside it, itself differentiable.

    A function without a rule of its own is differentiated by autograd: its pull-back is linear in what is pulled,
    so pulling the pull-back pushes the tangent.
    """

    def __init__(self, given: Iterable[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._tangents: dict[int, Tensor] = {}
        self._alive: list[Tensor] = []  # an id means nothing once its tensor is gone
        for tensor, tangent in given:
            self.set(tensor, tangent)

    def __getitem__(self, tensor: Tensor) -> Tensor:
        return self._tangents[id(tensor)]

    def get(self, tensor: Any) -> Tensor | None:
        return self._tangents.get(id(tensor))

    def set(self, tensor: Tensor, tangent: Tensor) -> None:
        self._tangents[id(tensor)] = tangent
        self._alive.append(tensor)

    def __torch_function__(
        self,
        func: Function,
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if "inplace" in kwargs:  # a tensor whose tangent is known must keep its value
            kwargs["inplace"] = False
        if all(self.get(leaf) is None for leaf in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        rule = RULES.get(func)
        pushed = rule(self, func, *args, **kwargs) if rule else None
        if pushed is None:
            return self._by_autograd(func, args, kwargs)
        self.set(*pushed)
        return pushed[0]

    def _by_autograd(self, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        aliases: dict[int, Tensor] = {}  # one may depend on another: an alias cuts that path

        def alias(leaf: Any) -> Any:
            if self.get(leaf) is None:
                return leaf
            return aliases.setdefault(id(leaf), leaf.view_as(leaf))

        outputs = func(*tree_map(alias, tuple(args)), **tree_map(alias, kwargs))
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor) and output.requires_grad:
                probe = torch.zeros_like(output, requires_grad=True)
                pulled = torch.autograd.grad(
                    output, list(aliases.values()), probe, create_graph=True, allow_unused=True
                )
                pairs = [(p, self._tangents[i]) for p, i in zip(pulled, aliases, strict=True) if p is not None]
                backs, tangents = zip(*pairs, strict=True)
                self.set(output, torch.autograd.grad(backs, probe, tangents, create_graph=True)[0])
        return outputs


Pushed: TypeAlias = tuple[Tensor, Tensor] | None
"""An output and its tangent, or None: this case is for autograd."""


def _bilinear(
    tangents: Tangents,
    func: Function,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *rest: Any,
    **kw: Any,
) -> Pushed:
    """Convolutions and linear layers: the product rule, without the terms that are zero."""
    if (slope := tangents.get(weight)) is None:
        return None
    pushed = func(input, slope, tangents.get(bias), *rest, **kw)
    if (slope := tangents.get(input)) is not None:
        pushed = pushed + func(slope, weight, None, *rest, **kw)
    return func(input, weight, bias, *rest, **kw), pushed


def _relu(tangents: Tangents, func: Function, input: Tensor, inplace: bool = False) -> Pushed:
    output = torch.relu(input)
    return output, tangents[input] * (output > 0)


def _max_pool2d(tangents: Tangents, func: Function, input: Tensor, *rest: Any, **kw: Any) -> Pushed:
    """The tangent follows the maximum, picked in the order in which the pictures lie in memory."""
    if kw.pop("return_indices", False) or input.ndim != 4:
        return None
    output, chosen = F.max_pool2d(input, *rest, **kw, return_indices=True)
    slope = tangents[input]
    if input.is_contiguous(memory_format=torch.channels_last):
        rows = slope.permute(0, 2, 3, 1).flatten(1, 2)
        picked = rows.gather(1, chosen.permute(0, 2, 3, 1).flatten(1, 2))
        return output, picked.view(len(output), *output.shape[2:], -1).permute(0, 3, 1, 2)
    return output, slope.flatten(2).gather(2, chosen.flatten(2)).view_as(output)


def _group_norm(
    tangents: Tangents,
    func: Function,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Pushed:
    if (slope := tangents.get(input)) is None or weight is None or bias is None:
        return None
    normal, pushed = cast(tuple[Tensor, Tensor], _NORMALISE(input, slope, num_groups, eps))

    def per_channel(vector: Tensor) -> Tensor:
        return vector.view(-1, *[1] * (input.ndim - 2))

    pushed = pushed * per_channel(weight)
    if (slope := tangents.get(weight)) is not None:
        pushed = torch.addcmul(pushed, normal, per_channel(slope))
    if (slope := tangents.get(bias)) is not None:
        pushed = pushed + per_channel(slope)
    return torch.addcmul(per_channel(bias), normal, per_channel(weight)), pushed


class _Normalise(torch.autograd.Function):
    """Groups brought to mean 0 and variance 1, and the tangent of that.

    With n = (x - mean) r and r = 1 / sqrt(variance + eps), over m values, the derivative
    J = r (I - 1 1'/m - n n'/m) is symmetric, so PyTorch's backward kernel pushes tangents too; and the gradient of
    v'J u by x is -(r / m) ((v'J u) n + (n'v) J u + (n'u) J v).
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, slope: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
        sizes = len(input), input.shape[1], input[0, 0].numel(), groups
        normal, mean, scale = torch.native_group_norm(input, None, None, *sizes, eps)
        pushed = _derivative(slope, input, mean, scale, sizes)
        ctx.sizes = sizes
        ctx.save_for_backward(input, slope, normal, mean, scale, pushed)
        return normal, pushed

    @staticmethod
    def backward(ctx: Any, of_normal: Tensor, of_pushed: Tensor) -> tuple[Tensor, Tensor, None, None]:
        input, slope, normal, mean, scale, pushed = ctx.saved_tensors
        back = _derivative(of_pushed, input, mean, scale, ctx.sizes)
        gradient = _derivative(of_normal, input, mean, scale, ctx.sizes)
        groups = ctx.sizes[-1]
        size = input[0].numel() // groups

        def grouped(tensor: Tensor) -> Tensor:
            return tensor.view(len(input), groups, -1, *input.shape[2:])

        def dot(one: Tensor, other: Tensor) -> Tensor:
            sums = grouped(one * other).flatten(2).sum(2)
            shares: Tensor = sums * scale / -size
            return shares.view(len(input), groups, *[1] * (input.ndim - 1))

        for along, share in (
            (normal, dot(of_pushed, pushed)),
            (pushed, dot(normal, of_pushed)),
            (back, dot(normal, slope)),
        ):
            grouped(gradient).addcmul_(grouped(along), share)
        return gradient, back, None, None


_NORMALISE: Function = _Normalise.apply  # torch leaves it untyped


def _derivative(
    vector: Tensor, input: Tensor, mean: Tensor, scale: Tensor, sizes: tuple[int, int, int, int]
) -> Tensor:
    """J times the vector."""
    kernel = torch.ops.aten.native_group_norm_backward
    found: Tensor = kernel(_like(vector, input), input, mean, scale, None, *sizes, [True, False, False])[0]
    return found


def _like(vector: Tensor, model: Tensor) -> Tensor:
    """In the memory order of the other, which the kernels expect."""
    if model.ndim == 4 and model.is_contiguous(memory_format=torch.channels_last):
        return vector.contiguous(memory_format=torch.channels_last)
    return vector.contiguous()


def _linear(tangents: Tangents, func: Function, input: Tensor, *rest: Any, **kw: Any) -> Pushed:
    """Functions linear in their first argument."""
    return func(input, *rest, **kw), func(tangents[input], *rest, **kw)


def _sum(tangents: Tangents, func: Function, one: Any, other: Any) -> Pushed:
    first, second = tangents.get(one), tangents.get(other)
    if first is None or second is None:
        return None
    return one + other, first + second


def _product(tangents: Tangents, func: Function, one: Any, other: Any) -> Pushed:
    """Matrix products: the product rule, without the term of a factor that does not move."""
    first, second = tangents.get(one), tangents.get(other)
    if first is None:
        pushed = func(one, second)
    elif second is None:
        pushed = func(first, other)
    else:
        pushed = func(first, other) + func(one, second)
    return func(one, other), pushed


RULES: dict[Function, Callable[..., Pushed]] = {
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d, F.linear), _bilinear),
    **dict.fromkeys((F.relu, torch.relu, torch.relu_, Tensor.relu), _relu),
    F.max_pool2d: _max_pool2d,
    F.group_norm: _group_norm,
    **dict.fromkeys((torch.flatten, Tensor.flatten, Tensor.view, Tensor.reshape, Tensor.permute), _linear),
    **dict.fromkeys((Tensor.contiguous, Tensor.mean, F.avg_pool2d, F.adaptive_avg_pool2d), _linear),
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__iadd__), _sum),
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm), _product),
}
