from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgloss.data.store import StoredSamples, Writer, converted
from fedgloss.errors import InvalidInput
from fedgloss.files import cache_folder

PICTURES = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(50) % 7


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"anything")
    return path


def fill(writer: Writer) -> None:
    for start in (0, 20, 40):
        writer.append("pictures", PICTURES[start : start + 20])
    writer.append("labels", LABELS)
    writer.notes["train"] = 40


def never(writer: Writer) -> None:
    raise AssertionError("converted again")


def test_what_was_written_is_read_back(source: Path) -> None:
    store = converted("toy", [source], fill)
    train, test = store.parts(40)
    pictures, targets = train.fetch(np.array([3, 0, 39]))
    assert pictures.dtype == torch.uint8
    assert targets.dtype == torch.int64
    assert (pictures.numpy() == PICTURES[[3, 0, 39]]).all()
    assert (targets.numpy() == LABELS[[3, 0, 39]]).all()
    assert (test.fetch(np.arange(10))[0].numpy() == PICTURES[40:]).all()
    pictures.zero_()  # a batch is the caller's own
    assert (train.fetch(np.array([3]))[0].numpy() == PICTURES[[3]]).all()


def test_it_is_converted_once(source: Path, stored) -> None:
    first = converted("toy", [source], fill)
    assert converted("toy", [source], never).digest == first.digest
    assert [Path(file).name for file in stored()] == ["header.json", "labels.bin", "pictures.bin"]


def test_samples_travel_by_path_and_open_elsewhere(source: Path) -> None:
    big = np.zeros((2000, 32, 32, 3), np.uint8)
    big[7] = 9

    def convert(writer: Writer) -> None:
        writer.append("pictures", big)
        writer.append("labels", np.zeros(2000, np.int64))

    samples, _ = converted("big", [source], convert).parts(1000)
    samples.fetch(np.arange(5))  # open here already: that must not travel
    content = pickle.dumps(samples)
    assert len(content) < 20_000
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pictures, _ = pool.apply(samples.fetch, (np.array([7]),))
    assert (pictures.numpy() == 9).all()


@pytest.mark.parametrize("harm", ["changed source", "truncated", "longer", "no header", "bad header", "old format"])
def test_a_stale_or_damaged_store_is_made_again(source: Path, cache: Path, stored, harm: str) -> None:
    store = converted("toy", [source], fill)
    header = store.folder / "header.json"
    match harm:
        case "changed source":
            source.write_bytes(b"something else")
        case "truncated":
            os.truncate(store.folder / "pictures.bin", 100)
        case "longer":
            with (store.folder / "labels.bin").open("ab") as file:
                file.write(b"x")
        case "no header":
            header.unlink()
        case "bad header":
            header.write_text("{")
        case "old format":
            header.write_text(json.dumps({**json.loads(header.read_text()), "format": 0}))
    calls = []
    again = converted("toy", [source], lambda writer: (calls.append(1), fill(writer))[1])
    assert calls == [1]
    assert (again.array("pictures") == PICTURES).all()
    assert len(stored()) == 3, "one store, and no trace of the other"


def test_a_store_that_vanishes_under_a_worker_is_named(source: Path) -> None:
    samples, _ = converted("toy", [source], fill).parts(40)
    copy = pickle.loads(pickle.dumps(samples))
    os.truncate(samples.pictures.path, 10)
    with pytest.raises(InvalidInput, match="load the data set again"):
        copy.fetch(np.array([0]))
    samples.pictures.path.unlink()
    with pytest.raises(InvalidInput, match="the store is gone"):
        copy.fetch(np.array([0]))


def test_a_failed_conversion_leaves_nothing(source: Path, cache: Path, stored) -> None:
    def convert(writer: Writer) -> None:
        fill(writer)
        raise InvalidInput("source: is broken")

    with pytest.raises(InvalidInput, match="is broken"):
        converted("toy", [source], convert)
    assert stored() == []
    assert list((cache / "stores").iterdir()) == []


def test_processes_at_once_do_not_clash(source: Path, tmp_path: Path, stored) -> None:
    script = f"""
import time
from pathlib import Path
import numpy as np
from fedgloss.data.store import converted
def convert(writer):
    with open({str(tmp_path / "log")!r}, "a") as file:
        file.write("x")
    time.sleep(0.5)
    writer.append("pictures", np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3))
    writer.append("labels", np.zeros(2, np.int64))
print(converted("toy", [Path({str(source)!r})], convert).digest)
"""
    running = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    digests = {process.communicate(timeout=60)[0] for process in running}
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64
    assert (tmp_path / "log").read_text() == "x", "the others waited for the first"
    assert len(stored()) == 3


def test_a_full_disk_is_one_clear_line(source: Path, cache: Path) -> None:
    """A limit on file sizes stands in for a disk without room: both make write() fail."""
    script = f"""
import resource, signal
from pathlib import Path
import numpy as np
from fedgloss.data.store import converted
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    converted("toy", [Path({str(source)!r})], lambda w: w.append("pictures", np.zeros((1000, 32, 32, 3), np.uint8)))
except ValueError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"InvalidInput {cache}: cannot be written (File too large)")
    assert "FEDGLOSS_CACHE" in done.stdout
    assert not list((cache / "stores").glob("*"))


def test_a_cache_that_is_a_file_is_one_clear_line(source: Path, cache: Path) -> None:
    cache.write_text("")
    with pytest.raises(InvalidInput, match="set FEDGLOSS_CACHE"):
        converted("toy", [source], fill)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDGLOSS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / "fedgloss"


def test_a_part_and_a_replacement_cost_one_index_array(source: Path) -> None:
    train, _ = converted("toy", [source], fill).parts(40)
    part = train.only(np.array([5, 6]))
    assert len(part) == 2
    assert (part.fetch(np.array([1]))[0].numpy() == PICTURES[[6]]).all()
    other = StoredSamples(train.pictures, np.array([49]), np.array([0]))
    assert (other.fetch(np.array([0]))[0].numpy() == PICTURES[[49]]).all()
