from __future__ import annotations

import pytest
import torch
from torch import nn

from fedgloss import InvalidInput
from fedgloss.vectors import Layout, unit


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5))


def test_a_module_survives_the_journey_into_a_vector_and_back() -> None:
    one, other = network(), network()
    layout = Layout.of(one)
    layout.load(other, layout.flatten(one))
    picture = torch.randn(2, 3, 4, 4)
    assert torch.equal(one(picture), other(picture))
    assert layout.size == sum(p.numel() for p in one.parameters())


def test_convolution_weights_lie_channels_last_and_leave_in_torch_order() -> None:
    module = network()
    layout = Layout.of(module)
    vector = layout.flatten(module)
    view = next(iter(layout.views(vector)))
    assert view.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(vector[:3], module[0].weight[0, :, 0, 0])
    exported = layout.unpack(vector)["0.weight"]
    assert exported.is_contiguous()
    assert torch.equal(exported, module[0].weight)


def test_tied_parameters_count_once_and_frozen_ones_not_at_all() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    module[1].weight = module[0].weight
    module[2].requires_grad_(False)
    layout = Layout.of(module)
    assert [e.name for e in layout.entries] == ["0.weight", "0.bias", "1.bias"]


def test_layouts_differ_where_names_shapes_or_type_do() -> None:
    prints = {
        Layout.of(nn.Linear(2, 3)).fingerprint,
        Layout.of(nn.Linear(3, 2)).fingerprint,
        Layout.of(nn.Linear(2, 3).double()).fingerprint,
        Layout.of(nn.Sequential(nn.Linear(2, 3))).fingerprint,
    }
    assert len(prints) == 4
    assert Layout.of(nn.Linear(2, 3)).fingerprint == Layout.of(nn.Linear(2, 3)).fingerprint


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)),
            "layer '1' .BatchNorm1d. keeps running statistics.*GroupNorm",
        ),
        (nn.BatchNorm2d(3), "GroupNorm"),
        (nn.ReLU(), "no trainable parameters"),
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameters"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), "one floating-point type"),
    ],
)
def test_networks_that_cannot_be_a_vector_are_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Layout.of(module)


def test_a_foreign_vector_or_state_dict_is_refused() -> None:
    layout = Layout.of(nn.Linear(2, 3))
    with pytest.raises(InvalidInput, match=r"shape \(5,\), the model needs \(9,\)"):
        layout.check(torch.zeros(5), "params")
    with pytest.raises(InvalidInput, match=r"missing .'bias'., unknown .'offset'."):
        layout.pack({"weight": torch.zeros(3, 2), "offset": torch.zeros(3)})
    with pytest.raises(InvalidInput, match="'bias': shape"):
        layout.pack({"weight": torch.zeros(3, 2), "bias": torch.zeros(4)})


def test_the_first_tensor_with_a_nan_is_named() -> None:
    layout = Layout.of(nn.Linear(2, 3))
    vector = torch.zeros(9)
    assert layout.first_non_finite(vector) is None
    vector[7] = float("nan")
    assert layout.first_non_finite(vector) == "bias"


def test_unit_keeps_nan_visible_and_zero_zero() -> None:
    assert unit(torch.zeros(3)).tolist() == [0, 0, 0]
    assert torch.isnan(unit(torch.tensor([1.0, float("nan")]))).any()
