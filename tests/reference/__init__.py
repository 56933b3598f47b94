"""Plain, slow implementations, written from the papers, to compare the real ones with."""
