"""Batched, fixed-shape views of images: draws in, views out."""

from gcr.augment.views import DRAWS, AnyViews, Views

__all__ = ["DRAWS", "AnyViews", "Views"]
