"""A classifier for people who write no code: ``gcr update``, ``gcr predict``, ``gcr inspect``."""
