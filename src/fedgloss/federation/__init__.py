"""A real federation: sites that keep their data and their memory, and a server that survives them and itself.

:mod:`fedgloss.transports.flower` makes a Flower app of what :func:`from_config` reads; see docs/federation.md.
"""

from __future__ import annotations

from .definition import Learning, from_config
from .exchange import Reply, Rules, SiteTransport, TooFewSites
from .memory import SiteMemory
from .privacy import Privacy
from .server import serve
from .site import answer

__all__ = [
    "Learning",
    "Privacy",
    "Reply",
    "Rules",
    "SiteMemory",
    "SiteTransport",
    "TooFewSites",
    "answer",
    "from_config",
    "serve",
]
