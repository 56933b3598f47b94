"""Data sets on disk: what is known of the official ones, how they are fetched and read, and the cache they become.

NumPy, not torch; Pillow and pyarrow are imported by the formats that need them. Scenarios make tasks of a cached set.
"""

from gcr.data.cache import About, CachedSet, data_root, described, is_cached, is_own_name, open_cached, own_names
from gcr.data.catalog import CATALOG, DataSet, find
from gcr.data.source import stratified

__all__ = [
    "CATALOG",
    "About",
    "CachedSet",
    "DataSet",
    "data_root",
    "described",
    "find",
    "is_cached",
    "is_own_name",
    "open_cached",
    "own_names",
    "stratified",
]
