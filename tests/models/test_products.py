"""Products in C give every bit of torch's, and are torch's wherever they cannot be taken."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from fedgloss import FedAvg, Federation, LocalTraining, Problem, train
from fedgloss.compute import compute_threads
from fedgloss.data import splits
from fedgloss.models import build, native, products
from fedgloss.models.native import Unavailable, library
from fedgloss.models.products import product, which_products
from fedgloss.randomness import seeded_torch
from fedgloss.tasks import Batch, Objective

SOURCE = Path(products.__file__).with_suffix(".c")

SHAPES = [  # of one and other; those of the paper's CNN first
    ((16, 14), (14, 14 * 64)),
    ((42, 28), (8, 28, 64 * 64)),
    ((336, 25), (25, 64 * 64)),
    ((336, 64, 64), (336, 64, 64)),
    ((336, 20, 64), (336, 64, 64)),
    ((20, 42), (8, 42, 64 * 64)),
    ((1, 1), (1, 64)),
    ((3, 1, 7), (3, 7, 128)),
    ((5, 13, 33), (5, 33, 192)),
]
VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: x,
    "after a ReLU": F.relu,
    "zeros of both signs": lambda x: torch.where(x > 1, x, torch.copysign(torch.zeros_like(x), x)),
    "beyond the largest number": lambda x: x.abs() * 1e20,
    "below the smallest normal number": lambda x: x * 1e-20,
    "about the smallest number": lambda x: x * 1e-22,
}


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    products._exact.cache_clear()
    yield
    products._exact.cache_clear()
    products._kernel.cache_clear()


@pytest.fixture
def kernel() -> None:
    if isinstance(found := products._kernel(), Unavailable):
        pytest.skip(f"no kernel here: {found}")
    usual, strides = (336, 64, 64), (64 * 64, 64, 1)
    if not products._exact(usual, strides, usual, strides):
        pytest.skip("torch adds up in another order on this processor")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes that the kernel was given."""
    seen: list[torch.Size] = []
    forward = products._Product.forward

    def counted(ctx: object, one: Tensor, other: Tensor) -> Tensor:
        seen.append(other.shape)
        return forward(ctx, one, other)

    monkeypatch.setattr(products._Product, "forward", staticmethod(counted))
    return seen


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.int32), other.contiguous().view(torch.int32))


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("lies", ["in rows", "left in columns", "right in columns"])
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_the_kernel_gives_torch_s_bits(left, right, lies, values, calls) -> None:
    one, other = VALUES[values](drawn(*left)), VALUES[values](drawn(*right, seed=1))
    if lies == "left in columns":
        one = one.mT.contiguous().mT
    elif lies == "right in columns":
        other = other.mT.contiguous().mT
    assert same_bits(product(one, other), one @ other)
    assert calls or left[-2] == 1  # of one row, torch makes a product of matrix and vector


@pytest.mark.usefixtures("kernel")
def test_gradients_of_the_cnn_have_the_same_bits(monkeypatch, calls) -> None:
    with seeded_torch(0):
        objective = Objective(build("cnn", (3, 32, 32), 10), F.cross_entropy)
    params = objective.initial()
    for count in (1, 20, 32, 64):
        pictures = drawn(count, 3, 32, 32).contiguous(memory_format=torch.channels_last)
        batch = Batch(pictures, torch.arange(count) % 10, seed=0)
        calls.clear()
        found = objective.gradient(params, batch)
        assert len(calls) >= (12 if count > 1 else 9)  # six forwards and seven backwards, most of them short sums
        with monkeypatch.context() as patched:
            patched.setattr(products, "_suit", lambda *_: False)
            expected = objective.gradient(params, batch)
        assert all(same_bits(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.usefixtures("kernel")
def test_training_has_the_same_bits(monkeypatch, calls) -> None:
    pictures, labels = drawn(60, 3, 18, 18), torch.arange(60) % 3
    pictures = pictures.contiguous(memory_format=torch.channels_last)
    data = Federation.from_arrays(
        pictures, labels, clients=splits.hsu(labels.numpy(), 3, 0.0), test=(pictures[:9], labels[:9])
    )

    def trained() -> Tensor:
        with seeded_torch(0):
            problem = Problem(data, build("cnn", (3, 18, 18), 3))
        local = LocalTraining(lr=0.05, batch_size=16)
        return train(FedAvg(local), problem, rounds=2, cohort=2).state["params"]

    found = trained()
    assert calls
    monkeypatch.setattr(products, "_suit", lambda *_: False)
    assert same_bits(found, trained())


@pytest.mark.usefixtures("kernel")
def test_a_kernel_that_is_a_bit_off_is_not_used(monkeypatch) -> None:
    computed = products._computed
    monkeypatch.setattr(products, "_computed", lambda *pair: computed(*pair).nextafter(torch.tensor(9.0)))
    one, other = drawn(4, 8, 8), drawn(4, 8, 64, seed=1)
    assert same_bits(product(one, other), one @ other)


@pytest.mark.usefixtures("kernel")
def test_it_can_be_differentiated_twice(calls) -> None:
    def twice(multiply: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, ...]:
        one, other = drawn(2, 64, 64).requires_grad_(), drawn(2, 64, 64, seed=1).requires_grad_()
        first = torch.autograd.grad(multiply(one, other).pow(3).mean(), (one, other), create_graph=True)
        return torch.autograd.grad(sum(g.pow(2).sum() for g in first), (one, other))

    for found, expected in zip(twice(product), twice(torch.matmul), strict=True):
        torch.testing.assert_close(found, expected)
    assert len(calls) >= 7


class Watching(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch.compile itself
def test_whoever_watches_or_transforms_sees_torch_s_product(calls) -> None:
    one, other = drawn(3, 8, 8), drawn(3, 8, 64, seed=1)
    expected = one @ other
    with Watching() as watching:
        torch.testing.assert_close(product(one, other), expected)
    assert any("matmul" in name for name in watching.seen)
    torch.testing.assert_close(torch.vmap(product)(one, other), expected)
    slope = torch.func.grad(lambda x: product(x, other).sum())(one)
    torch.testing.assert_close(slope, other.sum(2)[:, None].expand(3, 8, 8))
    with forward_ad.dual_level():
        pushed = forward_ad.unpack_dual(product(forward_ad.make_dual(one, one), other)).tangent
    torch.testing.assert_close(pushed, expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert product(one, other).dtype == torch.bfloat16
    with compute_threads(2):
        torch.testing.assert_close(product(one, other), expected)
    assert torch.equal(product(one.double(), other.double()), one.double() @ other.double())
    compiled = torch.compile(product, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(one, other), expected)
    assert not calls


@pytest.mark.usefixtures("kernel")
def test_inference_and_many_slopes_at_once(calls) -> None:
    one, other = drawn(3, 8, 8).requires_grad_(), drawn(3, 8, 64, seed=1)
    with torch.inference_mode():
        assert same_bits(product(one, other), one @ other)
    assert calls
    slopes = drawn(5, 3, 8, 64)
    (found,) = torch.autograd.grad(product(one, other), one, slopes, is_grads_batched=True)
    torch.testing.assert_close(found, slopes @ other.mT)


# ------------------------------------------------------------------------------------------------- compiling it


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false", "true", 'cc "'])
def test_without_a_compiler_that_works_products_are_torch_s(compiler, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FEDGLOSS_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    products._kernel.cache_clear()
    one, other = drawn(3, 8, 8), drawn(3, 8, 64, seed=1)
    assert same_bits(product(one, other), one @ other)
    assert which_products().startswith("torch's own (")
    assert not list(tmp_path.rglob("*.so*"))


def test_without_a_place_to_keep_it_products_are_torch_s(monkeypatch, tmp_path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDGLOSS_CACHE", str(tmp_path / "file" / "cache"))
    products._kernel.cache_clear()
    one, other = drawn(3, 8, 8), drawn(3, 8, 64, seed=1)
    assert same_bits(product(one, other), one @ other)
    assert "Not a directory" in which_products() or "made for Linux" in which_products()


def test_without_a_home_products_are_torch_s(monkeypatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(native, "cache_folder", nowhere)
    products._kernel.cache_clear()
    assert "home directory" in which_products() or "made for Linux" in which_products()


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("left", [0, 31, 8192, -1])
def test_a_damaged_file_is_compiled_again(left, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FEDGLOSS_CACHE", str(tmp_path))
    context = multiprocessing.get_context("fork")

    def compiled() -> Path:
        worker = context.Process(target=library, args=(SOURCE,))  # a process that loads what is damaged may die
        worker.start()
        worker.join(60)
        assert worker.exitcode == 0
        (path,) = tmp_path.rglob("*.so")
        return path

    whole = compiled().read_bytes()
    compiled().write_bytes(whole[:left])
    assert compiled().read_bytes() == whole


@pytest.mark.usefixtures("kernel")
def test_what_others_can_write_is_not_run(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FEDGLOSS_CACHE", str(tmp_path))
    before = os.umask(0o002)
    try:
        library(SOURCE)
    finally:
        os.umask(before)
    (path,) = tmp_path.rglob("*.so")
    for place in (path, path.parent):
        assert place.stat().st_mode & 0o777 == 0o700
        place.chmod(0o770)
        with pytest.raises(Unavailable, match=f"{place.name} can be written by others"):
            library(SOURCE)
        place.chmod(0o700)
    path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    with pytest.raises(Unavailable, match="can be written by others"):
        library(SOURCE)


@pytest.mark.usefixtures("kernel")
def test_what_another_user_left_in_the_cache_is_not_run(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FEDGLOSS_CACHE", str(tmp_path))
    monkeypatch.setattr(native.os, "getuid", lambda: 1 << 20)
    with pytest.raises(Unavailable, match="belongs to another user"):
        library(SOURCE)


@pytest.mark.usefixtures("kernel")
def test_processes_that_compile_at_once_all_get_it(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FEDGLOSS_CACHE", str(tmp_path))
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=library, args=(SOURCE,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert [path.suffix for path in (tmp_path / f"native-{os.getuid()}").iterdir() if path.suffix != ".lock"] == [
        ".so"
    ]
    library(SOURCE)
