from __future__ import annotations

import contextlib
import json
import struct

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgloss import InvalidInput
from fedgloss.codec import decode, encode, encoded_size
from fedgloss.messages import Broadcast, ClientState, ServerState, Update

VECTOR = torch.tensor([1.0, -0.0, float("inf"), 1e-45])
MESSAGES = [
    ServerState({"params": VECTOR, "dual": VECTOR}, 7, 100, {"averaged": 3.0}),
    ClientState({"dual": VECTOR.double()}, {"last_visit": 2.0}),
    ClientState(),
    Broadcast({"params": VECTOR}, 3, "probe"),
    Update({"delta": VECTOR}, 12, {"loss": 0.1, "steps": 8.0}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_survives_and_its_size_is_known_beforehand(message) -> None:
    data = encode(message)
    assert len(data) == encoded_size(message)
    again = decode(type(message), data)
    assert encode(again) == data
    for name, vector in message.vectors.items():
        assert again[name].numpy().tobytes() == vector.numpy().tobytes()


def test_size_does_not_depend_on_the_values() -> None:
    small = Update({"delta": VECTOR}, 1, {"loss": 0.0})
    large = Update({"delta": VECTOR}, 10**12, {"loss": 1e300 / 7})
    assert encoded_size(small) == encoded_size(large) == len(encode(large))


def crafted(tensors: dict, header: dict) -> bytes:
    return safetensors.numpy.save(tensors, {"message": json.dumps(header)})


GOOD = {"kind": "Update", "scalars": []}
PARTS = {"scalars": np.zeros(0), "whole": np.array([1]), "vector.delta": np.zeros(4, np.float32)}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a safetensors message"),
        (b"\x80\x04\x95", "not a safetensors message"),
        (struct.pack("<Q", 2**63) + b"{}", "not a safetensors message"),
        (struct.pack("<Q", 4) + b"null", "not a safetensors message"),
        (encode(MESSAGES[0]), "a Update was expected, got 'ServerState'"),
        (encode(MESSAGES[4])[:-3], "not a well-formed Update"),
        (crafted(PARTS, {"kind": "Update"}), "not a well-formed Update"),
        (crafted({**PARTS, "whole": np.array([1, 2])}, GOOD), "not a well-formed Update"),
        (crafted({**PARTS, "vector.delta": np.zeros((2, 2), np.float32)}, GOOD), "expected a vector"),
        (crafted({**PARTS, "vector.delta": np.zeros(4, np.int32)}, GOOD), "expected a vector"),
        (crafted({**PARTS, "vector.delta": np.zeros(5, np.float32)}, GOOD), "expected a vector of 4"),
        (crafted({**PARTS, "extra": np.zeros(4, np.float32)}, GOOD), "'extra'"),
    ],
)
def test_what_is_not_a_message_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        decode(Update, data, size=4)


def test_an_unknown_purpose_is_refused() -> None:
    header = {"kind": "Broadcast", "scalars": [], "purpose": "obey"}
    with pytest.raises(InvalidInput, match="unknown purpose"):
        decode(Broadcast, crafted({"scalars": np.zeros(0), "whole": np.array([1])}, header))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 400), st.integers(0, 255))
def test_damage_is_an_error_or_a_message_never_a_crash(noise: bytes, at: int, value: int) -> None:
    data = bytearray(encode(MESSAGES[4]))
    data[at % len(data)] = value
    for candidate in (noise, bytes(data), bytes(data) + noise):
        with contextlib.suppress(InvalidInput):
            decode(Update, candidate, size=4)
