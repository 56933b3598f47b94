"""Methods and selectors of one's own by name: ``gcr --plugin FILE run …``.

``GCR_PLUGIN`` names their files, as ``PATH`` does folders; worker processes inherit it. A file is imported as a module
of its own name. Every class in it that is a method or a selector counts.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from gcr.files import sha256
from gcr.memory import POLICIES, Policy
from gcr.methods import METHODS, Method
from gcr.settings import BadInput, Settings

VARIABLE = "GCR_PLUGIN"


def methods() -> tuple[type[Method], ...]:
    """All that have names, one's own last."""
    return (*METHODS, *(kind for kind in own() if issubclass(kind, Method)))


def policies() -> tuple[type[Any], ...]:
    return (*POLICIES, *(kind for kind in own() if not issubclass(kind, Method)))


def digests(method: Method, memory: Policy | None) -> dict[str, str]:
    """Of the files that method and selector come from, if they are not gcr's: by name."""
    parts = (method, memory and memory.selector)
    files = {Path(inspect.getfile(type(part))) for part in parts if type(part) in own()}
    return {file.name: sha256(file.read_bytes()) for file in sorted(files)}


def own() -> tuple[type[Any], ...]:
    return _classes(os.environ.get(VARIABLE, ""))


@cache
def _classes(files: str) -> tuple[type[Any], ...]:
    found: list[type[Any]] = []
    taken = {kind.name for kind in (*METHODS, *POLICIES)}
    for file in filter(None, files.split(os.pathsep)):
        module = _module(Path(file))
        here = [kind for kind in vars(module).values() if _counts(kind, module)]
        if not here:
            raise BadInput(f"{file} must have a Method or a selector, a frozen dataclass; see CONTRIBUTING.md")
        for kind in here:
            name = kind.__dict__.get("name")
            if not isinstance(name, str) or not isinstance(getattr(kind, "summary", None), str):
                raise BadInput(f"{kind.__name__} in {file} must have a name and a summary of its own, as ClassVar[str]")
            if name in taken:
                raise BadInput(f'name of {kind.__name__} in {file} must be new, got "{name}", which there is already')
            taken.add(name)
            found.append(kind)
    return tuple(found)


def _counts(kind: object, module: ModuleType) -> bool:
    if not inspect.isclass(kind) or kind.__module__ != module.__name__:
        return False
    return issubclass(kind, Method) or (issubclass(kind, Settings) and hasattr(kind, "needs"))


def _module(file: Path) -> ModuleType:
    """Importable by its name in other processes too, which get this one's ``sys.path``."""
    name, file = file.stem, file.absolute()
    if file.suffix != ".py" or not name.isidentifier():
        raise BadInput(f"a plugin must be a Python file whose name is an identifier, got {file.name}; rename it")
    if not file.is_file():
        raise BadInput(f"plugin {file} does not exist; name a Python file with --plugin or {VARIABLE}")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    there = importlib.util.find_spec(name)
    if there is None or there.origin is None or Path(there.origin) != file:
        raise BadInput(f"a plugin must not have the name of another module, got {file.name}; rename it")
    try:
        return importlib.import_module(name)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{file} cannot be imported ({type(error).__name__}: {error})") from error
