"""Methods, selectors and networks of one's own by name: ``gcr --plugin FILE run …``.

``GCR_PLUGIN`` names their files, as ``PATH`` does folders; worker processes inherit it. A file is imported as a module
of its own name. Every class in it that is a method or a selector counts, and every function or ``nn.Module`` whose
first arguments are ``image_shape`` and ``n_classes``: a network.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from torch import nn

from gcr.files import sha256
from gcr.memory import POLICIES, Policy
from gcr.methods import METHODS, Method
from gcr.models import MODELS
from gcr.settings import BadInput, Settings, unknown

VARIABLE = "GCR_PLUGIN"
NOT_OWN = sys.stdlib_module_names | {"gcr"}  # whatever is in a plugin's folder


class Plugin(NamedTuple):
    kinds: tuple[type[Any], ...]
    networks: tuple[Callable[..., nn.Module], ...]
    digests: dict[str, str]  # of its file, and of those next to it that it imports, when it was imported; by name
    file: Path


def methods() -> tuple[type[Method], ...]:
    """All that have names, one's own last."""
    return (*METHODS, *(kind for kind in own() if issubclass(kind, Method)))


def policies() -> tuple[type[Any], ...]:
    return (*POLICIES, *(kind for kind in own() if not issubclass(kind, Method)))


def networks() -> tuple[Callable[..., nn.Module], ...]:
    return (*MODELS, *(make for plugin in _given() for make in plugin.networks))


def network(name: str) -> Callable[..., nn.Module]:
    for make in networks():
        if make.__name__ == name:
            return make
    raise unknown("model", name, [make.__name__ for make in networks()])


def own() -> tuple[type[Any], ...]:
    return tuple(kind for plugin in _given() for kind in plugin.kinds)


def files() -> set[Path]:
    return {Path(file).resolve() for file in _files()}


def digests(method: Method, memory: Policy | None, network: str) -> dict[str, str]:
    """Of the files that method, selector and network come from, if they are not gcr's."""
    kinds = {type(method), type(memory and memory.selector)}
    found = [
        plugin.digests
        for plugin in _given()
        if not kinds.isdisjoint(plugin.kinds) or network in [make.__name__ for make in plugin.networks]
    ]
    return {name: digest for of_one in found for name, digest in of_one.items()}


def lacking(result: Mapping[str, Any]) -> str:
    """How to name the files that a result's method, selector or network is of; empty: they are there, or it is of
    none."""
    there = {name for plugin in _given() for name in plugin.digests}
    names = sorted(set(result.get("plugins") or ()) - there)
    listed = " --plugin ".join(names)
    return f"name the files of its method, selector or network: gcr --plugin {listed}" if names else ""


def check() -> None:
    """Refuse files that are not there, and make their names absolute. Imports nothing."""
    files = [_existing(Path(file).absolute()) for file in _files()]
    os.environ[VARIABLE] = os.pathsep.join(map(str, files))


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise BadInput(f"plugin {file} does not exist; name a Python file with --plugin or {VARIABLE}")
    return file


def _files() -> list[str]:
    return [file for file in os.environ.get(VARIABLE, "").split(os.pathsep) if file]


def _given() -> tuple[Plugin, ...]:
    return _read(tuple(_files()))


@cache
def _read(files: tuple[str, ...]) -> tuple[Plugin, ...]:
    plugins: list[Plugin] = []
    taken = {kind.name: "" for kind in (*METHODS, *POLICIES)}  # and where, if it is not here
    networks = {make.__name__: "" for make in MODELS}
    for file in map(Path, files):
        whole = _existing(file).resolve()
        if any(_is_copy(whole, plugin) for plugin in plugins):
            continue
        module = _module(whole)
        written = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
        kinds, made = [value for value in written if _counts(value)], [value for value in written if _makes_net(value)]
        if not kinds and not made:
            raise BadInput(
                f"{file} must have a Method or a selector, a frozen dataclass, or a function (image_shape, n_classes) "
                "that makes a network; see CONTRIBUTING.md"
            )
        for kind in kinds:
            name = kind.__dict__.get("name")
            if not isinstance(name, str) or not isinstance(getattr(kind, "summary", None), str):
                raise BadInput(f"{kind.__name__} in {file} must have a name and a summary of its own, as ClassVar[str]")
            if "__dataclass_params__" not in kind.__dict__:  # one that is not frozen cannot inherit from ours
                rule = "must be a frozen dataclass, got a plain class; write @dataclass(frozen=True) above it"
                raise BadInput(f"{kind.__name__} in {file} {rule}")
            if bare := [field.name for field in fields(kind) if "help" not in field.metadata]:
                rule = "must be declared as gcr.settings.setting(default, help), so that runs record it"
                raise BadInput(f"{bare[0]} of {kind.__name__} in {file} {rule}")
            if name in taken:
                rule = f'must be new, got "{name}", which there is already{taken[name]}'
                raise BadInput(f"name of {kind.__name__} in {file} {rule}")
            taken[name] = _also_in(file)
        for make in made:
            if make.__name__ in networks:
                rule = f"must be new, got that of a network which there is already{networks[make.__name__]}"
                raise BadInput(f"name of {make.__name__} in {file} {rule}")
            networks[make.__name__] = _also_in(file)
        plugins.append(Plugin(tuple(kinds), tuple(made), _digests(module), file))
    return tuple(plugins)


def _also_in(file: Path) -> str:
    return f" in {file}; rename one, or leave out one of the files"


def _is_copy(file: Path, plugin: Plugin) -> bool:
    """Whether it has the same bytes, and no other version of a file that it imports lies next to it."""
    for name, digest in plugin.digests.items():
        one = file if name == plugin.file.name else file.parent / name
        if one.is_file() and sha256(one.read_bytes()) != digest:
            return False
    return True


def _counts(kind: object) -> bool:
    if not inspect.isclass(kind):
        return False
    return issubclass(kind, Method) or (issubclass(kind, Settings) and hasattr(kind, "needs"))


def _makes_net(value: object) -> bool:
    if not inspect.isfunction(value) and not (inspect.isclass(value) and issubclass(value, nn.Module)):
        return False
    return [*inspect.signature(value).parameters][:2] == ["image_shape", "n_classes"]


def _module(file: Path) -> ModuleType:
    """Importable by its name in other processes too, which get this one's ``sys.path``."""
    name = file.stem
    if file.suffix != ".py" or not name.isidentifier():
        raise BadInput(f"a plugin must be a Python file whose name is an identifier, got {file.name}; rename it")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    there = importlib.util.find_spec(name)
    if there is None or there.origin is None or Path(there.origin).resolve() != file:
        other = f" (the other is {there.origin})" if there and there.origin else ""
        raise BadInput(f"a plugin must not have the name of another module, got {file.name}; rename it{other}")
    try:
        return importlib.import_module(name)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{file} cannot be imported ({type(error).__name__}: {error})") from error


def _digests(module: ModuleType) -> dict[str, str]:
    file = Path(str(module.__file__)).resolve()
    found: dict[str, str] = {}
    waiting, folder = [file], file.parent
    while waiting:
        one = waiting.pop()
        name = one.relative_to(folder).as_posix()
        if name not in found:
            content = one.read_bytes()
            found[name] = sha256(content)
            waiting += _imported(content, one, folder)
    return dict(sorted(found.items()))


def _imported(content: bytes, file: Path, folder: Path) -> Iterator[Path]:
    """Files in the plugin's folder, and in packages there, that one imports; inside functions, too."""
    with suppress(SyntaxError, ValueError):  # of a file that is imported later, if at all
        for node in ast.walk(ast.parse(content)):
            names, level = [], 0
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                level, whole = node.level, f"{node.module}." if node.module else ""
                names = [f"{whole}{alias.name}" for alias in node.names]
            start = Path(*file.parts[:-level]) if level else folder
            for parts in (name.split(".") for name in names):
                if start.is_relative_to(folder) and (level or _is_own(parts[0], folder)):
                    for length in range(1, len(parts) + 1):
                        path = start.joinpath(*parts[:length])
                        yield from filter(Path.is_file, (path.with_suffix(".py"), path / "__init__.py"))


def _is_own(name: str, folder: Path) -> bool:
    """Whether Python finds that module in the folder: what is installed goes first."""
    if name in NOT_OWN:
        return False
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return True
    return spec is None or spec.origin is None or Path(spec.origin).resolve().is_relative_to(folder)
