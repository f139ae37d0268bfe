"""What a run's last bits depend on beside its configuration: versions, instruction set, code."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

DECIDES_BITS = ("torch", "numpy", "instruction_set", "onednn_isa", "machine", "precision", "code")


@cache
def code_fingerprint() -> str:
    """A hash of the package's own source, so that two runs can be told to come from the same code."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(path for suffix in ("py", "c") for path in root.rglob(f"*.{suffix}")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def describe_environment() -> dict[str, Any]:
    return {
        "fedgloss": version("fedgloss"),
        "code": code_fingerprint(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "onednn_isa": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        "command": sys.argv[1:],
    }


def differing_environment(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Where two environments differ in something that may change the last bits."""
    return [f"{k}: {before.get(k)} -> {now.get(k)}" for k in DECIDES_BITS if before.get(k) != now.get(k)]
