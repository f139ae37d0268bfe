"""Pickles as Python 2 and NumPy 1 wrote them, which is what the python archives of CIFAR hold."""

from __future__ import annotations

import struct

import numpy as np


def text(value: str) -> bytes:
    return b"U" + bytes([len(value)]) + value.encode()


def number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    return b"M" + struct.pack("<H", value) if 0 <= value < 65536 else b"J" + struct.pack("<i", value)


def array(rows: np.ndarray, code: str = "u1") -> bytes:
    """An ndarray as Python 2 and NumPy 1 pickled it."""
    dtype = b"cnumpy\ndtype\n" + text(code) + number(0) + number(1) + b"\x87R"
    dtype += b"(" + number(3) + text("|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    shape = number(rows.shape[0]) + number(rows.shape[1]) + b"\x86"
    content = rows.tobytes()
    head = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + text("b") + b"\x87R"
    return head + b"(" + number(1) + shape + dtype + b"\x89T" + struct.pack("<i", len(content)) + content + b"tb"


def entries(values: list[bytes]) -> bytes:
    return b"](" + b"".join(values) + b"e"


def python_batch(**parts: bytes) -> bytes:
    """A dictionary in pickle protocol 2, its strings Python 2's."""
    return b"\x80\x02}(" + b"".join(text(key) + value for key, value in parts.items()) + b"u."
