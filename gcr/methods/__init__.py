"""Learning methods: one file each, the mathematics on a screen."""

from gcr.methods.bilevel import Bilevel
from gcr.methods.cls_er import ClsEr
from gcr.methods.der import Der, DerPlusPlus
from gcr.methods.er import Er
from gcr.methods.er_ace import ErAce
from gcr.methods.finetune import Finetune
from gcr.methods.gcr import Gcr
from gcr.methods.gss import Gss
from gcr.methods.joint import Joint
from gcr.methods.method import Batch, Extras, Loss, Method

METHODS: tuple[type[Method], ...] = (
    Finetune,
    Er,
    Gss,
    Der,
    DerPlusPlus,
    Gcr,
    Bilevel,
    ErAce,
    ClsEr,
    Joint,
)

__all__ = [
    "METHODS",
    "Batch",
    "Bilevel",
    "ClsEr",
    "Der",
    "DerPlusPlus",
    "Er",
    "ErAce",
    "Extras",
    "Finetune",
    "Gcr",
    "Gss",
    "Joint",
    "Loss",
    "Method",
]
