"""Replay in the loops of other frameworks. Each module imports its framework; none is imported here."""
