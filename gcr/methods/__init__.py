"""Learning methods: one file each, the mathematics on a screen."""

from gcr.methods.der import Der, DerPlusPlus
from gcr.methods.er import Er
from gcr.methods.finetune import Finetune
from gcr.methods.gcr import Gcr
from gcr.methods.joint import Joint
from gcr.methods.method import Batch, Extras, Loss, Method

METHODS: tuple[type[Method], ...] = (Finetune, Er, Der, DerPlusPlus, Gcr, Joint)

__all__ = ["METHODS", "Batch", "Der", "DerPlusPlus", "Er", "Extras", "Finetune", "Gcr", "Joint", "Loss", "Method"]
