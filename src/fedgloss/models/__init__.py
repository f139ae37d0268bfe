"""Networks: the paper's, two for quick work, and any of the user's own."""

from .registry import MODELS, Model, build
from .weights import WeightsReport, load_weights

__all__ = ["MODELS", "Model", "WeightsReport", "build", "load_weights"]
