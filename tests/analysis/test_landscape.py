"""Loss surfaces: directions, centre, resuming."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from curvature import Known, quadratic
from torch import nn

from fedgloss import InvalidInput
from fedgloss.analysis import (
    Interrupted,
    MeanLoss,
    Surface,
    eigenvalues,
    filter_normalised,
    load,
    loss_surface,
    surface,
)
from fedgloss.models import build
from fedgloss.vectors import Layout


def test_filters_have_the_model_s_norms_and_the_rest_stands_still() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(build("cnn", input_shape=(1, 16, 16), classes=3), nn.LayerNorm(3))
    layout = Layout.of(model)
    direction = filter_normalised(layout, layout.flatten(model), seed=0, index=0)
    moved = dict(zip([e.name for e in layout.entries], layout.views(direction), strict=True))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert bool((moved[name] == 0).all()), name
        else:
            norms = [tensor.detach().double().flatten(1).norm(dim=1) for tensor in (moved[name], parameter)]
            assert torch.allclose(*norms, rtol=1e-12), name
            assert len(norms[0]) == parameter.shape[0]


def test_models_compared_share_the_raw_draw() -> None:
    layout = Layout.of(nn.Linear(4, 3))
    one, other = torch.randn(15), torch.randn(15)
    first, second = (filter_normalised(layout, params, 7, 0)[:12].view(3, 4) for params in (one, other))
    assert torch.allclose(F.normalize(first, dim=1), F.normalize(second, dim=1))
    assert not torch.allclose(first, second)
    assert not torch.allclose(filter_normalised(layout, one, 7, 1), filter_normalised(layout, one, 7, 0))
    assert not torch.allclose(filter_normalised(layout, one, 8, 0), filter_normalised(layout, one, 7, 0))


def test_the_surface_is_the_loss_at_each_point(known: Known) -> None:
    loss = known.loss()
    found = surface(loss, grid=5, span=(-0.5, 0.5), seed=3)
    exact = loss.evaluate(loss.params)
    assert found.complete
    assert found.loss[2][2] == pytest.approx(exact["loss"], rel=1e-12)
    assert found.grids["accuracy"][2][2] == found.centre["accuracy"] == exact["accuracy"]
    first, second = (filter_normalised(loss.layout, loss.params, 3, index) for index in (0, 1))
    corner = loss.params + 0.5 * first - 0.25 * second
    assert found.loss[1][4] == pytest.approx(loss.value(corner), rel=1e-12)
    assert (found.x[4], found.y[1]) == (0.5, -0.25)
    assert (found.directions, found.seed) == ("filter-normalised", 3)


def test_along_eigenvectors_the_loss_curves_by_the_eigenvalues() -> None:
    loss = quadratic([6.0, 2.0, 1.0])
    found = eigenvalues(loss, top=2, tolerance=1e-10)
    plane = surface(
        loss, directions=(found.vectors[0], found.vectors[1]), kind="top eigenvectors", grid=3, span=(-1, 1)
    )
    assert np.array(plane.loss) == pytest.approx(np.array([[4, 1, 4], [3, 0, 3], [4, 1, 4]]))
    assert plane.directions == "top eigenvectors"


@pytest.mark.parametrize("stop_at", [1, 7, 12])
def test_an_interrupted_surface_goes_on_where_it_stopped(known: Known, tmp_path: Path, stop_at: int) -> None:
    path, loss = tmp_path / "surface.json", known.loss()
    whole = surface(loss, grid=4)
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        if done == stop_at:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted) as caught:
        surface(loss, grid=4, saved=path, progress=stop)
    partial = load(path, Surface)
    assert partial.computed == stop_at
    assert math.isnan(partial.loss[-1][-1])
    assert isinstance(caught.value.partial, Surface)
    assert caught.value.partial.computed == stop_at
    assert surface(loss, grid=4, saved=path, progress=lambda done, total: seen.append(done)) == whole
    assert seen == list(range(1, 17)), "no point was computed twice"
    assert load(path, Surface) == whole
    assert [p.name for p in tmp_path.iterdir()] == ["surface.json"]


def test_a_file_of_another_surface_is_refused(known: Known, tmp_path: Path) -> None:
    path, loss = tmp_path / "surface.json", known.loss()
    surface(loss, grid=2, saved=path)
    others = [
        lambda: surface(loss, grid=3, saved=path),
        lambda: surface(loss, grid=2, seed=1, saved=path),
        lambda: surface(loss, 1.5 * loss.params, grid=2, saved=path),
        lambda: surface(loss.on((known.inputs[:9], known.targets[:9]), split="data"), grid=2, saved=path),
        lambda: surface(loss.on((known.inputs.flip(0) + 1, known.targets), split="data"), grid=2, saved=path),
    ]
    before = path.read_bytes()
    for other in others:
        with pytest.raises(InvalidInput, match=r"surface.json: holds another model's surface, plane or grid"):
            other()
    assert path.read_bytes() == before
    text = json.loads(before)
    row = {"loss": [[1.0, 2.0]], "accuracy": [[1.0, 2.0]]}
    for damage in ({"grids": row}, {"grids": []}, {"computed": 5}, {"computed": "2"}):
        path.write_text(json.dumps(text | damage))
        with pytest.raises(InvalidInput, match=r"surface.json: cannot be read as Surface .*; remove it"):
            surface(loss, grid=2, saved=path)


def test_losses_beyond_all_numbers_are_kept_as_gaps(tmp_path: Path) -> None:
    loss = quadratic([1.0, 1.0], start=[1e160, 1e160])
    found = surface(loss, directions=(loss.params, loss.params), grid=2, saved=tmp_path / "far.json")
    assert found.complete
    assert math.isinf(found.loss[1][1])
    assert math.isnan(load(tmp_path / "far.json", Surface).loss[1][1])


def test_a_random_part_of_the_data_will_do(known: Known) -> None:
    found = loss_surface(known.module, F.cross_entropy, (known.inputs, known.targets), grid=2, samples=11)
    assert found.subject.samples == 11


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": 1}, "grid: must be at least 2"),
        ({"span": (1.0, -1.0)}, "span: must rise"),
        (
            {"directions": (torch.zeros(8), torch.zeros(7))},
            r"directions\[1\]: shape \(7,\), the model needs \(8,\)",
        ),
        ({"directions": (torch.zeros(8) / 0, torch.zeros(8))}, r"directions\[0\]: 'weight' holds a NaN"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    loss = MeanLoss(nn.Linear(3, 2), F.cross_entropy, (torch.ones(2, 3), torch.tensor([0, 1])))
    with pytest.raises(InvalidInput, match=message):
        surface(loss, **options)  # type: ignore[arg-type]
