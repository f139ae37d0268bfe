"""Eigenvalues against dense matrices, known quadratics and an outside library."""

from __future__ import annotations

import copy
import json
import math
import signal
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from curvature import Known, quadratic
from torch import nn

from fedgloss import InvalidInput
from fedgloss.analysis import (
    Eigenvalues,
    Hessian,
    Interrupted,
    MeanLoss,
    eigenvalues,
    from_json,
    hessian,
    lanczos,
    load,
    power_iteration,
    save,
    to_json,
    top_eigenvalues,
)
from fedgloss.randomness import stream
from fedgloss.vectors import norm


def values(found: Eigenvalues) -> list[float]:
    return [one.value for one in (*found.top, *found.bottom)]


def test_lanczos_finds_both_ends_of_the_dense_spectrum(known: Known) -> None:
    found = lanczos(Hessian(known.loss()), top=5, bottom=3, tolerance=1e-7)
    exact = [*known.spectrum.flip(0)[:5].tolist(), *known.spectrum[:3].tolist()]
    assert found.converged
    assert values(found) == pytest.approx(exact, abs=1e-8)
    for one, vector in zip((*found.top, *found.bottom), found.vectors, strict=True):
        assert norm(vector) == pytest.approx(1, abs=1e-12)
        true = norm(known.hessian @ vector - one.value * vector)
        assert true == pytest.approx(one.residual, rel=1e-3, abs=1e-12)
        assert true <= 1e-7 * (abs(one.value) if one in found.top else found.largest.value)
    assert found.products < 200
    assert (found.subject.samples, found.subject.parameters) == (30, len(known.hessian))


def test_a_basis_short_of_memory_gives_the_same(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hessian, "BASIS_BYTES", 8 * len(known.hessian) * 12)
    found = lanczos(Hessian(known.loss()), top=2, bottom=1, tolerance=1e-7, limit=500)
    exact = [*known.spectrum.flip(0)[:2].tolist(), float(known.spectrum[0])]
    assert found.converged
    assert found.products > 12
    assert values(found) == pytest.approx(exact, abs=1e-8)


def test_an_outside_library_agrees(known: Known) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import curvlinops
        from scipy.sparse import linalg

        parameters = list(known.module.parameters())
        operator = curvlinops.HessianLinearOperator(
            known.module,
            nn.CrossEntropyLoss(),
            parameters,
            [(known.inputs, known.targets)],
            check_deterministic=False,
        )
        outside = linalg.eigsh(
            operator.to_scipy(dtype=np.float64), k=3, which="LA", return_eigenvectors=False, tol=1e-10
        )
    found = lanczos(Hessian(known.loss()), top=3, tolerance=1e-7)
    assert values(found) == pytest.approx(sorted(outside, reverse=True), abs=1e-8)


def test_repeated_and_zero_eigenvalues_are_found() -> None:
    found = lanczos(Hessian(quadratic([2, 2, 2, 0, 0, -1, -1])), top=4, bottom=3, tolerance=1e-10)
    assert values(found) == pytest.approx([2, 2, 2, 0, -1, -1, 0], abs=1e-12)
    assert found.converged


@pytest.mark.parametrize(
    ("curvatures", "top", "bottom"),
    [
        ([10, 10, 3, 2, 1], 2, 0),
        ([10, 10, 10, 3, 2, 1, 0], 3, 0),
        ([2, 2, 2, 0, 0, -1, -1], 2, 2),
        ([5, 3, 3, 3, 1, 1, -4, -4, -4], 3, 3),
    ],
)
def test_an_eigenvalue_that_is_there_several_times_is_found_as_often(
    curvatures: list[float], top: int, bottom: int
) -> None:
    found = lanczos(Hessian(quadratic(curvatures)), top=top, bottom=bottom, tolerance=1e-12)
    expected = sorted(curvatures, reverse=True)[:top] + sorted(curvatures)[:bottom]
    assert [*values(found)] == pytest.approx(expected, abs=1e-6)
    assert found.converged


def test_power_iteration_states_the_residual_of_its_vectors(known: Known) -> None:
    hessian = Hessian(known.loss())
    found = power_iteration(hessian, top=4)
    for one, vector in zip(found.top, found.vectors, strict=True):
        assert one.residual == pytest.approx(norm(hessian(vector) - one.value * vector), rel=1e-6)


def test_lanczos_says_when_it_did_not_converge(known: Known) -> None:
    found = lanczos(Hessian(known.loss()), top=3, tolerance=1e-12, limit=8)
    assert not found.converged
    assert found.products == 8
    assert found.largest.residual > 1e-12 * found.largest.value


@pytest.mark.parametrize("curvatures", [[7, 3, 1, -2], [-9, 4, 1, 0.5], [5, 0, 0, 0]])
def test_power_iteration_finds_the_largest_in_absolute_value_with_its_sign(curvatures: list[float]) -> None:
    found = power_iteration(Hessian(quadratic(curvatures)), limit=200, tolerance=1e-12)
    assert found.largest.value == pytest.approx(curvatures[0], rel=1e-9)
    assert abs(float(found.vectors[0][0])) == pytest.approx(1, abs=1e-5)


def test_deflation_finds_the_next_ones_sorted_from_the_top() -> None:
    found = power_iteration(Hessian(quadratic([1, -8, 5, 3])), top=3, limit=300, tolerance=1e-13)
    assert values(found) == pytest.approx([5, 3, -8], rel=1e-6)
    assert found.converged


def test_power_iteration_is_the_paper_s_to_the_letter() -> None:
    curvatures = torch.tensor([4.0, 3.0, 2.0, 0.1, -1.0], dtype=torch.float64)
    found = power_iteration(Hessian(quadratic(curvatures.tolist())), seed=3)
    vector = torch.from_numpy(stream(3, "power iteration", 0).random(5))
    assert bool((vector >= 0).all())
    before, steps = 0.0, 0
    for _ in range(20):
        image = curvatures * vector
        estimate, steps = float(vector @ image), steps + 1
        vector = image / image.norm()
        if abs((estimate - before) / estimate) < 1e-4:
            break
        before = estimate
    assert found.largest.value == pytest.approx(estimate, rel=1e-14)
    assert found.largest.iterations == found.products == steps < 20
    slow = power_iteration(Hessian(quadratic([1.0, -1.0, 0.99, -0.98])), seed=0)
    assert slow.largest.iterations <= 20
    capped = power_iteration(Hessian(quadratic([1.0, 0.9])), limit=3, tolerance=1e-12)
    assert capped.largest.iterations == 3
    assert not capped.converged


def test_a_flat_loss_has_eigenvalue_zero() -> None:
    for method in (power_iteration, lanczos):
        found = method(Hessian(quadratic([0.0, 0.0, 0.0])))
        assert found.largest.value == 0
        assert found.converged


def test_disjoint_subsets_give_error_bars(known: Known) -> None:
    loss = known.loss()
    found = eigenvalues(loss, top=2, bottom=1, samples=7, subsets=5, tolerance=1e-8)
    assert len(found.largest.by_subset) == 4, "30 samples hold four disjoint sevens"
    separate = [eigenvalues(part, top=2, tolerance=1e-8).largest.value for part in loss.disjoint(7, 4, seed=0)]
    assert found.largest.by_subset == pytest.approx(separate, rel=1e-10)
    assert found.largest.value == pytest.approx(np.mean(separate))
    assert found.largest.spread == pytest.approx(np.std(separate, ddof=1))
    assert found.subject.samples == 7
    alone = eigenvalues(loss, samples=20, tolerance=1e-6)
    assert alone.largest.spread is None


def test_eigenvalues_do_not_depend_on_batches_or_workers(known: Known) -> None:
    single, data = copy.deepcopy(known.module).float(), (known.inputs, known.targets)
    found = [
        eigenvalues(MeanLoss(single, F.cross_entropy, data, batch_size=size, workers=workers), tolerance=1e-5)
        for size, workers in [(30, 1), (4, 1), (4, 2), (7, 3)]
    ]
    largest = [one.largest.value for one in found]
    assert largest == pytest.approx([largest[0]] * 4, rel=1e-5)
    assert largest[1] == largest[2]
    assert largest[0] == pytest.approx(float(known.spectrum[-1]), rel=1e-4)


def test_a_result_survives_its_file(known: Known, tmp_path: Path) -> None:
    found = eigenvalues(known.loss(), top=2, bottom=1, samples=10, weights="average100")
    save(tmp_path / "eigenvalues.json", found)
    assert load(tmp_path / "eigenvalues.json", Eigenvalues) == found
    text = json.loads((tmp_path / "eigenvalues.json").read_text())
    assert text["subject"] == {
        "samples": 10,
        "parameters": len(known.hessian),
        "split": "data",
        "weights": "average100",
        "preprocessing": "as given",
        "weighting": "samples",
        "precision": "float64",
    }
    assert {"method", "products", "seed", "tolerance", "converged"} <= text.keys()
    assert {"value", "residual", "iterations", "spread"} <= text["top"][0].keys()
    assert "vectors" not in text
    assert to_json({"loss": (math.nan, 1.0)}) == {"loss": [None, 1.0]}
    del text["top"][0]["by_subset"]  # as if by a version that did not know it
    assert from_json(Eigenvalues, text).top[0] == replace(found.top[0], by_subset=())
    for damage in (
        "{",
        "[]",
        json.dumps(text | {"subject": [1]}),
        json.dumps(text | {"products": "9"}),
        json.dumps(text | {"method": "guess"}),
        json.dumps({name: value for name, value in text.items() if name != "seed"}),
    ):
        (tmp_path / "torn.json").write_text(damage)
        with pytest.raises(InvalidInput, match=r"torn.json: cannot be read as Eigenvalues .*; remove it"):
            load(tmp_path / "torn.json", Eigenvalues)


@pytest.mark.parametrize(("method", "products"), [("lanczos", 8), ("power", 25)])
def test_an_interrupt_keeps_what_is_computed(known: Known, method: str, products: int) -> None:
    def stop(done: int, total: int) -> None:
        if done == products:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted) as caught:
        eigenvalues(known.loss(), top=5, method=method, tolerance=1e-9, progress=stop)  # type: ignore[arg-type]
    partial = caught.value.partial
    assert isinstance(partial, Eigenvalues)
    assert not partial.converged
    assert partial.products == products
    assert partial.largest.value == pytest.approx(float(known.spectrum[-1]), rel=0.1)
    assert isinstance(caught.value, KeyboardInterrupt)


def test_an_interrupt_keeps_the_subsets_done(known: Known) -> None:
    calls: list[int] = []

    def stop(done: int, total: int) -> None:
        calls.append(done)
        if calls.count(1) == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted) as caught:
        eigenvalues(known.loss(), samples=5, progress=stop)
    assert isinstance(caught.value.partial, Eigenvalues)
    assert len(caught.value.partial.largest.by_subset) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 0}, "top: asked for 0 and 0 eigenvalues"),
        ({"top": 9}, "top: 9 eigenvalues of a matrix of size 8"),
        ({"tolerance": 0.0}, "tolerance: must be positive"),
        ({"method": "qr"}, "method: is 'lanczos' or 'power', got 'qr'"),
        ({"method": "power", "bottom": 1}, "bottom: power iteration finds the largest alone"),
        ({"samples": 0}, "samples: must be at least 1"),
        ({"samples": 5}, "samples: asked for 5, data holds 4"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    data = torch.ones(4, 3), torch.tensor([0, 1, 0, 1])
    with pytest.raises(InvalidInput, match=message):
        top_eigenvalues(nn.Linear(3, 2), F.cross_entropy, data, **options)  # type: ignore[arg-type]


def test_a_model_with_a_nan_is_refused() -> None:
    model = nn.Linear(3, 2)
    model.weight.data[0, 0] = float("nan")
    with pytest.raises(InvalidInput, match="weights: 'weight' holds a NaN or infinity"):
        top_eigenvalues(model, F.cross_entropy, (torch.ones(2, 3), torch.tensor([0, 1])))
