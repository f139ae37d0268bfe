"""Convolution through the frequency domain is convolution."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgloss.models.fourier import LARGEST, FourierConv2d, convolved


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(
    st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(1, 6), st.integers(0, 9), st.integers(0, 9)
)
@settings(max_examples=60, deadline=None)
def test_any_size_gives_what_torch_gives(
    count: int, inputs: int, outputs: int, kernel: int, taller: int, wider: int
) -> None:
    pictures, weight = drawn(count, inputs, kernel + taller, kernel + wider), drawn(outputs, inputs, kernel, kernel)
    torch.testing.assert_close(convolved(pictures, weight), F.conv2d(pictures, weight), rtol=0, atol=1e-11)


def test_first_and_second_derivatives() -> None:
    pictures, weight = drawn(2, 2, 6, 5).requires_grad_(), drawn(3, 2, 3, 3).requires_grad_()
    assert torch.autograd.gradcheck(convolved, (pictures, weight))
    assert torch.autograd.gradgradcheck(convolved, (pictures, weight))


def test_many_at_once() -> None:
    pictures, weights = drawn(2, 2, 6, 5), drawn(4, 3, 2, 3, 3)
    together = torch.vmap(lambda weight: convolved(pictures, weight))(weights)
    torch.testing.assert_close(together, torch.stack([F.conv2d(pictures, weight) for weight in weights]))


def test_single_precision_loses_nothing_to_the_detour() -> None:
    pictures, weight = drawn(16, 64, 14, 14), drawn(64, 64, 5, 5) / 40
    exact = F.conv2d(pictures, weight)
    errors = [
        (convolution(pictures.float(), weight.float()) - exact).abs().mean().item()
        for convolution in (convolved, F.conv2d)
    ]
    assert errors[0] < 4 * errors[1]


def test_the_layer_is_torch_s_but_for_rounding() -> None:
    torch.manual_seed(0)
    ours = FourierConv2d(3, 8, 5)
    torch.manual_seed(0)
    theirs = torch.nn.Conv2d(3, 8, 5)
    assert all(torch.equal(ours.state_dict()[name], value) for name, value in theirs.state_dict().items())
    pictures = drawn(4, 3, 14, 14).float().contiguous(memory_format=torch.channels_last)
    found = ours(pictures)
    torch.testing.assert_close(found, theirs(pictures), rtol=0, atol=1e-5)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("case", ["large", "autocast", "meta"])
def test_elsewhere_it_is_torch_s_own(case: str) -> None:
    layer = FourierConv2d(2, 3, 5)
    pictures = drawn(1, 2, LARGEST + 1 if case == "large" else 9, 9).float()
    theirs = torch.nn.Conv2d(2, 3, 5)
    theirs.load_state_dict(layer.state_dict())
    if case == "meta":
        assert layer.to("meta")(pictures.to("meta")).shape == (1, 3, 5, 5)
        return
    with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
        assert torch.equal(layer(pictures), theirs(pictures))
