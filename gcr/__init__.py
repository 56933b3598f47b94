"""gcr: continual learning with replay memory chosen by gradient coresets."""

__version__ = "0.1.0"
