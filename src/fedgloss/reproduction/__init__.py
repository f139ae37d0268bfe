"""Doing the paper's experiments again: which runs its cells need, what is measured on them, what all that takes.

What came out is read and judged by ``reports.reproduction``; the command around both is ``cli.reproducing``.
"""

from .measuring import measure
from .needs import Needs, Rates, counted, forecast_of
from .terms import Terms, Work, finder, work

__all__ = ["Needs", "Rates", "Terms", "Work", "counted", "finder", "forecast_of", "measure", "work"]
