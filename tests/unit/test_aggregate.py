from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgloss import ExactCohort, IndependentCohort, InvalidInput
from fedgloss.algorithm import Aggregate
from fedgloss.messages import Update


def updates(sizes: list[int]) -> list[Update]:
    generator = torch.Generator().manual_seed(0)
    return [Update({"delta": torch.randn(5, generator=generator)}, n, {"loss": float(n)}) for n in sizes]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8))
def test_means_are_those_of_the_definition(sizes: list[int]) -> None:
    replies = updates(sizes)
    aggregate = Aggregate(replies)
    stacked = torch.stack([u["delta"] for u in replies]).double()
    shares = torch.tensor(sizes).double() / sum(sizes)
    assert torch.allclose(aggregate.mean("delta", "uniform").double(), stacked.mean(0), atol=1e-6)
    assert torch.allclose(aggregate.mean("delta", "size").double(), shares @ stacked, atol=1e-6)
    assert torch.allclose(aggregate.sum("delta").double(), stacked.sum(0), atol=1e-5)
    assert aggregate.mean_scalar("loss") == pytest.approx(float(shares @ torch.tensor(sizes).double()))


def test_equal_sizes_give_the_bits_of_the_uniform_mean() -> None:
    aggregate = Aggregate(updates([500] * 7))
    assert aggregate.mean("delta", "size").equal(aggregate.mean("delta", "uniform"))


def test_folding_leaves_the_updates_alone() -> None:
    replies = updates([3, 4, 3])
    before = [u["delta"].clone() for u in replies]
    aggregate = Aggregate(replies)
    aggregate.sum("delta").add_(1)
    assert all(u["delta"].equal(b) for u, b in zip(replies, before, strict=True))
    assert not aggregate.sum("delta").equal(aggregate.sum("delta") + 1)


def test_nobody_answered() -> None:
    with pytest.raises(InvalidInput, match="no client answered"):
        Aggregate().mean("delta")


def test_exact_cohorts_have_the_size_and_no_repeats() -> None:
    cohorts = [ExactCohort(5).cohort(100, seed=1, round=t) for t in range(200)]
    assert all(len(set(c)) == 5 and min(c) >= 0 and max(c) < 100 for c in cohorts)
    assert len({tuple(c) for c in cohorts}) > 190
    assert {k for c in cohorts for k in c} == set(range(100))
    assert cohorts[7] == ExactCohort(5).cohort(100, seed=1, round=7)
    assert cohorts[7] != ExactCohort(5).cohort(100, seed=2, round=7)


def test_independent_cohorts_vary_in_size_around_the_mean_and_are_never_empty() -> None:
    sizes = [len(IndependentCohort(0.05).cohort(100, seed=0, round=t)) for t in range(600)]
    assert min(sizes) >= 1
    assert len(set(sizes)) > 5
    assert sum(sizes) / len(sizes) == pytest.approx(5.0, abs=0.3)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (ExactCohort(0), "cohort: must be a whole number"),
        (ExactCohort(11), "cohort: 11 clients a round asked of a federation of 10"),
        (IndependentCohort(0.0), "probability"),
        (IndependentCohort(1.5), "probability"),
    ],
)
def test_impossible_sampling_is_refused(sampling, message) -> None:
    with pytest.raises(InvalidInput, match=message):
        sampling.check(10)
