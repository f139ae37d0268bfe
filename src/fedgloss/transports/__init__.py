"""Where clients run and remember. Each transport carries a broadcast to a cohort and yields its updates."""

from .client_store import ClientStore, DiskStore, MemoryStore
from .pool import PoolTransport
from .schedule import OnFailure
from .serial import SerialTransport, Tasks, on_device
from .simulation import Evaluate, Simulation, TransportName, Workers, open_simulation, usable_workers

__all__ = [
    "ClientStore",
    "DiskStore",
    "Evaluate",
    "MemoryStore",
    "OnFailure",
    "PoolTransport",
    "SerialTransport",
    "Simulation",
    "Tasks",
    "TransportName",
    "Workers",
    "on_device",
    "open_simulation",
    "usable_workers",
]
