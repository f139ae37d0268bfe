from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from curvature import Known, dense_hessian, small_cnn


@pytest.fixture(scope="session")
def known() -> Known:
    """A convolutional network of 2,549 weights in float64, trained to a low loss."""
    torch.manual_seed(1)
    module = small_cnn().double()
    inputs, targets = torch.randn(30, 1, 8, 8, dtype=torch.float64), torch.arange(30) % 5
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(module(inputs), targets).backward()
        optimizer.step()
    return Known(module, inputs, targets, dense_hessian(module, F.cross_entropy, inputs, targets))
