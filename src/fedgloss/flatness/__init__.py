"""How flat the models of runs are: the measures of ``analysis`` on what is in a run's folder."""

from .measured_run import RELEASED, Constants, Fidelity, LastRound, MeasuredRun, Model, Split, Terms
from .measuring import (
    Alignment,
    Directions,
    Flatness,
    Measures,
    described_lines,
    line_stem,
    measure_flatness,
    measure_interpolation,
    measure_landscape,
    measure_local_landscapes,
)

__all__ = [
    "RELEASED",
    "Alignment",
    "Constants",
    "Directions",
    "Fidelity",
    "Flatness",
    "LastRound",
    "MeasuredRun",
    "Measures",
    "Model",
    "Split",
    "Terms",
    "described_lines",
    "line_stem",
    "measure_flatness",
    "measure_interpolation",
    "measure_landscape",
    "measure_local_landscapes",
]
