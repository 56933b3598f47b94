"""Experiments: their description, their folders, the engine that trains them, tables and report."""
