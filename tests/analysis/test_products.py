"""Values, gradients and Hessian products of a mean loss, for all sorts of networks and data."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from curvature import Known, dense_hessian, small_cnn
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedgloss import InvalidInput
from fedgloss.analysis import MeanLoss
from fedgloss.analysis import mean_loss as mean_loss_module
from fedgloss.analysis.tangents import hessian_vector, hessian_vector_by_double_backward
from fedgloss.data import ArraySamples, Subset
from fedgloss.models import build
from fedgloss.vectors import norm


class Residual(nn.Module):
    """What residual networks do: normalise, add in place, rectify in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.first(inputs))
        hidden += inputs
        return self.relu(hidden)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(9, 4), nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.cell(self.embed(tokens))[0][:, -1])
        return outputs


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 4), nn.Linear(4, 3)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.layer(self.embed(tokens)).mean(1))
        return outputs


class Sine(torch.autograd.Function):
    """A kernel of the user's own, which only autograd sees."""

    @staticmethod
    def forward(ctx, inputs):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(inputs)
        return inputs.sin()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient * ctx.saved_tensors[0].cos()


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(6, 5), nn.Linear(5, 3), nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        outputs: Tensor = self.second(Sine.apply(hidden) + hidden)
        return outputs


class Reused(nn.Module):
    """One tensor used twice, one of them by way of the other; broadcasting; a weight without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale, self.out = nn.Linear(6, 6), nn.Parameter(torch.ones(6)), nn.Linear(12, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.layer(inputs)) + self.scale
        outputs: Tensor = self.out(torch.cat([hidden, self.layer(hidden) * hidden.sigmoid()], 1))
        return outputs


class Products(nn.Module):
    """Matrix products whose first, second or both factors move, and sums of different shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(4, 4))
        self.shift, self.fixed = nn.Parameter(torch.randn(4)), torch.randn(4, 4, dtype=torch.float64)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs @ self.first + self.shift  # (batch, 4), the second factor and a sum
        scores = (hidden.tanh() @ self.fixed)[:, None] @ self.first.T[None, :, :4]  # the first, then both
        return torch.bmm(scores, self.second.expand(len(inputs), 4, 4))[:, 0, :3]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight
        self.out.weight.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.out(F.gelu(self.second(F.relu(self.first(inputs)))))
        return outputs


def pictures(*shape: int) -> Tensor:
    return torch.randn(5, *shape, dtype=torch.float64)


def tokens() -> Tensor:
    return torch.randint(9, (5, 6))


def statistics() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3)
    )


NETWORKS = {
    "convolutions": (lambda: build("cnn", input_shape=(1, 16, 16), classes=3), lambda: pictures(1, 16, 16)),
    "residual": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), Residual(), Residual(), nn.Flatten(), nn.Linear(64, 3)),
        lambda: pictures(3, 6, 6),
    ),
    "overlapping pools": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 2), nn.MaxPool2d(3, stride=1, padding=1), nn.Flatten(), nn.Linear(75, 3)
        ),
        lambda: pictures(2, 6, 6),
    ),
    "running statistics": (statistics, lambda: pictures(3, 5, 5)),
    "perceptron": (
        lambda: nn.Sequential(
            nn.Linear(6, 7), nn.Tanh(), nn.LayerNorm(7), nn.GELU(), nn.Dropout(), nn.Linear(7, 3)
        ),
        lambda: pictures(6),
    ),
    "linear": (lambda: nn.Linear(6, 3), lambda: pictures(6)),
    "recurrent": (Recurrent, tokens),
    "attention": (Attention, tokens),
    "custom": (Custom, lambda: pictures(6)),
    "reused": (Reused, lambda: pictures(6)),
    "products": (Products, lambda: pictures(6)),
    "tied and frozen": (Tied, lambda: pictures(6)),
}
FAST = {
    "convolutions",
    "residual",
    "overlapping pools",
    "running statistics",
    "linear",
    "recurrent",
    "reused",
    "products",
}


@pytest.mark.parametrize("name", NETWORKS)
def test_products_are_the_hessian_s(name: str) -> None:
    torch.manual_seed(0)
    make, draw = NETWORKS[name]
    module, inputs, targets = make().double().eval(), draw(), torch.arange(5) % 3
    loss = MeanLoss(module, F.cross_entropy, (inputs, targets), batch_size=2)
    vector = torch.randn(loss.layout.size, dtype=torch.float64)
    product = loss.hessian_vector(loss.params, vector)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        views = list(loss.layout.views(vector))
        parameters = [dict(module.named_parameters())[entry.name] for entry in loss.layout.entries]
        exact = hessian_vector_by_double_backward(module, F.cross_entropy, parameters, inputs, targets, views)
    named = {
        entry.name: torch.zeros(entry.shape) if part is None else part
        for entry, part in zip(loss.layout.entries, exact, strict=True)
    }
    expected = loss.layout.pack({name: part.double() for name, part in named.items()})
    assert norm(product - expected) < 1e-10 * norm(expected)
    if name in FAST:
        assert loss._product is hessian_vector


def test_products_agree_with_the_dense_matrix(known: Known) -> None:
    loss = known.loss(batch_size=7)
    vector = torch.randn(len(known.hessian), dtype=torch.float64)
    assert norm(loss.hessian_vector(loss.params, vector) - known.hessian @ vector) < 1e-10
    assert loss._product is hessian_vector


def test_a_kernel_unknown_to_the_fast_product_is_noticed() -> None:
    torch.manual_seed(0)
    module, inputs, targets = Custom().double(), pictures(6), torch.arange(5) % 3
    parameters = [p for name, p in module.named_parameters() if name != "unused"]
    vector = [torch.randn_like(p) for p in parameters]
    arguments = module, F.cross_entropy, parameters, inputs, targets, vector
    fast, sure = hessian_vector(*arguments), hessian_vector_by_double_backward(*arguments)
    assert not torch.allclose(fast[0], sure[0]), "the kernel became visible: this test no longer tests anything"
    loss = MeanLoss(module, F.cross_entropy, (inputs, targets))
    loss.hessian_vector(loss.params, torch.ones(loss.layout.size))
    assert loss._product is hessian_vector_by_double_backward


def test_a_kernel_unknown_is_noticed_where_the_samples_it_is_tried_on_are_flat() -> None:
    def but_for_class_zero(outputs: Tensor, targets: Tensor) -> Tensor:
        return (F.cross_entropy(outputs, targets, reduction="none") * (targets > 0)).mean()

    torch.manual_seed(0)
    module, inputs, targets = Custom().double(), pictures(6), torch.tensor([0, 0, 1, 2, 1])
    loss = MeanLoss(module, but_for_class_zero, (inputs, targets))
    first = loss.on((inputs[2:], targets[2:]), split="data")
    vector = torch.ones(loss.layout.size, dtype=torch.float64)
    assert norm(loss.hessian_vector(loss.params, vector) - 0.6 * first.hessian_vector(loss.params, vector)) < 1e-12


def test_a_loss_without_curvature_leaves_the_network_s() -> None:
    torch.manual_seed(0)
    module, inputs, targets = (
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double(),
        pictures(3),
        pictures(1),
    )
    loss = MeanLoss(module, F.l1_loss, (inputs, targets))
    matrix = dense_hessian(module, F.l1_loss, inputs, targets)
    vector = torch.randn(len(matrix), dtype=torch.float64)
    assert norm(loss.hessian_vector(loss.params, vector) - matrix @ vector) < 1e-12
    straight = MeanLoss(nn.Linear(3, 1).double(), F.l1_loss, (inputs, targets))
    assert norm(straight.hessian_vector(straight.params, torch.ones(4))) == 0


@pytest.fixture(scope="module")
def single_precision() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return small_cnn(), torch.randn(75, 1, 8, 8), torch.arange(75) % 5


def everything(loss: MeanLoss) -> Iterator[Tensor]:
    yield torch.tensor(list(loss.evaluate(loss.params).values()), dtype=torch.float64)
    value, gradient = loss.gradient(loss.params)
    yield torch.tensor([value], dtype=torch.float64)
    yield gradient
    torch.manual_seed(1)
    yield loss.hessian_vector(loss.params, torch.randn(loss.layout.size))


@pytest.mark.parametrize("batch_size", [1, 7, 64, 1000])
def test_nothing_depends_on_the_batch_size(
    single_precision: tuple[nn.Module, Tensor, Tensor], batch_size: int
) -> None:
    module, *data = single_precision
    exact = everything(MeanLoss(copy.deepcopy(module).double(), F.cross_entropy, (data[0], data[1])))
    found = everything(MeanLoss(module, F.cross_entropy, (data[0], data[1]), batch_size=batch_size))
    for one, other in zip(found, exact, strict=True):
        assert norm(one - other) <= 1e-5 * norm(other)


def test_not_one_bit_depends_on_the_workers(single_precision: tuple[nn.Module, Tensor, Tensor]) -> None:
    module, *data = single_precision
    alone, *others = (
        list(everything(MeanLoss(module, F.cross_entropy, (data[0], data[1]), batch_size=8, workers=workers)))
        for workers in (1, 2, 3)
    )
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(alone, other, strict=True))


def test_as_released_a_short_batch_weighs_like_a_full_one(
    single_precision: tuple[nn.Module, Tensor, Tensor],
) -> None:
    module, inputs, targets = single_precision
    loss = MeanLoss(module, F.cross_entropy, (inputs, targets), batch_size=50, weighting="batches")
    halves = [
        MeanLoss(module, F.cross_entropy, (inputs[part], targets[part])) for part in (slice(50), slice(50, 75))
    ]
    for found, one, other in zip(everything(loss), everything(halves[0]), everything(halves[1]), strict=True):
        assert norm(found - (one + other) / 2) <= 1e-5 * norm(found)
    assert loss.subject().weighting == "batches"
    uneven = MeanLoss(module, F.cross_entropy, (inputs, targets), batch_size=50)
    assert abs(uneven.value(uneven.params) - loss.value(loss.params)) > 1e-4


def test_data_may_come_in_any_form(single_precision: tuple[nn.Module, Tensor, Tensor]) -> None:
    module, inputs, targets = single_precision
    loader: DataLoader[tuple[Tensor, ...]] = DataLoader(TensorDataset(inputs, targets), batch_size=20)
    double = ArraySamples(torch.cat([inputs, inputs]), torch.cat([targets, targets]))
    raw = ArraySamples((inputs * 2 + 3), targets)
    losses = [
        MeanLoss(module, F.cross_entropy, (inputs, targets)),
        MeanLoss(module, F.cross_entropy, loader),  # type: ignore[arg-type]
        MeanLoss(module, F.cross_entropy, Subset(double, np.arange(75, 150))),
        MeanLoss(module, F.cross_entropy, raw, transform=lambda x: (x - 3) / 2),
    ]
    values = [loss.value(loss.params) for loss in losses]
    assert max(values) - min(values) < 1e-6
    assert all(loss.subject().samples == 75 for loss in losses)


def test_the_caller_s_network_and_threads_are_left_alone(
    single_precision: tuple[nn.Module, Tensor, Tensor],
) -> None:
    module, inputs, targets = single_precision
    before, threads = copy.deepcopy(module.state_dict()), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in everything(MeanLoss(module, F.cross_entropy, (inputs, targets))):
            pass
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert module.training
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_dropout_is_off_and_regression_has_no_accuracy() -> None:
    module = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    loss = MeanLoss(module, F.mse_loss, (torch.randn(9, 3), torch.randn(9, 2)))
    assert loss.evaluate(loss.params) == loss.evaluate(loss.params)
    assert loss.evaluate(loss.params).keys() == {"loss"}


def test_accuracy_is_of_outputs_that_are_a_score_for_each_class() -> None:
    def binary(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs.flatten(), targets.double())

    torch.manual_seed(0)
    inputs, targets = torch.randn(9, 3).double(), torch.arange(9) % 2
    for module in (nn.Linear(3, 1), nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))):
        loss = MeanLoss(module.double(), binary, (inputs, targets), batch_size=4)
        expected = float(binary(module(inputs), targets).detach())
        assert loss.evaluate(loss.params) == {"loss": pytest.approx(expected)}
    scores = MeanLoss(nn.Linear(3, 2).double(), F.cross_entropy, (inputs, targets))
    assert scores.evaluate(scores.params).keys() == {"loss", "accuracy"}


def test_disjoint_subsets_share_nothing() -> None:
    inputs = torch.arange(10.0)[:, None]
    loss = MeanLoss(nn.Linear(1, 1), F.mse_loss, (inputs, inputs))
    parts = loss.disjoint(3, most=5, seed=0)
    seen = [int(value) for part in parts for value in part.samples.targets]
    assert [len(part.samples) for part in parts] == [3, 3, 3]
    assert len(set(seen)) == 9
    assert [int(v) for part in loss.disjoint(3, most=5, seed=0) for v in part.samples.targets] == seen
    with pytest.raises(InvalidInput, match="samples: asked for 11, data holds 10"):
        loss.disjoint(11, most=1, seed=0)


INPUTS, TARGETS = torch.ones(4, 3), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((torch.empty(0, 3), torch.empty(0, dtype=torch.int64)), "test: holds no samples"),
        ([], "test: holds no samples"),
        ((INPUTS, TARGETS[:3]), "targets: 3 targets for 4 inputs"),
        ((INPUTS * float("nan"), TARGETS), "inputs: sample 0 holds a NaN"),
        ([1, 2, 3], "test: must be a pair of tensors .* got list"),
        (7, "test: must be a pair of tensors .* got int"),
    ],
)
def test_bad_data_is_refused(data: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        MeanLoss(nn.Linear(3, 2), F.cross_entropy, data, split="test")  # type: ignore[arg-type]


def test_bad_weights_are_refused() -> None:
    loss = MeanLoss(nn.Linear(3, 2), F.cross_entropy, (INPUTS, TARGETS))
    with pytest.raises(InvalidInput, match=r"weights: shape \(7,\), the model needs \(8,\)"):
        loss.value(torch.zeros(7))
    with pytest.raises(InvalidInput, match="'bias' holds a NaN or infinity: the run diverged"):
        loss.check(torch.tensor([0.0] * 7 + [float("nan")]))
    with pytest.raises(InvalidInput, match=r"vector: shape \(9,\)"):
        loss.hessian_vector(loss.params, torch.zeros(9))
    with pytest.raises(InvalidInput, match="the Hessian on data is not finite"):
        loss.hessian_vector(torch.full((8,), float("nan")), torch.ones(8))


def test_what_does_not_fit_is_said_in_one_line() -> None:
    cases = [
        MeanLoss(nn.Linear(4, 2), F.cross_entropy, (INPUTS, TARGETS)),
        MeanLoss(nn.Linear(3, 1), F.cross_entropy, (INPUTS, TARGETS)),
        MeanLoss(nn.Linear(3, 2), lambda outputs, targets: outputs.sum(1), (INPUTS, TARGETS)),
    ]
    for loss in cases:
        for measure in (loss.value, loss.gradient, lambda params, at=loss: at.hessian_vector(params, params)):
            with pytest.raises(InvalidInput, match=r"model: fails on data \(inputs \(\d, 3\)") as caught:
                measure(loss.params)
            assert "\n" not in str(caught.value)


def test_an_interrupt_ends_the_pass_and_frees_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = MeanLoss(nn.Linear(3, 2), F.cross_entropy, (INPUTS.repeat(50, 1), TARGETS.repeat(50)), batch_size=1)
    asked: list[int] = []
    fetch = mean_loss_module.MeanLoss._fetch

    def interrupting(self: MeanLoss, start: int, stop: int) -> tuple[Tensor, Tensor]:
        asked.append(start)
        if start == 20:
            raise KeyboardInterrupt
        time.sleep(0.01 if start > 20 else 0)  # as real batches take, so that there is something to end
        return fetch(self, start, stop)

    with monkeypatch.context() as patched:
        patched.setattr(mean_loss_module.MeanLoss, "_fetch", interrupting)
        with pytest.raises(KeyboardInterrupt):
            loss.value(loss.params)
    assert len(asked) < 200
    assert loss.value(loss.params) > 0
