"""Networks: their sizes, their functions against plain transcriptions, and what they refuse."""

from __future__ import annotations

import copy
import pickle
import sys
import textwrap

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedgloss import FedAvg, Federation, InvalidInput, LocalTraining, Problem, train
from fedgloss.data import splits
from fedgloss.data.transforms import PictureTransform
from fedgloss.models import MODELS, build
from fedgloss.randomness import seeded_torch
from fedgloss.tasks import Batch, Objective
from fedgloss.vectors import Layout

PICTURE_MODELS = ["cnn", "resnet18-gn", "mobilenetv2-gn"]


def made(name: str, shape=(3, 32, 32), classes=10, seed=0, **options) -> nn.Module:
    with seeded_torch(seed):
        return build(name, shape, classes, **options)


def pictures(count: int, shape=(3, 32, 32), dtype=torch.float32) -> torch.Tensor:
    values = torch.randn(count, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return values.to(dtype).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "count"),
    [
        ("cnn", (3, 32, 32), 10, {}, 797_962),
        ("cnn", (3, 32, 32), 100, {}, 815_332),
        ("resnet18-gn", (3, 32, 32), 10, {}, 11_173_962),
        ("resnet18-gn", (3, 224, 224), 1000, {"stem": "imagenet"}, 11_689_512),  # torchvision's resnet18
        ("mobilenetv2-gn", (3, 224, 224), 1000, {}, 3_504_872),  # torchvision's mobilenet_v2
        ("mlp", (1, 8, 8), 10, {}, 64 * 200 + 200 + 2010),
        ("mlp", (5,), 3, {"hidden": [7, 4]}, 42 + 32 + 15),
        ("logistic", (3, 32, 32), 100, {}, 307_300),
    ],
)
def test_the_number_of_weights(name, shape, classes, options, count):
    assert Layout.of(made(name, shape, classes, **options)).size == count


def test_every_model_is_in_the_table_with_a_summary():
    assert list(MODELS) == ["cnn", "resnet18-gn", "mobilenetv2-gn", "mlp", "logistic"]
    assert all(model.summary and "\n" not in model.summary for model in MODELS.values())


# ------------------------------------------------------------------------------- the functions, written plainly


def plain_cnn(channels=3, side=5, classes=10) -> nn.Module:
    """The network as anyone would write it: ReLU before the pool, Flatten in torch's order."""
    layers = {
        "conv1": nn.Conv2d(channels, 64, 5),
        "relu1": nn.ReLU(),
        "pool1": nn.MaxPool2d(2),
        "conv2": nn.Conv2d(64, 64, 5),
        "relu2": nn.ReLU(),
        "pool2": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(64 * side * side, 384),
        "relu3": nn.ReLU(),
        "fc2": nn.Linear(384, 192),
        "relu4": nn.ReLU(),
        "fc3": nn.Linear(192, classes),
    }
    network = nn.Sequential()
    for name, layer in layers.items():
        network.add_module(name, layer)
    return network


def test_the_cnn_starts_from_torch_s_own_draws():
    with seeded_torch(5):
        plain = plain_cnn()
    mine = made("cnn", seed=5).state_dict()
    assert list(mine) == list(plain.state_dict())
    assert all(torch.equal(tensor, mine[name]) for name, tensor in plain.state_dict().items())


@pytest.mark.parametrize(("shape", "side"), [((3, 32, 32), 5), ((1, 28, 28), 4), ((4, 17, 17), 1)])
def test_exported_cnn_weights_are_in_torch_s_order(shape, side):
    """Whatever the vector holds, a plain torch network with the exported weights answers the same; and back."""
    module = made("cnn", shape).double()
    layout = Layout.of(module)
    vector = layout.flatten(module) + 0.01 * torch.randn(layout.size, dtype=torch.float64)
    objective = Objective(copy.deepcopy(module), F.cross_entropy)
    layout.load(module, vector)
    exported = module.state_dict()
    assert exported["fc1.weight"].shape == (384, 64 * side * side)
    plain = plain_cnn(shape[0], side).double()
    plain.load_state_dict(exported)
    x = pictures(4, shape, torch.float64)
    expected = plain(x.contiguous())
    torch.testing.assert_close(objective.outputs(vector, x), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(objective.outputs(vector, x.contiguous()), expected, rtol=1e-12, atol=1e-12)

    other = made("cnn", shape, seed=9).double()
    other.load_state_dict(plain.state_dict())
    assert torch.equal(layout.flatten(other), vector)


def test_the_cnn_does_not_copy_its_large_weight():
    """Columns of fc1 lie in the vector in the order of a channels-last picture."""
    objective = Objective(made("cnn"), F.cross_entropy)
    vector = objective.initial()
    objective.outputs(vector, pictures(2))
    weight = objective.module.fc1.weight
    rows = weight.permute(0, 2, 3, 1).flatten(1)
    assert vector.data_ptr() <= rows.data_ptr() < vector.data_ptr() + 4 * vector.numel()


def test_a_wrong_state_dict_is_refused_by_shape():
    state = made("cnn").state_dict()
    state["fc1.weight"] = state["fc1.weight"][:, :-1]
    with pytest.raises(RuntimeError, match=r"fc1\.weight"):
        made("cnn").load_state_dict(state)


def group_norm(x, groups, weight, bias):
    """GroupNorm by its definition."""
    grouped = x.reshape(len(x), groups, -1)
    centred = grouped - grouped.mean(2, keepdim=True)
    scaled = (centred / (centred.square().mean(2, keepdim=True) + 1e-5).sqrt()).reshape(x.shape)
    return scaled * weight[:, None, None] + bias[:, None, None]


def plain_resnet(state, x, groups, stem):
    def norm(x, name):
        return group_norm(x, groups, state[f"{name}.weight"], state[f"{name}.bias"])

    size = state["conv1.weight"].shape[-1]
    x = F.conv2d(x, state["conv1.weight"], stride=2 if stem == "imagenet" else 1, padding=size // 2)
    x = F.relu(norm(x, "norm1"))
    if stem == "imagenet":
        x = F.max_pool2d(x, 3, 2, 1)
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            here = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            y = F.relu(norm(F.conv2d(x, state[f"{here}.conv1.weight"], stride=stride, padding=1), f"{here}.norm1"))
            y = norm(F.conv2d(y, state[f"{here}.conv2.weight"], padding=1), f"{here}.norm2")
            if f"{here}.downsample.0.weight" in state:
                x = norm(F.conv2d(x, state[f"{here}.downsample.0.weight"], stride=stride), f"{here}.downsample.1")
            x = F.relu(x + y)
    return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


def plain_mobilenet(state, x, groups):
    def norm(x, name):
        return group_norm(x, groups, state[f"{name}.weight"], state[f"{name}.bias"])

    x = F.relu6(norm(F.conv2d(x, state["features.0.0.weight"], stride=2, padding=1), "features.0.1"))
    plan = [(1, 1)] + [
        (6, s) for n, s in ((2, 2), (3, 2), (4, 2), (3, 1), (3, 2), (1, 1)) for s in [s] + [1] * (n - 1)
    ]
    for number, (expansion, stride) in enumerate(plan, start=1):
        here, y, layer = f"features.{number}.conv", x, 0
        if expansion > 1:
            y = F.relu6(norm(F.conv2d(y, state[f"{here}.0.0.weight"]), f"{here}.0.1"))
            layer = 1
        kernel = state[f"{here}.{layer}.0.weight"]
        y = F.conv2d(y, kernel, stride=stride, padding=1, groups=len(kernel))
        y = F.relu6(norm(y, f"{here}.{layer}.1"))
        y = norm(F.conv2d(y, state[f"{here}.{layer + 1}.weight"]), f"{here}.{layer + 2}")
        x = x + y if stride == 1 and x.shape == y.shape else y
    x = F.relu6(norm(F.conv2d(x, state["features.18.0.weight"]), "features.18.1"))
    return F.linear(x.mean((2, 3)), state["classifier.1.weight"], state["classifier.1.bias"])


def shaken(module: nn.Module) -> nn.Module:
    """All weights moved a little, so that norm layers are not at one and zero."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.1 * noise.to(parameter.dtype))
    return module


@pytest.mark.parametrize(("stem", "groups", "side"), [("cifar", 2, 32), ("cifar", 32, 9), ("imagenet", 2, 40)])
def test_resnet18_is_what_it_says(stem, groups, side):
    module = shaken(made("resnet18-gn", (3, side, side), 7, stem=stem, groups=groups).double())
    x = pictures(2, (3, side, side), torch.float64)
    expected = plain_resnet(module.state_dict(), x, groups, stem)
    torch.testing.assert_close(module(x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("groups", [8, 1])
def test_mobilenetv2_is_what_it_says(groups):
    module = shaken(made("mobilenetv2-gn", (3, 48, 48), 7, groups=groups).double())
    x = pictures(2, (3, 48, 48), torch.float64)
    torch.testing.assert_close(module(x), plain_mobilenet(module.state_dict(), x, groups), rtol=1e-9, atol=1e-9)


def test_mobilenetv2_widths_and_dropout():
    narrow = made("mobilenetv2-gn", width=0.5, dropout=0.5)
    assert narrow.features[0][0].out_channels == 16
    assert narrow.classifier[1].in_features == 1280
    assert made("mobilenetv2-gn", width=1.4).classifier[1].in_features == 1792
    x = pictures(2)
    assert torch.equal(narrow.eval()(x), narrow(x))
    narrow.train()
    assert not torch.equal(narrow(x), narrow(x))


@pytest.mark.parametrize("name", MODELS)
def test_float64_memory_order_and_the_vector(name):
    """The gradient through the flat vector is autograd's own, in both precisions and both memory orders."""
    shape = (3, 18, 18)
    module = made(name, shape)
    x, y = pictures(3, shape), torch.tensor([1, 0, 7])
    objective = Objective(copy.deepcopy(module), F.cross_entropy)
    _, gradient = objective.gradient(objective.initial(), Batch(x, y, 0))
    double = copy.deepcopy(module).double()
    loss = F.cross_entropy(double(x.double().contiguous()), y)
    expected = dict(
        zip(dict(double.named_parameters()), torch.autograd.grad(loss, list(double.parameters())), strict=True)
    )
    precise = Objective(copy.deepcopy(double), F.cross_entropy)
    assert precise.layout.dtype == torch.float64
    _, exact = precise.gradient(precise.initial(), Batch(x.double(), y, 0))
    torch.testing.assert_close(exact, precise.layout.pack(expected), rtol=1e-9, atol=1e-12)
    assert float((gradient - exact).norm() / exact.norm()) < 1e-4


@pytest.mark.parametrize(("name", "side"), [("cnn", 16), ("resnet18-gn", 8), ("mobilenetv2-gn", 20), ("mlp", 4)])
def test_second_derivatives_exist(name, side):
    """Hessian-vector products by double backward, against a difference of gradients."""
    module = shaken(made(name, (1, side, side), 3).double())
    parameters = list(module.parameters())
    x, y = pictures(4, (1, side, side), torch.float64), torch.tensor([0, 1, 2, 1])
    generator = torch.Generator().manual_seed(0)
    direction = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]

    def gradients(create_graph=False):
        return torch.autograd.grad(F.cross_entropy(module(x), y), parameters, create_graph=create_graph)

    product = torch.autograd.grad(gradients(True), parameters, direction)
    step, sides = 1e-7, []
    for sign in (1, -1):
        with torch.no_grad():
            for parameter, d in zip(parameters, direction, strict=True):
                parameter.add_(sign * step * d)
        sides.append(gradients())
        with torch.no_grad():
            for parameter, d in zip(parameters, direction, strict=True):
                parameter.sub_(sign * step * d)
    difference = [(a - b) / (2 * step) for a, b in zip(*sides, strict=True)]
    length = sum(float(p.square().sum()) for p in product) ** 0.5
    error = sum(float((p - d).square().sum()) for p, d in zip(product, difference, strict=True)) ** 0.5
    assert length > 0
    assert error / length < 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_models_are_deterministic_picklable_and_copied_whole(name):
    one, two = made(name, seed=4), made(name, seed=4)
    vector = Layout.of(one).flatten(one)
    assert torch.equal(vector, Layout.of(two).flatten(two))
    assert not torch.equal(vector, Layout.of(one).flatten(made(name, seed=5)))
    again = pickle.loads(pickle.dumps(one))
    assert torch.equal(Layout.of(again).flatten(again), vector)
    assert list(copy.deepcopy(again).state_dict()) == list(one.state_dict())
    x = pictures(2)
    assert torch.equal(again.eval()(x), one.eval()(x))


# ------------------------------------------------------------------------------------------------- what fits


@pytest.mark.parametrize(
    ("name", "options", "least"),
    [
        ("cnn", {}, 16),
        ("resnet18-gn", {}, 5),
        ("resnet18-gn", {"stem": "imagenet"}, 17),
        ("mobilenetv2-gn", {}, 17),
    ],
)
def test_the_smallest_picture_works_and_a_smaller_one_is_refused(name, options, least):
    for shape in ((1, least, least), (2, least, least + 3), (5, least + 8, least + 1)):
        module = made(name, shape, 2, **options)
        F.cross_entropy(module(pictures(2, shape)), torch.tensor([0, 1])).backward()
        assert all(torch.isfinite(p.grad).all() for p in module.parameters())
    for shape in ((3, least - 1, least), (3, least, least - 1)):
        sentence = (
            rf"model {name}: pictures of {shape[1]} x {shape[2]} are too small .* {least} x {least} and larger"
        )
        with pytest.raises(InvalidInput, match=sentence):
            build(name, shape, 10, **options)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "message"),
    [
        (
            "cnn",
            (32, 32),
            10,
            {},
            r"model cnn: takes pictures, an input of \(channels, height, width\), got \(32, 32\)",
        ),
        ("cnn", (0, 32, 32), 10, {}, r"takes pictures"),
        ("cnn", (3, 32, 32), 1, {}, r"model cnn: needs at least 2 classes to tell apart, got 1"),
        ("cnn", (3, 32, 32), 10, {"groups": 2}, r"model cnn: unknown option 'groups'; it takes none"),
        ("resnet18-gn", (3, 32, 32), 10, {"group": 2}, r"unknown option 'group'; did you mean 'groups'\?"),
        ("resnet18-gn", (3, 32, 32), 10, {"groups": 3}, r"groups: must divide .*: 1, 2, 4, 8, 16, 32, 64; got 3"),
        ("resnet18-gn", (3, 32, 32), 10, {"groups": "2"}, r"groups: must divide"),
        ("resnet18-gn", (3, 32, 32), 10, {"stem": "7x7"}, r"stem: must be cifar or imagenet, got '7x7'"),
        ("mobilenetv2-gn", (3, 32, 32), 10, {"groups": 16}, r"groups: must divide .*: 1, 2, 4, 8; got 16"),
        ("mobilenetv2-gn", (3, 32, 32), 10, {"width": 0}, r"width: must be positive"),
        ("mobilenetv2-gn", (3, 32, 32), 10, {"dropout": 1.0}, r"dropout: must lie in"),
        ("mlp", (), 10, {}, r"model mlp: the input's shape must be of positive sizes"),
        ("mlp", (4,), 10, {"hidden": 0}, r"hidden: must be widths of at least 1, got 0"),
        ("mlp", (4,), 10, {"hidden": [3, "x"]}, r"hidden: must be widths"),
        ("logistic", (4,), 1, {}, r"at least 2 classes"),
        ("resnet18", (3, 32, 32), 10, {}, r"model 'resnet18': unknown; did you mean 'resnet18-gn'\?"),
        (
            "transformer",
            (3, 32, 32),
            10,
            {},
            r"model 'transformer': unknown; there are cnn, .*, and package:function",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(name, shape, classes, options, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        build(name, shape, classes, **options)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------- plug-ins


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module of the user's own in the current folder."""
    (tmp_path / "my_networks.py").write_text(
        textwrap.dedent(
            """
            import math
            from torch import nn

            def make_model(input_shape, classes, hidden=5):
                width = math.prod(input_shape)
                return nn.Sequential(nn.Flatten(), nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, classes))

            def no_arguments():
                return nn.Linear(1, 1)

            def no_network(input_shape, classes):
                return {"classes": classes}

            number = 3
            """
        )
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    yield
    sys.modules.pop("my_networks", None)


def test_a_network_of_the_user_s_own(own_module):
    module = build("my_networks:make_model", (1, 4, 4), 3, hidden=7)
    assert module(torch.zeros(2, 1, 4, 4)).shape == (2, 3)
    assert module[1].out_features == 7


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("my_networks:make_model", {"depth": 3}, r"called as make_model\(input_shape, classes, \*\*options\)"),
        ("my_networks:no_arguments", {}, r"called as no_arguments\(input_shape, classes\), which it does not take"),
        ("my_networks:no_network", {}, r"made a dict, must make a torch\.nn\.Module"),
        ("my_networks:absent", {}, r"my_networks has no function 'absent'"),
        ("my_networks:number", {}, r"my_networks has no function 'number'"),
        ("no_such_package:make", {}, r"cannot import 'no_such_package'"),
        (":make", {}, r"write it as package\.module:function"),
    ],
)
def test_a_plug_in_that_does_not_fit_is_said(own_module, name, options, message):
    with pytest.raises(InvalidInput, match=message):
        build(name, (1, 4, 4), 3, **options)


# ------------------------------------------------------------------------------------------------- together


@pytest.mark.parametrize(("name", "options"), [("cnn", {}), ("resnet18-gn", {}), ("mlp", {"hidden": 8})])
def test_pictures_split_transformed_and_learnt(name, options):
    """One round from uint8 pictures to new weights, through every part."""
    rng = np.random.default_rng(0)
    labels = np.arange(12, dtype=np.int64) % 2
    raw = rng.integers(0, 256, (12, 16, 16, 3), dtype=np.uint8)
    federation = Federation.from_arrays(
        torch.from_numpy(raw),
        torch.from_numpy(labels),
        clients=splits.hsu(labels, 2, 0.0),
        test=(torch.from_numpy(raw[:4]), torch.from_numpy(labels[:4])),
        transform=PictureTransform((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
    )
    problem = Problem(federation, made(name, (3, 16, 16), 2, **options))
    history = train(FedAvg(LocalTraining(lr=0.01, batch_size=4)), problem, rounds=1, cohort=2)
    before = history.layout.flatten(problem.build(0))
    assert torch.isfinite(history.state["params"]).all()
    assert not torch.equal(history.state["params"], before)
    assert 0 <= history.evaluations[-1].metrics["accuracy"] <= 1
