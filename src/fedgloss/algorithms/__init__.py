"""The methods, one file each."""

from .adabest import AdaBest
from .averages import Swa, Wima
from .centralised import Centralised
from .fedavg import FedAvg
from .feddyn import FedDyn
from .fedgloss import FedGloSS
from .fedlesam import FedLESAM
from .fedprox import FedProx
from .fedsmoo import FedSMOO
from .fedspeed import FedSpeed
from .mofedsam import MoFedSAM
from .naive_fedgloss import NaiveFedGloSS
from .scaffold import Scaffold
from .server_sam import ServerSam
from .table import FIDELITIES, METHODS, Method, build
from .tail_average import TailAverage, tail_mean

__all__ = [
    "FIDELITIES",
    "METHODS",
    "AdaBest",
    "Centralised",
    "FedAvg",
    "FedDyn",
    "FedGloSS",
    "FedLESAM",
    "FedProx",
    "FedSMOO",
    "FedSpeed",
    "Method",
    "MoFedSAM",
    "NaiveFedGloSS",
    "Scaffold",
    "ServerSam",
    "Swa",
    "TailAverage",
    "Wima",
    "build",
    "tail_mean",
]
