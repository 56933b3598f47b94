"""Experiments as frozen JSON: names to objects, defaults, variants of GCR."""
