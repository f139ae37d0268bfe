"""Where clients run and remember. Each transport carries a broadcast to a cohort and yields its updates."""

from .client_store import ClientStore, DiskStore, MemoryStore
from .serial import SerialTransport, Tasks

__all__ = ["ClientStore", "DiskStore", "MemoryStore", "SerialTransport", "Tasks"]
