"""Learning methods: one file each, the mathematics on a screen."""

from gcr.methods.der import Der, DerPlusPlus
from gcr.methods.er import Er
from gcr.methods.finetune import Finetune
from gcr.methods.gcr import Gcr
from gcr.methods.gdumb import Gdumb
from gcr.methods.icarl import Icarl
from gcr.methods.joint import Joint
from gcr.methods.method import Batch, Extras, Loss, Method
from gcr.methods.ocs import Ocs

METHODS: tuple[type[Method], ...] = (Finetune, Er, Icarl, Der, DerPlusPlus, Gcr, Ocs, Gdumb, Joint)

__all__ = [
    "METHODS",
    "Batch",
    "Der",
    "DerPlusPlus",
    "Er",
    "Extras",
    "Finetune",
    "Gcr",
    "Gdumb",
    "Icarl",
    "Joint",
    "Loss",
    "Method",
    "Ocs",
]
