"""Vectors and data between processes through shared memory that has no name, so that nothing can be left behind.

A region lives as long as a process holds it: after a crash, or ``kill -9``, there is nothing to clean up. Small
messages travel over a pipe and say where in a region their vectors lie.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import InvalidInput
from ..messages import Broadcast, ClientState, Update

M = TypeVar("M", bound=Broadcast | ClientState | Update)

ALIGNMENT = 64  # what torch gives its own tensors: matrix products may round differently on other addresses
SHARED_FROM = 64 * 1024  # bytes: smaller arrays travel in the pickle


class Region:
    """Memory that several processes see."""

    def __init__(self, descriptor: int, size: int, *, copy_on_write: bool = False) -> None:
        self.size = size
        self.descriptor = descriptor
        flags = mmap.MAP_PRIVATE if copy_on_write else mmap.MAP_SHARED
        self.bytes = mmap.mmap(descriptor, size, flags, mmap.PROT_READ | mmap.PROT_WRITE)

    @classmethod
    def new(cls, size: int) -> Region:
        size = max(size, mmap.PAGESIZE)
        if hasattr(os, "memfd_create"):  # not bounded by the size of /dev/shm, which containers keep small
            descriptor = os.memfd_create("fedgloss")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, size)
        return cls(descriptor, size)

    def __del__(self) -> None:
        os.close(self.descriptor)

    def tensor(self, place: Place) -> Tensor:
        """A view, not a copy."""
        if 0 in place.shape:
            return torch.empty(place.shape, dtype=place.dtype)
        count = torch.Size(place.shape).numel()
        whole = torch.frombuffer(self.bytes, dtype=place.dtype, count=count, offset=place.start)
        return whole.as_strided(place.shape, place.stride)


@dataclass(frozen=True)
class Place:
    """Where one tensor lies in a region, and in which order."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int


@dataclass(frozen=True)
class Parcel:
    """Named vectors that lie in the region behind a box."""

    box: str
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Letter(Generic[M]):
    """A message without its vectors, and where these lie."""

    message: M
    parcel: Parcel


class Box:
    """Shared memory that one process writes, again and again, and others read. It grows with its largest content.

    Whoever writes must know that nobody still reads what was written before. What readers write into a box with
    ``copy_on_write`` stays their own.
    """

    def __init__(self, name: str, *, copy_on_write: bool = False) -> None:
        self.name = name
        self.copy_on_write = copy_on_write
        self.region: Region | None = None

    def pack(self, *groups: Mapping[str, Tensor]) -> list[Parcel]:
        """Write groups of named vectors, in place of what was there; a parcel for each group."""
        parcels, end = [], 0
        for vectors in groups:
            places = []
            for name, vector in vectors.items():
                stride = torch.empty_like(vector, device="meta").stride()  # its own, without gaps
                places.append(Place(name, vector.dtype, tuple(vector.shape), stride, end))
                end = _aligned(end + vector.numel() * vector.element_size())
            parcels.append(Parcel(self.name, tuple(places)))
        if self.region is None or self.region.size < end:
            self.region = Region.new(end)
        for vectors, parcel in zip(groups, parcels, strict=True):
            for place in parcel.places:
                self.region.tensor(place).copy_(vectors[place.name])
        return parcels

    def post(self, *messages: Broadcast | ClientState | Update) -> list[Letter[Any]]:
        """Write the vectors of messages; the letters say the rest."""
        parcels = self.pack(*[message.vectors for message in messages])
        return [Letter(replace(m, vectors={}), p) for m, p in zip(messages, parcels, strict=True)]


@dataclass(frozen=True)
class _Introduction:
    """Announces the region that is from now on behind a box; its descriptor follows."""

    box: str
    size: int
    copy_on_write: bool


class Channel:
    """One end of a pipe for small messages, which also hands over the regions behind boxes."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._introduced: dict[str, Region] = {}
        self._known: dict[str, Region] = {}

    def send(self, message: object, *boxes: Box) -> None:
        """Send a message, after the regions of the boxes its parcels lie in where these are new."""
        for box in boxes:
            if box.region is not None and self._introduced.get(box.name) is not box.region:
                self.connection.send(_Introduction(box.name, box.region.size, box.copy_on_write))
                self._send_descriptor(box.region.descriptor)
                self._introduced[box.name] = box.region
        self.connection.send(message)

    def receive(self) -> Any:
        message = self.connection.recv()
        while isinstance(message, _Introduction):
            descriptor = self._receive_descriptor()
            region = Region(descriptor, message.size, copy_on_write=message.copy_on_write)
            self._known[message.box] = region
            message = self.connection.recv()
        return message

    def hand_over(self, message: object, end: Connection) -> None:
        """Send a message and, after it, one end of a pipe."""
        self.connection.send(message)
        self._send_descriptor(end.fileno())

    def accept(self) -> Channel:
        """The pipe whose end follows the message received last."""
        return Channel(Connection(self._receive_descriptor()))

    def open(self, parcel: Parcel) -> dict[str, Tensor]:
        """The vectors of a parcel, still in the shared memory: good until the sender packs anew."""
        return {place.name: self._known[parcel.box].tensor(place) for place in parcel.places}

    def _send_descriptor(self, descriptor: int) -> None:
        with socket.socket(fileno=os.dup(self.connection.fileno())) as pipe:
            socket.send_fds(pipe, [b"\0"], [descriptor])

    def _receive_descriptor(self) -> int:
        with socket.socket(fileno=os.dup(self.connection.fileno())) as pipe:
            _, descriptors, _, _ = socket.recv_fds(pipe, 1, 1)
        if not descriptors:
            raise EOFError
        return descriptors[0]

    def read(self, letter: Letter[M]) -> M:
        """The message, its vectors still in the shared memory."""
        return replace(letter.message, vectors=self.open(letter.parcel))

    def load(self, shared: SharedPickle) -> Any:
        """The object that was pickled, its large arrays still in the shared memory."""
        memory = memoryview(self._known[shared.box].bytes) if shared.spans else memoryview(b"")
        return pickle.loads(shared.pickle, buffers=[memory[start:end] for start, end in shared.spans])


@dataclass(frozen=True)
class SharedPickle:
    """A pickled object whose large arrays lie in the region behind a box."""

    box: str
    pickle: bytes
    spans: tuple[tuple[int, int], ...]


def share(box: Box, parts: Mapping[str, object]) -> dict[str, SharedPickle]:
    """Pickle objects for our own child processes, their large arrays and tensors written once, for all of them.

    Refuses, by the part's name, what cannot be pickled.
    """
    pickles: dict[str, tuple[bytes, list[pickle.PickleBuffer]]] = {}
    for name, part in parts.items():
        try:
            pickles[name] = take_apart(part)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InvalidInput(
                f"{name}: cannot be sent to worker processes ({error}); define its functions and classes "
                "at the top level of a module, or use 1 worker"
            ) from error
    shared, end = {}, 0
    for name, (pickled, buffers) in pickles.items():
        spans = []
        for buffer in buffers:
            spans.append((end, end + buffer.raw().nbytes))
            end = _aligned(spans[-1][1])
        shared[name] = SharedPickle(box.name, pickled, tuple(spans))
    box.region = Region.new(end)
    for name, (_, buffers) in pickles.items():
        for buffer, (start, stop) in zip(buffers, shared[name].spans, strict=True):
            box.region.bytes[start:stop] = buffer.raw()
    return shared


def take_apart(value: object) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """A pickle of the value, and the large arrays in it, which are not copied."""
    stream, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _SharingPickler(stream, buffers).dump(value)
    return stream.getvalue(), buffers


class _SharingPickler(pickle.Pickler):
    """Numpy arrays hand out their memory by themselves; tensors are made to do it as the arrays they rest on."""

    def __init__(self, stream: io.BytesIO, buffers: list[pickle.PickleBuffer]) -> None:
        def keep_apart(buffer: pickle.PickleBuffer) -> bool:
            small = buffer.raw().nbytes < SHARED_FROM
            if not small:
                buffers.append(buffer)
            return small  # true: into the pickle itself

        super().__init__(stream, protocol=5, buffer_callback=keep_apart)
        self._storages: dict[int, npt.NDArray[np.uint8]] = {}

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.layout is not torch.strided or value.device.type != "cpu":
            return NotImplemented
        if value.requires_grad or value.is_quantized or value.is_conj() or value.is_neg():
            return NotImplemented
        storage = value.untyped_storage()
        if storage.nbytes() < SHARED_FROM:
            return NotImplemented
        if storage.data_ptr() not in self._storages:  # views of one storage stay views of one storage
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._storages[storage.data_ptr()] = whole.numpy()
        raw = self._storages[storage.data_ptr()]
        return _tensor_on, (raw, value.dtype, tuple(value.shape), value.stride(), value.storage_offset())


def _tensor_on(
    raw: npt.NDArray[np.uint8], dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> Tensor:
    # in the same memory order as before, since kernels, and so the last bits, follow it
    return torch.from_numpy(raw).view(dtype).as_strided(shape, stride, offset)


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT
