"""What every runner speaks: a line ``ready``, then for each line it reads one JSON line of what it measured.

Imports nothing of fedgloss, so that runners in the environments of other projects can use it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any


def serve(once: Callable[[], dict[str, Any] | None], warm_up: int = 1) -> None:
    """Do it ``warm_up`` times, then once for every line that comes, and tell how long it took."""
    output, sys.stdout = sys.stdout, sys.stderr  # what libraries print must not get in between
    for _ in range(warm_up):
        once()
    print("ready", file=output, flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        found = once() or {}
        found.setdefault("seconds", time.perf_counter() - began)
        print(json.dumps(found), file=output, flush=True)
