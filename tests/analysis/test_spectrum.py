"""Spectral density and trace against the dense matrix."""

from __future__ import annotations

import math
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from curvature import Known, quadratic

from fedgloss import InvalidInput
from fedgloss.analysis import Hessian, Interrupted, SpectralDensity, Trace, load, save, spectral_density, trace
from fedgloss.analysis.spectrum import _signs


def test_each_probe_has_the_moments_of_the_spectrum_as_it_sees_it(known: Known) -> None:
    steps = 4
    found = spectral_density(Hessian(known.loss()), probes=3, steps=steps, seed=5)
    for probe, (points, masses) in enumerate(zip(found.points, found.masses, strict=True)):
        assert sum(masses) == pytest.approx(1)
        vector = _signs(len(known.hessian), 5, "density", probe) / math.sqrt(len(known.hessian))
        image = vector
        for power in range(1, 2 * steps):
            image = known.hessian @ image
            moment = sum(mass * point**power for point, mass in zip(points, masses, strict=True))
            assert moment == pytest.approx(float(vector @ image), rel=1e-8)


def test_moments_over_probes_estimate_those_of_the_dense_spectrum(known: Known, tmp_path: Path) -> None:
    found = spectral_density(Hessian(known.loss()), probes=20, steps=3)
    for power in (1, 2, 3):
        estimate, error = found.moment(power)
        assert abs(estimate - float((known.spectrum**power).mean())) < 4 * error
    assert found.products == 60
    save(tmp_path / "density.json", found)
    assert load(tmp_path / "density.json", SpectralDensity) == found


def test_the_density_of_few_distinct_eigenvalues_is_exact_and_integrates_to_one() -> None:
    found = spectral_density(Hessian(quadratic([3.0] * 5 + [-1.0] * 15)), probes=4, steps=10)
    assert all(len(points) == 2 for points in found.points), "two distinct eigenvalues: two steps suffice"
    at = np.linspace(-4, 6, 2001)
    density = np.array(found.curve(at.tolist(), width=0.1))
    assert np.trapezoid(density, at) == pytest.approx(1, abs=1e-6)
    assert density[np.searchsorted(at, 3.0)] == pytest.approx(0.25 / (0.1 * math.sqrt(2 * math.pi)), rel=0.5)
    assert np.trapezoid(density[at < 1], at[at < 1]) == pytest.approx(0.75, abs=0.1)


def test_the_trace_of_a_matrix_of_low_rank_is_exact() -> None:
    found = trace(Hessian(quadratic([5.0, -2.0, 1.0] + [0.0] * 97)), products=12)
    assert found.value == pytest.approx(4, abs=1e-10)
    assert found.products == 12


def test_the_trace_is_that_of_the_dense_matrix_within_its_error(known: Known, tmp_path: Path) -> None:
    found = trace(Hessian(known.loss()), products=60)
    exact = float(known.hessian.trace())
    assert abs(found.value - exact) < 4 * found.error
    assert found.error < 0.2 * abs(exact)
    save(tmp_path / "trace.json", found)
    assert load(tmp_path / "trace.json", Trace) == found


def test_more_products_than_dimensions_give_the_exact_trace() -> None:
    found = trace(Hessian(quadratic([1.0, 2.0, 3.0])), products=60)
    assert (found.value, found.error) == (pytest.approx(6), 0)


def test_an_interrupt_keeps_the_probes_done(known: Known) -> None:
    def stop(done: int, total: int) -> None:
        if done == 7:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted) as caught:
        spectral_density(Hessian(known.loss()), probes=4, steps=3, progress=stop)
    assert isinstance(caught.value.partial, SpectralDensity)
    assert len(caught.value.partial.points) == 2
    with pytest.raises(Interrupted) as caught:
        trace(Hessian(known.loss()), products=9, progress=stop)
    assert caught.value.partial is None, "no sample of the rest was finished"


def test_bad_options_are_refused() -> None:
    hessian = Hessian(quadratic([1.0, 2.0]))
    for call, message in [
        (lambda: spectral_density(hessian, probes=0), "probes: must be at least 1"),
        (lambda: spectral_density(hessian, steps=0), "steps: must be at least 1"),
        (lambda: trace(hessian, products=5), "products: Hutch.. needs at least 6"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            call()
    assert torch.equal(_signs(4, 0, "x", 0).abs(), torch.ones(4))
