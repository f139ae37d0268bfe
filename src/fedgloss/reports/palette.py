"""Colours that stay apart for colour-blind eyes, on white and on black; strokes tell the rest apart."""

from __future__ import annotations

LIGHT = ("#293de6", "#f06000", "#377a60", "#87107e", "#6b4a0a", "#0099ff", "#222222")
DARK = ("#4f84ff", "#e06227", "#3df58f", "#d6749b", "#f2d41c", "#b5aef6", "#f2f2f2")
"""Of the same hues in both. Found by a search: any two are at least 25 apart in CIELAB for normal eyes and for the
three kinds of colour blindness, and each has a contrast of at least 3 with the page."""

STROKES = ("solid", "dash", "dot", "dashdot", "longdash")


def appearance(index: int) -> tuple[int, str]:
    """Colour number and stroke of the index-th method: five times seven can be told apart."""
    return index % len(LIGHT), STROKES[index // len(LIGHT) % len(STROKES)]
