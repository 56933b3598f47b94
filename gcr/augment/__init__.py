"""Batched, fixed-shape views of images: draws in, views out."""

from gcr.augment.views import DRAWS, Views

__all__ = ["DRAWS", "Views"]
