"""A real federation: sites that keep their data and their memory, and a server that survives them and itself.

``client_app`` and ``server_app`` make a Flower app of what :func:`from_config` reads; see docs/federation.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .definition import Learning, from_config
from .exchange import Reply, Rules, SiteTransport, TooFewSites
from .memory import SiteMemory
from .privacy import Privacy
from .server import serve
from .site import answer

if TYPE_CHECKING:
    from .flower import client_app, server_app

__all__ = [
    "Learning",
    "Privacy",
    "Reply",
    "Rules",
    "SiteMemory",
    "SiteTransport",
    "TooFewSites",
    "answer",
    "client_app",
    "from_config",
    "serve",
    "server_app",
]


def __getattr__(name: str) -> Any:
    if name not in ("client_app", "server_app"):
        raise AttributeError(name)
    try:
        from . import flower
    except ImportError as error:
        from ..errors import InvalidInput

        raise InvalidInput(
            f"federation: Flower needs other packages ({error}); pip install 'fedgloss[flower]'"
        ) from None
    return getattr(flower, name)
