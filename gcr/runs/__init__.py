"""Runs: trained into folders, on this machine or a cluster."""
