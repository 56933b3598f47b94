"""gcr: continual learning with replay memory chosen by gradient coresets.

One's own project: ``gcr.Learner``. Experiments: ``gcr.from_arrays``, ``gcr.train``, ``gcr.GCR``, ``gcr.Sgd``,
``gcr.Training``. One's own loop: ``gcr.Buffer``. Selection alone: ``gcr.select_coreset``, ``gcr.LastLayerGradients``,
``gcr.k_centre``, ``gcr.collect``, ``gcr.explain``, ``gcr.CoresetSelector``. A finished run: ``gcr.load_run``; what
``gcr update`` made: ``gcr.load_classifier``. Any network that is to predict: ``gcr.recompute_bn``. Errors of what a
caller gives: ``gcr.BadInput``. Other frameworks: ``gcr.sklearn``, ``gcr.avalanche``, ``gcr.lightning``. Modules of
parts: ``gcr.methods``, ``gcr.select``, ``gcr.memory``, ``gcr.augment``, ``gcr.models``, ``gcr.scenarios``,
``gcr.training``. Each is imported when it is first used, so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcr import augment as augment
    from gcr import memory as memory
    from gcr import methods as methods
    from gcr import models as models
    from gcr import scenarios as scenarios
    from gcr import select as select
    from gcr import training as training
    from gcr.classifier.predict import load_classifier as load_classifier
    from gcr.experiments.variants import GCR as GCR
    from gcr.integrations import avalanche as avalanche
    from gcr.integrations import lightning as lightning
    from gcr.integrations import sklearn as sklearn
    from gcr.integrations.coreset_selector import CoresetSelector as CoresetSelector
    from gcr.learner import Learner as Learner
    from gcr.learner import per_sample as per_sample
    from gcr.memory import Buffer as Buffer
    from gcr.models import recompute_bn as recompute_bn
    from gcr.runs.load import load_run as load_run
    from gcr.scenarios import from_arrays as from_arrays
    from gcr.select import Coreset as Coreset
    from gcr.select import LastLayerGradients as LastLayerGradients
    from gcr.select import Pool as Pool
    from gcr.select import explain as explain
    from gcr.select import select_coreset as select_coreset
    from gcr.select.collect import collect as collect
    from gcr.select.k_centre import k_centre as k_centre
    from gcr.settings import BadInput as BadInput
    from gcr.training import Sgd as Sgd
    from gcr.training import Training as Training
    from gcr.training import train as train

__version__ = "0.2.0"
HOMES = {
    "GCR": "gcr.experiments.variants",
    "BadInput": "gcr.settings",
    "Buffer": "gcr.memory",
    "Coreset": "gcr.select",
    "CoresetSelector": "gcr.integrations.coreset_selector",
    "LastLayerGradients": "gcr.select",
    "Learner": "gcr.learner",
    "Pool": "gcr.select",
    "Sgd": "gcr.training",
    "Training": "gcr.training",
    "collect": "gcr.select.collect",
    "explain": "gcr.select",
    "from_arrays": "gcr.scenarios",
    "k_centre": "gcr.select.k_centre",
    "load_classifier": "gcr.classifier.predict",
    "load_run": "gcr.runs.load",
    "per_sample": "gcr.learner",
    "recompute_bn": "gcr.models",
    "select_coreset": "gcr.select",
    "train": "gcr.training",
}
ROOMS = ("augment", "memory", "methods", "models", "scenarios", "select", "training")
MODULES = ("avalanche", "lightning", "sklearn")  # of gcr.integrations; each needs its framework
__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    if name not in (*HOMES, *ROOMS, *MODULES):
        raise AttributeError(f"module 'gcr' has no attribute {name!r}")
    import importlib

    if name in ROOMS:
        found = importlib.import_module(f"gcr.{name}")
    elif name in MODULES:
        found = importlib.import_module(f"gcr.integrations.{name}")
    else:
        found = getattr(importlib.import_module(HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*{*globals(), *HOMES, *ROOMS}]
