"""What a user gets from `pip install`: the wheel alone, away from the sources, runs the main job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=300)
    return next(folder.glob("fedgloss-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which `import fedgloss` finds the unpacked wheel, not the sources."""
    target = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return {**os.environ, "PYTHONPATH": str(target)}


def command(environment: dict[str, str], folder: Path, *arguments: str) -> str:
    call = [sys.executable, "-c", "from fedgloss.cli import main; main()", *arguments]
    done = subprocess.run(call, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_typing_mark_and_every_preset(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    kept = [p for p in (source / "fedgloss").rglob("*") if p.is_file() and p.suffix != ".pyc"]
    assert {str(p.relative_to(source)) for p in kept} <= names
    assert "fedgloss/py.typed" in names
    assert any(name.startswith("fedgloss/presets/") for name in names)


def test_the_installed_package_trains_and_exports(installed: dict[str, str], tmp_path: Path) -> None:
    where = subprocess.run(
        [sys.executable, "-c", "import fedgloss; print(fedgloss.__file__)"],
        env=installed,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not Path(where.stdout.strip()).is_relative_to(ROOT)
    said = command(installed, tmp_path, "run", "digits", "--rounds", "2", "--out", "first", "--json")
    assert json.loads(said.splitlines()[-1])["rounds"] == 2
    command(installed, tmp_path, "export", "first", "--to", "model.safetensors")
    assert (tmp_path / "model.safetensors").stat().st_size > 3_000_000
