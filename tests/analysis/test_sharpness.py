"""Worst-case and average sharpness, alignment, drift, local against global."""

from __future__ import annotations

import math
import signal
from pathlib import Path

import pytest
import torch
from curvature import Known, quadratic

from fedgloss import InvalidInput
from fedgloss.analysis import (
    AverageCase,
    Drift,
    Hessian,
    Interrupted,
    LocalAgainstGlobal,
    WorstCase,
    alignment,
    average_sharpness,
    drift,
    eigenvalues,
    lanczos,
    load,
    local_against_global,
    repeated_ascent,
    save,
    worst_case_sharpness,
)
from fedgloss.vectors import unit


def test_one_step_is_sam_s_own(known: Known) -> None:
    loss = known.loss()
    value, gradient = loss.gradient(loss.params)
    found = worst_case_sharpness(loss, rho=0.05)
    assert found.value == pytest.approx(loss.value(loss.params + 0.05 * unit(gradient)) - value, rel=1e-12)
    assert found.loss == value


def test_more_steps_find_more_and_at_most_the_maximum(known: Known) -> None:
    found = [worst_case_sharpness(known.loss(), rho=0.05, steps=steps).value for steps in (1, 2, 5, 20)]
    assert found == sorted(found)
    assert found[-1] > found[0]


def test_near_a_minimum_the_ascent_turns_to_the_top_eigenvector() -> None:
    curvatures, rho = [5.0, 2.0, 1.0], 0.1
    loss = quadratic(curvatures, start=[1e-6, 1e-4, 1e-4])
    one, many = (worst_case_sharpness(loss, rho=rho, steps=steps).value for steps in (1, 60))
    assert one < 0.6 * many
    assert many == pytest.approx(curvatures[0] * rho**2 / 2, rel=1e-3)


def test_the_loss_rises_on_average_by_half_the_trace() -> None:
    found = average_sharpness(quadratic([3.0, 1.0, -1.0, 0.5]), sigma=0.2, draws=400, seed=1)
    assert abs(found.value - 0.2**2 / 2 * 3.5) < 4 * found.error
    assert found.error < 0.01
    assert found.draws == 400


def test_a_minimum_s_pseudo_gradient_aligns_with_the_top_eigenvectors(known: Known) -> None:
    """A gradient is a product with the Hessian where the network is near a minimum: a step of power iteration."""
    loss = known.loss()
    top = lanczos(Hessian(loss), top=1, tolerance=1e-6)
    random = torch.randn(len(known.hessian), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ascent, cosines = random, [alignment(random, top.vectors)[0]]
    for _ in range(8):  # what repeated ascents see: the change of the gradient along the last one
        step = 1e-7 * unit(ascent)
        ascent = loss.gradient(loss.params + step)[1] - loss.gradient(loss.params - step)[1]
        cosines.append(alignment(ascent, top.vectors)[0])
    assert cosines[1:] == sorted(cosines[1:])
    assert cosines[0] < 0.1
    assert cosines[-1] > 0.9
    assert alignment(torch.zeros(3), [torch.ones(3)]) == (0.0,)


def test_drift_measures_how_far_clients_pull_apart(tmp_path: Path) -> None:
    same = drift([torch.tensor([1.0, 2.0])] * 3)
    assert (same.drift, same.agreement, same.pairwise) == pytest.approx((0, 1, 1), abs=1e-12)
    opposite = drift([torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0])])
    assert (opposite.mean_update_norm, opposite.agreement, opposite.pairwise) == (0, 0, -1)
    assert math.isinf(opposite.drift)
    deltas = [torch.tensor([2.0, 0.0]), torch.tensor([0.0, 1.0])]
    weighed = drift(deltas, sizes=[1, 3])
    mean = torch.tensor([0.5, 0.75]).double()
    assert weighed.mean_update_norm == pytest.approx(float(mean.norm()))
    spread = 0.25 * (deltas[0] - mean).square().sum() + 0.75 * (deltas[1] - mean).square().sum()
    assert weighed.drift == pytest.approx(float(spread / mean.square().sum()))
    assert weighed.cosines == pytest.approx([0.5 / float(mean.norm()), 0.75 / float(mean.norm())])
    assert weighed.norms == (2, 1)
    save(tmp_path / "drift.json", weighed)
    assert load(tmp_path / "drift.json", Drift) == weighed
    assert drift([torch.zeros(2), torch.ones(2)]).cosines[0] == 0


def test_repeated_ascents_near_a_minimum_are_a_power_iteration() -> None:
    curvatures = [5.0, 3.0, 1.0]
    loss = quadratic(curvatures, start=[1e-9, 1e-9, 1e-9])
    ascents = repeated_ascent(loss, rho=0.1, steps=6)
    top = torch.tensor([1.0, 0.0, 0.0])
    for step, ascent in enumerate(ascents):
        by_hand = unit(torch.tensor([c ** (step + 1) for c in curvatures], dtype=torch.float64))
        assert torch.allclose(ascent, 0.1 * by_hand, atol=1e-7)
    cosines = [alignment(ascent, [top])[0] for ascent in ascents]
    assert cosines == sorted(cosines)
    assert cosines[-1] > 0.99
    for options, message in [({"rho": 0.0}, "rho: must be positive"), ({"rho": 1.0, "steps": 0}, "steps: must be")]:
        with pytest.raises(InvalidInput, match=message):
            repeated_ascent(loss, **options)  # type: ignore[arg-type]


def test_local_models_on_their_own_data_and_on_the_union(known: Known, tmp_path: Path) -> None:
    loss = known.loss()
    parts = {3: slice(0, 10), 8: slice(10, 30)}
    own = {client: (known.inputs[part], known.targets[part]) for client, part in parts.items()}
    models = {client: loss.params * (1 + client / 100) for client in parts}
    found = local_against_global(loss, models, own, tolerance=1e-6)
    assert [one.client for one in found] == [3, 8]
    for one in found:
        params = models[one.client]
        here = eigenvalues(loss.on(own[one.client], split="own"), params, tolerance=1e-6)
        assert one.local.largest.value == pytest.approx(here.largest.value, rel=1e-10)
        assert one.union.largest.value == pytest.approx(eigenvalues(loss, params, tolerance=1e-6).largest.value)
        assert one.local.subject.split == f"client {one.client}"
        assert one.local.subject.samples == len(own[one.client][1])
        assert one.union.subject.samples == 30
    save(tmp_path / "local.json", found[0])
    assert load(tmp_path / "local.json", LocalAgainstGlobal) == found[0]


def test_results_survive_their_files(known: Known, tmp_path: Path) -> None:
    loss = known.loss()
    for found in (worst_case_sharpness(loss, rho=0.1, steps=2), average_sharpness(loss, sigma=0.1, draws=2)):
        save(tmp_path / "sharpness.json", found)
        assert load(tmp_path / "sharpness.json", type(found)) == found


def test_an_interrupt_keeps_what_is_computed(known: Known) -> None:
    def stop(done: int, total: int) -> None:
        if done == 3:
            signal.raise_signal(signal.SIGINT)

    loss = known.loss()
    with pytest.raises(Interrupted) as caught:
        worst_case_sharpness(loss, rho=0.1, steps=9, progress=stop)
    assert isinstance(caught.value.partial, WorstCase)
    assert caught.value.partial == worst_case_sharpness(loss, rho=0.1, steps=3)
    with pytest.raises(Interrupted) as caught:
        average_sharpness(loss, sigma=0.1, draws=9, progress=stop)
    assert caught.value.partial == average_sharpness(loss, sigma=0.1, draws=3)
    assert isinstance(caught.value.partial, AverageCase)
    models = dict.fromkeys(range(5), loss.params)
    own = dict.fromkeys(range(5), (known.inputs, known.targets))
    with pytest.raises(Interrupted) as caught:
        local_against_global(loss, models, own, tolerance=0.1, progress=stop)
    assert isinstance(caught.value.partial, tuple)
    assert [one.client for one in caught.value.partial] == [0, 1, 2]


def test_bad_input_is_refused(known: Known) -> None:
    loss = known.loss()
    nan = torch.full_like(loss.params, float("nan"))
    cases = [
        (lambda: worst_case_sharpness(loss, rho=0), "rho: must be positive"),
        (lambda: worst_case_sharpness(loss, rho=1, steps=0), "steps: must be at least 1"),
        (lambda: worst_case_sharpness(loss, nan, rho=1), "holds a NaN"),
        (lambda: average_sharpness(loss, sigma=-1), "sigma: must be positive"),
        (lambda: average_sharpness(loss, sigma=1, draws=1), "draws: must be at least 2"),
        (lambda: average_sharpness(loss, nan, sigma=1), "holds a NaN"),
        (lambda: drift([]), "deltas: there are no client updates"),
        (lambda: drift([torch.ones(2), torch.ones(3)]), "deltas: the updates are of different networks"),
        (lambda: drift([torch.ones(2)], sizes=[1, 2]), "sizes: must be 1, one per client"),
        (lambda: drift([torch.ones(2), torch.ones(2) / 0]), "a client's update holds a NaN or infinity"),
        (lambda: local_against_global(loss, {}, {}), "models: there are no local models"),
        (lambda: local_against_global(loss, {4: loss.params}, {}), "own: there is no data of client 4"),
        (
            lambda: local_against_global(loss, {4: loss.params[:5]}, {4: (known.inputs, known.targets)}),
            r"weights: shape \(5,\)",
        ),
    ]
    for call, message in cases:
        with pytest.raises(InvalidInput, match=message):
            call()
