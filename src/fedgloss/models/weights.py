"""Weights from files: ImageNet weights as torchvision publishes them, or a network's own."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ..errors import InvalidInput

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class WeightsReport:
    """What a file gave: the parameters taken, those left as they were drawn, and what of the file went unused."""

    path: Path
    taken: tuple[str, ...]
    kept: Mapping[str, str]
    unused: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{self.path}: {len(self.taken)} tensors taken"]
        lines += [f"  as drawn: {name} ({reason})" for name, reason in self.kept.items()]
        lines += [f"  not used: {name} ({reason})" for name, reason in self.unused.items()]
        return "\n".join(lines)


def load_weights(module: nn.Module, path: Path | str) -> WeightsReport:
    """Start a network from a file (safetensors, or .pth read without running anything in it).

    A file with exactly the network's own names is taken whole. ``resnet18-gn`` and ``mobilenetv2-gn`` take also
    what torchvision publishes for these networks with BatchNorm: convolutions as they are, the norm layers' scales
    and shifts without their running statistics; the last layer is new.
    """
    path = Path(path)
    found = _read(path)
    own = module.state_dict()
    if found.keys() == own.keys():
        for name, tensor in own.items():
            if tensor.shape != found[name].shape:
                raise InvalidInput(
                    f"{path}: {name} has shape {tuple(found[name].shape)}, the model needs {tuple(tensor.shape)}"
                )
        module.load_state_dict(found)
        return WeightsReport(path, tuple(own), {}, {})
    head = getattr(module, "HEAD", None)
    if not isinstance(head, str):
        raise InvalidInput(
            f"{path}: these are not the weights of this model ({_difference(own, found)}); "
            "torchvision's ImageNet weights fit resnet18-gn and mobilenetv2-gn"
        )
    return _take_torchvision(module, path, found, head)


def _take_torchvision(module: nn.Module, path: Path, found: Mapping[str, Tensor], head: str) -> WeightsReport:
    own = module.state_dict()
    places = {name.replace("norm", "bn"): name for name in own}
    taken: dict[str, Tensor] = {}
    unused: dict[str, str] = {}
    for name, tensor in found.items():
        place = places.get(name)
        if name.rpartition(".")[2] in STATISTICS:
            unused[name] = "GroupNorm keeps no running statistics"
        elif place is None:
            unused[name] = "the model has no such layer"
        elif place.startswith(head):
            unused[name] = "the last layer is new"
        elif tensor.shape != own[place].shape:
            unused[name] = f"shape {tuple(tensor.shape)}, the model has {tuple(own[place].shape)}"
        else:
            taken[place] = tensor
    if not any(own[name].ndim == 4 for name in taken):
        raise InvalidInput(
            f"{path}: no convolution in it fits this model; "
            f"it must be torchvision's {'resnet18' if head == 'fc.' else 'mobilenet_v2'}"
        )
    module.load_state_dict(taken, strict=False)
    kept = {name: unused.get(original, "not in the file") for original, name in places.items() if name not in taken}
    return WeightsReport(path, tuple(taken), kept, unused)


def _read(path: Path) -> dict[str, Tensor]:
    """Named finite tensors of a file. Nothing in the file is executed."""
    if not path.is_file():
        raise InvalidInput(f"{path}: no such file")
    try:
        if path.suffix == ".safetensors":
            content: object = load_file(path)
        else:
            with warnings.catch_warnings(action="ignore"):  # of pickle's protocols; whether it can be read is said
                content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can fail in any way
        raise InvalidInput(f"{path}: neither safetensors nor a .pth file of plain tensors") from error
    if not isinstance(content, Mapping) or not content:
        raise InvalidInput(f"{path}: must hold named tensors (a state dict), not a {type(content).__name__}")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise InvalidInput(f"{path}: must hold named tensors (a state dict); {name!r} is none")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InvalidInput(f"{path}: {name} holds a NaN or infinity")
    return dict(content)


def _difference(own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    missing, unknown = sorted(own.keys() - found.keys()), sorted(found.keys() - own.keys())
    return f"{missing[0]} is missing" if missing else f"{unknown[0]} is unknown"
