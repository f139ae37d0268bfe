"""Where clients run and remember. Each transport carries a broadcast to a cohort and yields its updates."""

from .client_store import ClientStore, DiskStore, MemoryStore
from .pool import PoolTransport, prepare_workers
from .serial import SerialTransport, Tasks
from .simulation import Simulation, Workers, open_simulation, worker_count

__all__ = [
    "ClientStore",
    "DiskStore",
    "MemoryStore",
    "PoolTransport",
    "SerialTransport",
    "Simulation",
    "Tasks",
    "Workers",
    "open_simulation",
    "prepare_workers",
    "worker_count",
]
