from __future__ import annotations

import csv
import io
import json
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgloss.cli import main
from fedgloss.data import download


@pytest.fixture
def fedgloss(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """The command line in a folder of its own: exit code, what it said, what it complained about."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: object) -> tuple[int, str, str]:
        command = ["fedgloss", *([] if arguments[0] in ("run", "resume") else ["data"])]
        monkeypatch.setattr(sys, "argv", [*command, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def test_show_the_default_data_set(fedgloss, tmp_path: Path) -> None:
    code, said, complaints = fedgloss("show", "digits")
    assert (code, complaints) == (0, "")
    for fact in ("1,438", "359", "32 x 32 x 1", "scikit-learn", "digits, hsu, alpha 0", "each column a client"):
        assert fact in said
    with Image.open(tmp_path / "digits-hsu-0.png") as picture:
        assert picture.width > 500
    assert "<svg" in (tmp_path / "digits-hsu-0.svg").read_text()


def test_show_as_json_agrees_with_the_division(fedgloss, tmp_path: Path) -> None:
    code, said, _ = fedgloss(
        "show", "digits", "--split", "iid", "--clients", 7, "--seed", 3, "--validation", 0.1, "--json", "--out", "x"
    )
    facts = json.loads(said)
    assert code == 0
    assert (facts["train"], facts["test"], facts["shape"]) == (1438, 359, [32, 32, 1])
    assert facts["division"]["clients"] == 7
    assert facts["division"]["samples"] + facts["validation"] == 1438
    assert facts["validation"] == pytest.approx(144, abs=4)
    assert [Path(file).name for file in facts["pictures"]] == ["digits-iid.png", "digits-iid.svg"]
    assert (tmp_path / "x" / "digits-iid.png").is_file()


def test_make_and_show_landmarks(fedgloss, tmp_path: Path) -> None:
    code, said, _ = fedgloss("make", "landmarks-user-160k", "small", "--users", 5, "--pictures", 40, "--shards")
    assert code == 0
    assert "fedgloss data show landmarks-user-160k --path small" in said
    code, said, _ = fedgloss("show", "landmarks-user-160k", "--path", "small", "--set", "side=64", "--json")
    facts = json.loads(said)
    assert code == 0
    assert facts["title"] == "landmarks-user-160k, natural"
    assert facts["division"]["clients"] == 5
    assert facts["shape"] == [64, 64, 3]

    with tarfile.open(tmp_path / "small" / "train" / "images_000.tar", "w"):
        pass  # every picture is gone
    (tmp_path / "small" / "test.csv").write_text((tmp_path / "small" / "test.csv").read_text() + "\n")
    code, said, complaints = fedgloss("show", "landmarks-user-160k", "--path", "small", "--set", "side=64")
    assert (code, said) == (2, "")
    assert "100 missing and 0 corrupt of 100 pictures" in complaints
    assert complaints.count("\n") == 1


def test_allow_missing_says_what_is_left_out(fedgloss, tmp_path: Path) -> None:
    fedgloss("make", "landmarks-user-160k", "small")
    picture = next((tmp_path / "small" / "train").rglob("*.jpg"))
    picture.write_bytes(b"broken")
    code, said, _ = fedgloss(
        "show", "landmarks-user-160k", "--path", "small", "--set", "side=32", "--allow-missing"
    )
    assert code == 0
    assert "0 missing, 1 corrupt" in said


def test_a_run_refuses_missing_pictures_or_records_that_it_goes_without(fedgloss, tmp_path: Path) -> None:
    fedgloss("make", "landmarks-user-160k", "small", "--users", 4, "--pictures", 40, "--test-pictures", 8)
    next((tmp_path / "small" / "train").rglob("*.jpg")).unlink()
    (tmp_path / "own.toml").write_text(
        '[data]\nname = "landmarks-user-160k"\npath = "small"\nsplit = "natural"\n'
        "options = {side = 32, crop = 28}\n"
        '[model]\nname = "logistic"\n'
        "[training]\nrounds = 1\ncohort = 2\n"
    )
    code, _, complaints = fedgloss("run", "own.toml", "--out", "run", "--workers", 1)
    assert code == 2
    assert "1 missing and 0 corrupt of 48 pictures" in complaints
    assert not (tmp_path / "run").exists()
    code, said, complaints = fedgloss("run", "own.toml", "--out", "run", "--workers", 1, "--allow-missing")
    assert (code, complaints) == (0, "")
    assert "trains without 1 missing and 0 corrupt pictures" in said
    left = json.loads((tmp_path / "run" / "environment.json").read_text())["data"]["left out"]
    assert (left["missing"], left["corrupt"]) == (1, 0)
    assert "allow_missing = true" in (tmp_path / "run" / "config.toml").read_text()


def test_list(fedgloss) -> None:
    code, said, _ = fedgloss("list")
    assert code == 0
    assert "fedgloss data get cifar10" in said
    code, said, _ = fedgloss("list", "--json")
    facts = json.loads(said)
    assert facts["digits"]["place"] == "scikit-learn"
    assert facts["cifar100"]["place"] is None


def test_get_fetches_verifies_and_prepares(
    fedgloss, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file URL: urllib opens those too, and nothing else of the way differs."""
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = 3073
            tar.addfile(member, io.BytesIO(bytes(3073)))
    size, checksum = archive.stat().st_size, download.sha256(archive)
    sources = {"cifar10": (download.Url(archive.as_uri(), size, checksum),)}
    monkeypatch.setattr(download, "SOURCES", sources)
    code, said, complaints = fedgloss("get", "cifar10")
    assert (code, complaints) == (0, "")
    assert "cifar10 is ready: 5 training and 1 test pictures, not the published pictures" in said
    assert (cache / "downloads" / "cifar10" / archive.name).is_file()
    assert fedgloss("list", "--json")[1].count(str(cache)) == 1


def test_a_plug_in_is_shown_as_it_divided_itself(fedgloss, tmp_path: Path) -> None:
    (tmp_path / "shown_package.py").write_text(
        "import numpy as np\n"
        "from fedgloss import Federation\n"
        "def make(skew=1):\n"
        "    x = np.zeros((12, 3)); y = np.arange(12) % 3\n"
        "    return Federation.from_arrays(x, y, clients=[[0, 3, 6], [1, 2, 4, 5]], test=(x, y))\n"
        "def regression():\n"
        "    x = np.zeros((4, 3)); return Federation.from_arrays(x, np.zeros(4), clients=[[0, 1], [2]])\n"
    )
    code, said, _ = fedgloss("show", "shown_package:make", "--set", "skew=2", "--json")
    assert code == 0
    facts = json.loads(said)
    assert facts["division"]["classes_per_client"] == {"mean": 1.5, "least": 1.0, "most": 2.0}
    assert facts["pictures"] == ["shown-package-make.png", "shown-package-make.svg"]
    code, said, _ = fedgloss("show", "shown_package:regression")
    assert code == 0
    assert "float32" in said
    assert "entropy" not in said, "no classes, no mixture of classes"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "digit"], "did you mean 'digits'?"),
        (["show", "digits", "--split", "nonsense"], "--split: unknown split 'nonsense'"),
        (["show", "digits", "--split", "shards"], "classes_per_client: the split 'shards' needs it"),
        (["show", "digits", "--split", "iid", "--alpha", "1"], "alpha: the split 'iid' has no such setting"),
        (["show", "digits", "--split", "natural"], "no natural split"),
        (["show", "digits", "--clients", "5000"], "5000 clients cannot share 1438 samples"),
        (["show", "digits", "--set", "side"], "write it as key=value"),
        (["show", "digits", "--set", "side=3"], "unknown option 'side'"),
        (["show", "cifar10", "--path", "nowhere"], "fedgloss data get cifar10"),
        (["get", "fashion-mnist"], "dataset-fashion-mnist"),
        (["make", "cifar10", "x"], "only landmarks-user-160k can be made"),
        (["make", "landmarks-user-160k", "x", "--pictures", "2"], "too few"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    fedgloss, tmp_path: Path, arguments: list[str], words: str
) -> None:
    code, said, complaints = fedgloss(*arguments)
    assert (code, said) == (2, "")
    assert words in complaints
    assert complaints.startswith("error: ")
    assert complaints.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == []


def test_many_clients_are_sketched_as_far_as_they_fit(fedgloss) -> None:
    _, said, _ = fedgloss("show", "digits", "--split", "iid", "--clients", 300)
    assert "each column a client (97 of 300)" in said
    assert max(map(len, said.splitlines())) <= 100


def test_the_picture_shows_the_division(fedgloss, tmp_path: Path) -> None:
    fedgloss("show", "digits", "--clients", 10, "--alpha", 0)
    with Image.open(tmp_path / "digits-hsu-0.png") as picture:
        colours = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    dark = (colours.max(1) < 100).mean()
    assert 0.02 < dark < 0.2, "ten of a hundred cells are full"


LANDMARKS = "landmarks-user-160k"


@pytest.fixture
def photographs(fedgloss, tmp_path: Path):
    """A small federation, a run on it, and how to break and mend a picture that its last rounds alone need."""
    fedgloss("make", LANDMARKS, "set", "--users", 8, "--classes", 3, "--pictures", 60, "--test-pictures", 8)
    data = {"name": LANDMARKS, "split": "natural", "options.path": "set", "options.side": 32, "options.crop": 28}
    settings = [f"--set=data.{key}={value}" for key, value in data.items()]
    settings += ["--set=model.name=logistic", "--set=training.cohort=2", "--set=training.eval_every=3"]

    def run(out: str, *more: object) -> tuple[int, str, str]:
        return fedgloss("run", "digits", *settings, "--rounds", 6, "--out", out, *more)

    assert run("undisturbed")[0] == 0
    lines = [json.loads(line) for line in (tmp_path / "undisturbed" / "rounds.jsonl").read_text().splitlines()]
    cohorts = [line["cohort"] for line in lines if "cohort" in line]
    late = next(user for cohort in cohorts for user in cohort if user not in cohorts[0] + cohorts[1])
    with (tmp_path / "set" / "federated_train.csv").open() as file:
        image = next(row["image_id"] for row in csv.DictReader(file) if row["user_id"] == str(late))
    picture = next((tmp_path / "set").rglob(f"{image}.jpg"))
    shutil.rmtree(tmp_path / "cache")
    return run, picture


@pytest.mark.parametrize("workers", [1, 2])
def test_a_corrupt_picture_stops_a_run_that_goes_on_once_it_is_mended(
    fedgloss, photographs, tmp_path: Path, workers: int
) -> None:
    run, picture = photographs
    content = picture.read_bytes()
    picture.write_bytes(content[:900])
    code, _, complaints = run("run", "--workers", workers)
    assert code == 2
    assert f"error: {LANDMARKS}: {picture.stem} is corrupt" in complaints.splitlines()[-1]
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) >= 2, "found when it was needed"
    code, _, complaints = fedgloss("resume", "run")
    assert code == 2
    assert "0 missing and 1 corrupt of 68 pictures" in complaints
    picture.write_bytes(content)
    assert fedgloss("resume", "run")[0] == 0
    for file in ("rounds.jsonl", "checkpoints/00000006.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "undisturbed" / file).read_bytes()


def test_a_run_without_missing_pictures_does_not_go_on_with_them(fedgloss, photographs, tmp_path: Path) -> None:
    run, picture = photographs
    content = picture.read_bytes()
    picture.write_bytes(b"<html>not found</html>")
    assert run("run", "--allow-missing")[0] == 0
    recorded = json.loads((tmp_path / "run" / "environment.json").read_text())["data"]["left out"]
    assert (recorded["missing"], recorded["corrupt"]) == (0, 1)
    picture.write_bytes(content)
    code, _, complaints = run("run", "--allow-missing")
    assert code == 2
    assert "run: the data have changed since it began (train, sizes, counts in federation.json)" in complaints


def test_prepare_decodes_all_or_tells_what_is_corrupt(fedgloss, photographs, cache: Path) -> None:
    _, picture = photographs
    code, said, complaints = fedgloss("prepare", LANDMARKS, "--path", "set", "--set", "side=32")
    assert (code, said, complaints) == (0, f"{LANDMARKS} is ready: 68 pictures\n", "")
    shutil.rmtree(cache)
    picture.write_bytes(b"<html>not found</html>")
    code, said, complaints = fedgloss("prepare", LANDMARKS, "--path", "set", "--set", "side=32")
    assert (code, said) == (2, "")
    assert f"0 missing and 1 corrupt of 68 pictures ({picture.stem}; all in" in complaints
    code, said, _ = fedgloss("prepare", LANDMARKS, "--path", "set", "--set", "side=32", "--allow-missing")
    assert code == 0
    assert f"{LANDMARKS} is ready: 67 pictures, without 0 missing and 1 corrupt" in said
    assert fedgloss("prepare", "digits")[1] == "digits is ready: 1,797 pictures\n"
