"""The verdict: worked by hand for each way a comparison can go."""

from __future__ import annotations

import math

import pytest

from fedgloss.errors import InvalidInput
from fedgloss.reports.paper import cells
from fedgloss.reports.verdict import Judgement, judge, tolerance

ACCURACY = "sota_cnn/cifar10/alpha=0/fedgloss-sam"  # 83.9 ± 0.4
DIVERGED = "sota_cnn/cifar100/alpha=0/feddyn-sgd"  # X
ROUNDS = "comm_eff_2/cifar10-cnn/alpha=0/rounds/fedgloss-sam"  # 2.2k of 10k
COST = "comm_eff_2/cifar10-cnn/alpha=0/cost/fedgloss-sam"  # 0.2B
NEVER = "comm_eff_2/cifar10-cnn/alpha=0/rounds/scaffold"  # -
HALF = "naive_comparison/cifar10/alpha=0/accuracy_half/naive-fedgloss-sam"  # 77.6 ± 0.3 after 5,000 rounds


def verdict(id: str, results: list, **how) -> Judgement:
    (cell,) = cells(id)
    return judge(cell, results, **how)


def test_the_tolerance_by_hand() -> None:
    # 2 sqrt(0.4^2/3 + 0.2^2/3) + 0.5, with our sd over 83, 83.2, 83.4 being 0.2
    found = verdict(ACCURACY, [83.0, 83.2, 83.4])
    by_hand = 2 * math.sqrt(0.16 / 3 + 0.04 / 3) + 0.5
    assert found.mean == pytest.approx(83.2)
    assert found.sd == pytest.approx(0.2)
    assert found.difference == pytest.approx(-0.7)
    assert found.tolerance == pytest.approx(by_hand)
    assert by_hand == pytest.approx(1.0164, abs=1e-4)
    assert found.verdict == "agrees"
    assert tolerance(0.0, 3, 0.0, 3, 0.5) == 0.5


@pytest.mark.parametrize(
    ("shift", "said"), [(1.0, "agrees"), (-1.0, "agrees"), (1.03, "differs"), (-1.03, "differs")]
)
def test_the_edge(shift, said) -> None:
    assert verdict(ACCURACY, [83.9 + shift + step for step in (-0.2, 0.0, 0.2)]).verdict == said


def test_one_seed_is_not_judged_but_shown() -> None:
    found = verdict(ACCURACY, [60.0])
    assert (found.verdict, found.reason) == ("not judged", "one seed")
    assert found.difference == pytest.approx(-23.9)
    assert found.sd is None
    assert found.tolerance is None


def test_nothing_published_has_no_verdict() -> None:
    assert verdict("eigs/cifar10/alpha=0/fedavg", [60.0, 61.0]).verdict is None
    assert verdict("sota_cnn_eig/cifar100/alpha=0/scaffold", [60.0, 61.0]).verdict is None


def test_clients_of_another_seed_are_not_compared() -> None:
    found = verdict("eigs_fedgloss/cifar10/client1/lambda_1_global/fedgloss-sam", [4.0, 5.0])
    assert (found.verdict, found.mean) == (None, 4.5)


def test_a_shortened_run_has_no_verdict() -> None:
    found = verdict(ACCURACY, [83.9, 83.9, 83.9], rounds=9999)
    assert (found.verdict, found.reason) == (None, "stopped after 9999 of 10000 rounds")
    assert found.difference is None
    assert verdict(ACCURACY, [83.9, 83.9, 83.9], rounds=10_000).verdict == "agrees"
    assert verdict(ROUNDS, [2200.0, 2200.0], scaled=True).verdict is None


def test_half_the_rounds_are_enough_where_the_paper_gives_the_value_there() -> None:
    assert verdict(HALF, [77.5, 77.6, 77.7], rounds=5000).verdict == "agrees"
    assert verdict(HALF, [77.5, 77.6, 77.7], rounds=4999).verdict is None


def test_rounds_to_a_target_can_be_judged_in_a_shortened_run() -> None:
    assert verdict(ROUNDS, [2100.0, 2200.0, 2300.0], rounds=2600).verdict == "agrees"
    assert verdict(ROUNDS, [1400.0, 1500.0, 1500.0], rounds=2600).verdict == "differs"
    assert verdict(ROUNDS, ["not reached"] * 3, rounds=2200).verdict is None  # could still come
    assert verdict(ROUNDS, ["not reached"] * 3, rounds=2600).verdict == "differs"  # overdue
    assert verdict(COST, ["not reached"] * 3, rounds=2600).verdict is None
    assert verdict(COST, [0.2, 0.21, 0.22], rounds=2600).verdict == "agrees"
    assert verdict(NEVER, ["not reached"] * 3, rounds=2600).verdict is None
    assert verdict(NEVER, [2000.0, "not reached", "not reached"], rounds=2600).verdict == "differs"


def test_divergence_and_failure_are_results() -> None:
    assert verdict(DIVERGED, ["diverged"] * 3).verdict == "agrees"
    assert verdict(DIVERGED, ["diverged"] * 3, rounds=500).verdict == "agrees"
    assert verdict(DIVERGED, ["diverged", "diverged", 12.0]).verdict == "differs"
    assert verdict(DIVERGED, ["diverged", "diverged", 12.0], rounds=500).verdict is None
    assert verdict(DIVERGED, ["diverged"]).verdict == "not judged"
    found = verdict(ACCURACY, [83.9, "diverged", 83.9])
    assert (found.verdict, found.mean) == ("differs", None)
    assert found.reason == "the paper: a value; so 2 of 3 of our seeds"
    assert verdict(ACCURACY, [50.0, "diverged"], rounds=500).verdict == "differs"
    assert verdict(NEVER, ["not reached"] * 3).verdict == "agrees"
    assert verdict(NEVER, ["not reached", "diverged", "not reached"]).verdict == "differs"
    assert verdict(ROUNDS, ["not reached", 2200.0, 2200.0]).verdict == "differs"


def test_costs_of_a_round_need_one_seed() -> None:
    assert verdict("algs/communication/fedsmoo", [2.0003], rounds=1).verdict == "agrees"
    assert verdict("algs/communication/fedsmoo", [1.5], rounds=1).verdict == "differs"
    assert verdict("algs/computation/fedgloss-sgd", [1.0]).verdict == "agrees"


def test_without_a_printed_sd_only_ours_counts_and_this_is_said() -> None:
    found = verdict("hom/cifar10/alpha=100/accuracy/fedavg", [84.0, 84.4])  # 84.0
    assert found.tolerance == pytest.approx(2 * math.sqrt(0.08 / 2) + 0.5)
    assert found.reason == "the paper prints no sd"


def test_sharpness_gets_half_a_printed_digit() -> None:
    found = verdict("sota_cnn_eig/cifar10/alpha=0/fedgloss-sam", [2.0, 2.0, 2.0])  # 2.03 ± 0.05
    assert found.tolerance == pytest.approx(2 * 0.05 / math.sqrt(3) + 0.005)


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([], "no result to judge"),
        ([math.nan, 1.0], "not finite"),
        (["not reached", 1.0], "has no target"),
    ],
)
def test_nonsense_is_refused(results, message) -> None:
    with pytest.raises(InvalidInput, match=message):
        verdict(ACCURACY, results)
