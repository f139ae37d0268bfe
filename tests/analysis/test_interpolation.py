"""The line through two models."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from curvature import Known, small_cnn
from torch import nn

from fedgloss import InvalidInput
from fedgloss.analysis import Interpolation, Interrupted, Subject, interpolate, interpolation, load, save

SUBJECT = Subject(samples=1, parameters=1)


def test_the_ends_are_the_two_models(known: Known, tmp_path: Path) -> None:
    torch.manual_seed(5)
    other = small_cnn().double()
    found = interpolate(known.module, other, F.cross_entropy, (known.inputs, known.targets))
    assert len(found.coefficients) == 31
    assert (found.coefficients[0], found.coefficients[-1]) == (-1, 2)
    for coefficient, model in ((0.0, known.module), (1.0, other)):
        at = found.coefficients.index(coefficient)
        outputs = model(known.inputs).detach()
        assert found.loss[at] == pytest.approx(float(F.cross_entropy(outputs, known.targets)), rel=1e-10)
        right = (outputs.argmax(1) == known.targets).double().mean()
        assert found.curves["accuracy"][at] == pytest.approx(float(right))
    save(tmp_path / "line.json", found)
    assert load(tmp_path / "line.json", Interpolation) == found


def test_the_barrier_is_measured_from_the_straight_line_between_the_losses() -> None:
    one, other = nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 1, bias=False).double()
    one.weight.data.fill_(0.0)
    other.weight.data.fill_(1.0)
    data = torch.ones(1, 1).double(), torch.zeros(1, 1).double()

    def bump(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (2 * outputs + 4 * outputs * (1 - outputs)).mean()

    assert interpolate(one, other, bump, data).barrier == pytest.approx(1.0)
    valley = interpolate(one, other, lambda outputs, targets: -bump(outputs, targets), data)
    assert valley.barrier == 0


def test_a_loss_beyond_all_numbers_between_the_models_is_a_barrier_without_end(tmp_path: Path) -> None:
    for beyond in (float("nan"), float("inf")):
        found = Interpolation((0.0, 0.5, 1.0, 1.5), {"loss": (1.0, beyond, 1.0, 1.0)}, SUBJECT)
        save(tmp_path / "line.json", found)
        assert found.barrier == load(tmp_path / "line.json", Interpolation).barrier == float("inf")
    outside = Interpolation((0.0, 0.5, 1.0, 1.5), {"loss": (1.0, 3.0, 1.0, float("nan"))}, SUBJECT)
    assert outside.barrier == 2


def test_the_two_models_are_always_among_the_points() -> None:
    model = nn.Linear(2, 2)
    data = torch.eye(2), torch.tensor([0, 1])
    found = interpolate(model, nn.Linear(2, 2), F.cross_entropy, data, points=4, start=-0.5, stop=1.5)
    assert {0.0, 1.0} < set(found.coefficients)
    assert list(found.coefficients) == sorted(found.coefficients)
    assert found.barrier >= 0


def test_an_interrupt_keeps_the_points_done(known: Known) -> None:
    def stop(done: int, total: int) -> None:
        if done == 3:
            signal.raise_signal(signal.SIGINT)

    loss = known.loss()
    with pytest.raises(Interrupted) as caught:
        interpolation(loss, loss.params, loss.params * 2, progress=stop)
    partial = caught.value.partial
    assert isinstance(partial, Interpolation)
    assert partial.coefficients == (-1.0, -0.9, -0.8)
    assert len(partial.loss) == 3
    assert partial.barrier != partial.barrier, "unknown until both ends are measured"


def test_a_line_begun_goes_on(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = known.loss()
    whole = interpolation(loss, loss.params, loss.params * 2, points=4)
    begun = Interpolation(
        whole.coefficients[:2], {name: curve[:2] for name, curve in whole.curves.items()}, whole.subject
    )
    asked: list[float] = []
    evaluate = loss.evaluate

    def counted(params: torch.Tensor) -> dict[str, float]:
        asked.append(float(params[0] / loss.params[0]) - 1)
        return evaluate(params)

    monkeypatch.setattr(loss, "evaluate", counted)
    assert interpolation(loss, loss.params, loss.params * 2, points=4, known=begun) == whole
    assert asked == pytest.approx(whole.coefficients[2:])


def test_models_that_cannot_be_mixed_are_refused() -> None:
    data = torch.eye(2), torch.tensor([0, 1])
    with pytest.raises(InvalidInput, match="second: its parameters differ from the first"):
        interpolate(nn.Linear(2, 2), nn.Linear(2, 3), F.cross_entropy, data)
    statistics = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(InvalidInput, match="keeps running statistics"):
        interpolate(statistics, statistics, F.cross_entropy, data)
    frozen, other = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for model in (frozen, other):
        model[0].requires_grad_(False)
    with pytest.raises(InvalidInput, match=r"second: '0\.bias' is not trained, and differs"):
        interpolate(frozen, other, F.cross_entropy, data)
    other[0].load_state_dict(frozen[0].state_dict())
    line = interpolate(frozen, other, F.cross_entropy, data, points=2, start=0, stop=1)
    assert line.loss[1] == pytest.approx(float(F.cross_entropy(other(data[0]), data[1]).detach()), rel=1e-6)
    broken = nn.Linear(2, 2)
    broken.bias.data.fill_(float("inf"))
    with pytest.raises(InvalidInput, match="second weights: 'bias' holds a NaN or infinity"):
        interpolate(nn.Linear(2, 2), broken, F.cross_entropy, data)
    for options, message in [
        ({"points": 1}, "points: must be at least 2"),
        ({"start": 3.0}, "start: 3.0 must be below"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            interpolate(nn.Linear(2, 2), nn.Linear(2, 2), F.cross_entropy, data, **options)  # type: ignore[arg-type]
