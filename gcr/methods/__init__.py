"""Learning methods: a file for each loss, the mathematics on a screen."""

from gcr.methods.a_gem import AGem
from gcr.methods.cls_er import ClsEr
from gcr.methods.der import Der, DerPlusPlus
from gcr.methods.er import Bilevel, Er, Gss
from gcr.methods.er_ace import ErAce
from gcr.methods.finetune import Finetune, Joint
from gcr.methods.gcr import Gcr
from gcr.methods.gcr_plus import GcrPlus
from gcr.methods.gdumb import Gdumb
from gcr.methods.gem import Gem
from gcr.methods.icarl import Icarl
from gcr.methods.method import Batch, Extras, Loss, Method, Replay
from gcr.methods.mir import Mir
from gcr.methods.ocs import Ocs

METHODS: tuple[type[Method], ...] = (
    *(Finetune, Er, Gem, AGem, Gss, Icarl, Mir, Der, DerPlusPlus, Gcr, GcrPlus),
    *(Ocs, Bilevel, ErAce, ClsEr, Gdumb, Joint),
)

__all__ = [
    "METHODS",
    "AGem",
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
    "GcrPlus",
    "Gdumb",
    "Gem",
    "Gss",
    "Icarl",
    "Joint",
    "Loss",
    "Method",
    "Mir",
    "Ocs",
    "Replay",
]
