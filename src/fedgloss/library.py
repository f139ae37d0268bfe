"""What ``fedgloss`` offers by name: all a script needs for training."""

from .algorithms import (
    AdaBest,
    Centralised,
    FedAvg,
    FedDyn,
    FedGloSS,
    FedLESAM,
    FedProx,
    FedSMOO,
    FedSpeed,
    MoFedSAM,
    NaiveFedGloSS,
    Scaffold,
    ServerSam,
    Swa,
    Wima,
)
from .data import Federation, Partition
from .errors import Diverged, InvalidInput
from .gradients import Asam, Mixed, Plain, Sam
from .local import LocalTraining
from .sampling import ExactCohort, IndependentCohort
from .schedules import Constant, Cycle, WarmUp
from .server_optimizers import Adaptive, Momentum, Sgd
from .tasks import Problem
from .training import History, train

__all__ = [
    "AdaBest",
    "Adaptive",
    "Asam",
    "Centralised",
    "Constant",
    "Cycle",
    "Diverged",
    "ExactCohort",
    "FedAvg",
    "FedDyn",
    "FedGloSS",
    "FedLESAM",
    "FedProx",
    "FedSMOO",
    "FedSpeed",
    "Federation",
    "History",
    "IndependentCohort",
    "InvalidInput",
    "LocalTraining",
    "Mixed",
    "MoFedSAM",
    "Momentum",
    "NaiveFedGloSS",
    "Partition",
    "Plain",
    "Problem",
    "Sam",
    "Scaffold",
    "ServerSam",
    "Sgd",
    "Swa",
    "WarmUp",
    "Wima",
    "train",
]
