"""The paper as data: its tables, chosen values and grids; and which runs may be compared with them."""

from gcr.paper.match_runs import departures, experiment
from gcr.paper.tables import (
    SEEDS,
    Cell,
    Chosen,
    Label,
    Place,
    Table,
    cells,
    chosen,
    find,
    grid,
    label,
    labels,
    printed_scenario,
    reproducible,
    table,
    tables,
)

__all__ = [
    "SEEDS",
    "Cell",
    "Chosen",
    "Label",
    "Place",
    "Table",
    "cells",
    "chosen",
    "departures",
    "experiment",
    "find",
    "grid",
    "label",
    "labels",
    "printed_scenario",
    "reproducible",
    "table",
    "tables",
]
