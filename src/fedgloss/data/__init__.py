"""Data sets, splits and transforms: everything that ends in a ``Federation``."""

from .federation import ArraySamples, Federation, Identity, Partition, Samples, Subset, Transform, sent

__all__ = ["ArraySamples", "Federation", "Identity", "Partition", "Samples", "Subset", "Transform", "sent"]
