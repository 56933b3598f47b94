"""Learning methods: one file each, the mathematics on a screen."""

from gcr.methods.a_gem import AGem
from gcr.methods.der import Der, DerPlusPlus
from gcr.methods.er import Er
from gcr.methods.finetune import Finetune
from gcr.methods.gcr import Gcr
from gcr.methods.gem import Gem
from gcr.methods.joint import Joint
from gcr.methods.method import Batch, Extras, Loss, Method
from gcr.methods.mir import Mir

METHODS: tuple[type[Method], ...] = (Finetune, Er, Gem, AGem, Mir, Der, DerPlusPlus, Gcr, Joint)

__all__ = [
    "METHODS",
    "AGem",
    "Batch",
    "Der",
    "DerPlusPlus",
    "Er",
    "Extras",
    "Finetune",
    "Gcr",
    "Gem",
    "Joint",
    "Loss",
    "Method",
    "Mir",
]
