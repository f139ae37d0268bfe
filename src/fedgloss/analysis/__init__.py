"""Flatness, measured: Hessian eigenvalues, loss landscapes, interpolation, sharpness, drift.

The first three functions take plain networks and tensors; the others a ``MeanLoss``, which knows more settings.
"""

from .drift import Drift, LocalAgainstGlobal, drift, local_against_global
from .hessian import (
    Eigenvalue,
    Eigenvalues,
    Hessian,
    eigenvalues,
    lanczos,
    over_subsets,
    power_iteration,
    top_eigenvalues,
)
from .interpolation import Interpolation, interpolate, interpolation
from .landscape import Surface, filter_normalised, loss_surface, surface
from .mean_loss import MeanLoss, Subject
from .results import Interrupted, from_json, load, save, to_json
from .sharpness import (
    AverageCase,
    WorstCase,
    alignment,
    average_sharpness,
    repeated_ascent,
    worst_case_sharpness,
)
from .spectrum import SpectralDensity, Trace, spectral_density, trace

__all__ = [
    "AverageCase",
    "Drift",
    "Eigenvalue",
    "Eigenvalues",
    "Hessian",
    "Interpolation",
    "Interrupted",
    "LocalAgainstGlobal",
    "MeanLoss",
    "SpectralDensity",
    "Subject",
    "Surface",
    "Trace",
    "WorstCase",
    "alignment",
    "average_sharpness",
    "drift",
    "eigenvalues",
    "filter_normalised",
    "from_json",
    "interpolate",
    "interpolation",
    "lanczos",
    "load",
    "local_against_global",
    "loss_surface",
    "over_subsets",
    "power_iteration",
    "repeated_ascent",
    "save",
    "spectral_density",
    "surface",
    "to_json",
    "top_eigenvalues",
    "trace",
    "worst_case_sharpness",
]
