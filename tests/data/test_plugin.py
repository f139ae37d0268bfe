from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedgloss.data import Federation
from fedgloss.data.datasets import DataSet, load
from fedgloss.errors import InvalidInput

MODULE = """
import numpy as np
from fedgloss import Federation
from fedgloss.data.datasets import load

def make_federation(clients=3, size=4):
    inputs = np.random.default_rng(0).normal(size=(clients * size, 5))
    targets = np.arange(clients * size) % 2
    owned = np.arange(clients * size).reshape(clients, size).tolist()
    return Federation.from_arrays(inputs, targets, clients=owned, test=(inputs, targets))

def make_data_set():
    return load("digits")

def make_nothing():
    return 3

constant = 7
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module beside the user, and an installed distribution that offers an entry point."""
    (tmp_path / "my_package.py").write_text(MODULE)
    (tmp_path / "broken_package.py").write_text("import surely_not_installed\n")
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedgloss.data]\nhospital = my_package:make_federation\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("my_package", None)


@pytest.mark.parametrize("name", ["my_package:make_federation", "hospital"])
def test_a_function_by_name_or_as_an_entry_point(package: Path, name: str) -> None:
    federation = load(name, clients=2)
    assert isinstance(federation, Federation)
    assert federation.population == 2
    inputs, targets = federation.train.fetch(np.array([1]))
    assert inputs.shape == (1, 5)
    assert targets.tolist() == [1]


def test_a_plug_in_may_leave_the_splitting_to_us(package: Path) -> None:
    assert isinstance(load("my_package:make_data_set"), DataSet)


def test_a_module_in_the_working_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_me.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert load("beside_me:make_federation").population == 3
    sys.modules.pop("beside_me")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("cifar11", {}, "did you mean 'cifar10'?"),
        ("zzz", {}, "there are digits, fashion-mnist"),
        ("absent_package:make", {}, "cannot import 'absent_package'"),
        ("broken_package:make", {}, "No module named 'surely_not_installed'"),
        ("my_package:absent", {}, "no function 'absent'"),
        ("my_package:constant", {}, "no function 'constant'"),
        ("my_package:make_nothing", {}, "made a int, must make a Federation or a DataSet"),
        ("my_package:make_federation", {"client": 3}, "unknown option 'client'; did you mean 'clients'?"),
        ("digits", {"path": "x"}, "digits: unknown option 'path'; it takes none"),
        ("npz", {}, "npz: needs path"),
    ],
)
def test_mistakes_are_one_clear_line(package: Path, name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load(name, **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
