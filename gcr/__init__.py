"""gcr: continual learning with replay memory chosen by gradient coresets.

Selection on its own: ``gcr.select_coreset``, ``gcr.LastLayerGradients``, ``gcr.collect``, ``gcr.explain``. GCR
as this package trains it: ``gcr.GCR``. One's own data and training loop: ``gcr.from_arrays``, ``gcr.Buffer``. Any
network that is to predict: ``gcr.recompute_bn``. Each is imported when it is first used, so that importing the package
costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcr.experiments.variants import GCR as GCR
    from gcr.memory import Buffer as Buffer
    from gcr.models import recompute_bn as recompute_bn
    from gcr.scenarios import from_arrays as from_arrays
    from gcr.select import Coreset as Coreset
    from gcr.select import LastLayerGradients as LastLayerGradients
    from gcr.select import Pool as Pool
    from gcr.select import explain as explain
    from gcr.select import select_coreset as select_coreset
    from gcr.select.collect import collect as collect

__version__ = "0.1.0"
__all__ = [
    "GCR",
    "Buffer",
    "Coreset",
    "LastLayerGradients",
    "Pool",
    "collect",
    "explain",
    "from_arrays",
    "recompute_bn",
    "select_coreset",
]
HOMES = {  # of those that are not in gcr.select
    "Buffer": "gcr.memory",
    "GCR": "gcr.experiments.variants",
    "collect": "gcr.select.collect",
    "from_arrays": "gcr.scenarios",
    "recompute_bn": "gcr.models",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'gcr' has no attribute {name!r}")
    import importlib

    found = getattr(importlib.import_module(HOMES.get(name, "gcr.select")), name)
    globals()[name] = found
    return found
