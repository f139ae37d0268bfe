"""Weights from files: torchvision's ImageNet weights, a network's own, and what must be refused."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedgloss import InvalidInput
from fedgloss.models import build, load_weights
from fedgloss.randomness import seeded_torch
from fedgloss.vectors import Layout


def batch_norm(name: str, channels: int) -> dict[str, tuple[int, ...]]:
    vectors = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (channels,))
    return {f"{name}.{part}": shape for part, shape in vectors.items()} | {f"{name}.num_batches_tracked": ()}


def resnet18() -> dict[str, tuple[int, ...]]:
    """Names and shapes of torchvision's resnet18 state dict."""
    shapes = {"conv1.weight": (64, 3, 7, 7)} | batch_norm("bn1", 64)
    before = 64
    for stage, width in enumerate((64, 128, 256, 512), start=1):
        for block in (0, 1):
            here = f"layer{stage}.{block}"
            shapes[f"{here}.conv1.weight"] = (width, before, 3, 3)
            shapes |= batch_norm(f"{here}.bn1", width)
            shapes[f"{here}.conv2.weight"] = (width, width, 3, 3)
            shapes |= batch_norm(f"{here}.bn2", width)
            if before != width:
                shapes[f"{here}.downsample.0.weight"] = (width, before, 1, 1)
                shapes |= batch_norm(f"{here}.downsample.1", width)
            before = width
    return shapes | {"fc.weight": (1000, 512), "fc.bias": (1000,)}


def mobilenet_v2() -> dict[str, tuple[int, ...]]:
    """Names and shapes of torchvision's mobilenet_v2 state dict."""
    shapes = {"features.0.0.weight": (32, 3, 3, 3)} | batch_norm("features.0.1", 32)
    before, number = 32, 1
    plan = ((1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1))
    for expansion, after, blocks in plan:
        for _ in range(blocks):
            here, hidden, layer = f"features.{number}.conv", before * expansion, 0
            if expansion > 1:
                shapes[f"{here}.0.0.weight"] = (hidden, before, 1, 1)
                shapes |= batch_norm(f"{here}.0.1", hidden)
                layer = 1
            shapes[f"{here}.{layer}.0.weight"] = (hidden, 1, 3, 3)
            shapes |= batch_norm(f"{here}.{layer}.1", hidden)
            shapes[f"{here}.{layer + 1}.weight"] = (after, hidden, 1, 1)
            shapes |= batch_norm(f"{here}.{layer + 2}", after)
            before, number = after, number + 1
    shapes["features.18.0.weight"] = (1280, 320, 1, 1)
    shapes |= batch_norm("features.18.1", 1280)
    return shapes | {"classifier.1.weight": (1000, 1280), "classifier.1.bias": (1000,)}


def drawn(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.tensor(7) if shape == () else torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }


def saved(state: dict[str, torch.Tensor], path):
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


def weights(shapes: dict[str, tuple[int, ...]]) -> int:
    """Trainable ones: without the running statistics."""
    names = [n for n in shapes if not n.endswith(("running_mean", "running_var", "num_batches_tracked"))]
    return sum(torch.Size(shapes[name]).numel() for name in names)


def test_the_true_names_and_shapes_add_up():
    assert (len(resnet18()), weights(resnet18())) == (122, 11_689_512)
    assert (len(mobilenet_v2()), weights(mobilenet_v2())) == (314, 3_504_872)


def made(name: str, shape=(3, 64, 64), classes=12, seed=0, **options):
    with seeded_torch(seed):
        return build(name, shape, classes, **options)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize(
    ("name", "shapes", "head", "options"),
    [
        ("resnet18-gn", resnet18(), "fc.", {"stem": "imagenet"}),
        ("mobilenetv2-gn", mobilenet_v2(), "classifier.1.", {}),
    ],
)
def test_imagenet_weights(tmp_path, name, shapes, head, options, suffix):
    state = drawn(shapes)
    module, untouched = made(name, **options), made(name, **options)
    report = load_weights(module, saved(state, tmp_path / f"imagenet{suffix}"))
    taken = module.state_dict()
    statistics = {n for n in shapes if n.endswith(("running_mean", "running_var", "num_batches_tracked"))}
    expected = {n for n in shapes if n not in statistics and not n.startswith(head)}
    assert {n.replace("norm", "bn") for n in report.taken} == expected
    for own in report.taken:
        assert torch.equal(taken[own], state[own.replace("norm", "bn")])
    assert set(report.unused) == statistics | {f"{head}weight", f"{head}bias"}
    assert report.kept == {f"{head}weight": "the last layer is new", f"{head}bias": "the last layer is new"}
    for own in report.kept:
        assert torch.equal(taken[own], untouched.state_dict()[own])
    assert set(report.taken) | set(report.kept) == {e.name for e in Layout.of(module).entries}
    text = str(report)
    assert f"{len(report.taken)} tensors taken" in text
    assert f"as drawn: {head}weight (the last layer is new)" in text


def test_the_small_stem_keeps_its_own_first_layer(tmp_path):
    module = made("resnet18-gn")
    report = load_weights(module, saved(drawn(resnet18()), tmp_path / "imagenet.pth"))
    assert report.kept["conv1.weight"] == "shape (64, 3, 7, 7), the model has (64, 3, 3, 3)"
    assert set(report.kept) == {"conv1.weight", "fc.weight", "fc.bias"}


def test_grey_pictures_keep_their_own_first_layer(tmp_path):
    report = load_weights(
        made("mobilenetv2-gn", (1, 32, 32)), saved(drawn(mobilenet_v2()), tmp_path / "imagenet.safetensors")
    )
    assert report.kept["features.0.0.weight"] == "shape (32, 3, 3, 3), the model has (32, 1, 3, 3)"


def test_the_last_layer_is_new_even_for_a_thousand_classes(tmp_path):
    report = load_weights(made("resnet18-gn", classes=1000), saved(drawn(resnet18()), tmp_path / "a.pth"))
    assert "fc.weight" in report.kept


def test_weights_are_brought_to_the_model_s_precision(tmp_path):
    module = made("resnet18-gn", stem="imagenet").double()
    state = {name: tensor.half() for name, tensor in drawn(resnet18()).items()}
    load_weights(module, saved(state, tmp_path / "half.safetensors"))
    assert module.conv1.weight.dtype == torch.float64
    assert torch.equal(module.conv1.weight, state["conv1.weight"].double())


@pytest.mark.parametrize("name", ["cnn", "resnet18-gn", "mobilenetv2-gn", "mlp", "logistic"])
def test_a_network_s_own_weights_are_taken_whole(tmp_path, name):
    trained, fresh = made(name, seed=1), made(name, seed=2)
    path = saved({n: t.contiguous() for n, t in trained.state_dict().items()}, tmp_path / "own.safetensors")
    report = load_weights(fresh, path)
    assert (report.kept, report.unused) == ({}, {})
    assert torch.equal(Layout.of(fresh).flatten(fresh), Layout.of(trained).flatten(trained))


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil-was-here",)


def test_what_is_no_file_of_weights_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fine = drawn(resnet18())
    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"conv1.weight": Evil()}, protocol=2))
    torch.save({"conv1.weight": Evil()}, tmp_path / "zipped.pth")
    (tmp_path / "text.safetensors").write_text("hello")
    (tmp_path / "text.pth").write_text("hello")
    (tmp_path / "empty.pth").write_bytes(b"")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({}, tmp_path / "nothing.pth")
    torch.save({"conv1.weight": 3}, tmp_path / "number.pth")
    saved(fine | {"bn1.weight": torch.full((64,), torch.nan)}, tmp_path / "nan.safetensors")
    saved(fine, tmp_path / "cut.safetensors")
    content = (tmp_path / "cut.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(content[: len(content) // 2])
    saved({"encoder.weight": torch.ones(3)}, tmp_path / "other.safetensors")
    neither = "neither safetensors nor a .pth file of plain tensors"
    for file, message in {
        "absent.pth": "no such file",
        "evil.pth": neither,
        "zipped.pth": neither,
        "text.safetensors": neither,
        "text.pth": neither,
        "empty.pth": neither,
        "cut.safetensors": neither,
        "list.pth": "not a list",
        "nothing.pth": "must hold named tensors",
        "number.pth": "'conv1.weight' is none",
        "nan.safetensors": "bn1.weight holds a NaN or infinity",
        "other.safetensors": "it must be torchvision's resnet18",
    }.items():
        module = made("resnet18-gn", stem="imagenet")
        before = Layout.of(module).flatten(module)
        with pytest.raises(InvalidInput) as caught:
            load_weights(module, tmp_path / file)
        assert str(caught.value).startswith(str(tmp_path / file))
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
        assert torch.equal(Layout.of(module).flatten(module), before)
    assert not (tmp_path / "evil-was-here").exists()


def test_imagenet_weights_do_not_fit_every_model(tmp_path):
    path = saved(drawn(resnet18()), tmp_path / "imagenet.pth")
    with pytest.raises(InvalidInput, match=r"not the weights of this model .* fit resnet18-gn and mobilenetv2-gn"):
        load_weights(made("cnn"), path)
    with pytest.raises(InvalidInput, match="it must be torchvision's mobilenet_v2"):
        load_weights(made("mobilenetv2-gn"), path)


def test_own_weights_for_other_classes_say_what_differs(tmp_path):
    path = saved(made("cnn", classes=10).state_dict(), tmp_path / "own.safetensors")
    with pytest.raises(InvalidInput, match=r"fc3.weight has shape \(10, 192\), the model needs \(12, 192\)"):
        load_weights(made("cnn"), path)


def test_the_examples_of_the_page(tmp_path, monkeypatch):
    """The Python of docs/models.md runs as it stands."""
    monkeypatch.chdir(tmp_path)
    saved(drawn(mobilenet_v2()), tmp_path / "mobilenet_v2.safetensors")
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, {})
