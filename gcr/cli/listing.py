"""gcr methods, selectors, scenarios, settings: what there is to choose from."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from gcr.cli.console import out, print_names


def described(listed: str, *rooms: str) -> list[tuple[str, str, str]]:
    """Name and summary of every class in the tuple ``listed`` of some rooms, read from their source: to import a
    method is to import torch, which takes seconds."""
    tuples: dict[str, ast.expr] = {}
    about: dict[str, dict[str, str]] = {}
    for room in rooms:
        for file in Path(__file__).parents[1].joinpath(room).glob("*.py"):
            for node in ast.parse(file.read_bytes()).body:
                if isinstance(node, ast.ClassDef):
                    values = dict(each for line in node.body for each in _assigned(line))
                    about[node.name] = {key: str(v.value) for key, v in values.items() if isinstance(v, ast.Constant)}
                else:
                    tuples |= _assigned(node)

    def classes(node: ast.AST) -> Iterator[str]:
        """In their order; one tuple may name another."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name):
                yield from classes(tuples[child.id]) if child.id in tuples else [child.id]
            else:
                yield from classes(child)

    return [(about[each]["name"], about[each]["summary"], "") for each in classes(tuples[listed]) if each in about]


def _assigned(node: ast.stmt) -> list[tuple[str, ast.expr]]:
    """Name and value, of a line that gives a name a value."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return [(target.id, value) for target in targets if isinstance(target, ast.Name) and value is not None]


def _own(kinds: str) -> list[tuple[str, str, str]]:
    """Of plugins, which are imported to be read."""
    if not os.environ.get("GCR_PLUGIN"):
        return []
    from gcr.experiments import plugins

    own = plugins.own()
    return [(kind.name, kind.summary, "") for kind in getattr(plugins, kinds)() if kind in own]


def list_methods() -> None:
    """The learning methods."""
    print_names("method", described("METHODS", "methods") + _own("methods"))
    out.say("settings of a method: gcr settings METHOD")


def list_selectors() -> None:
    """The ways to choose what memory keeps."""
    print_names("selector", described("POLICIES", "memory", "select") + _own("policies"))
    out.say("settings of a selector: gcr settings METHOD --selector SELECTOR")


def list_scenarios() -> None:
    """The sequences of tasks."""
    from gcr.scenarios import entries

    print_names("scenario", [(s.name, s.summary, "") for s in entries()])


def list_settings(
    method: Annotated[str, typer.Argument(help="See `gcr methods`.")] = "gcr",
    selector: Annotated[str | None, typer.Option("--selector", help="See `gcr selectors`.")] = None,
    scenario: Annotated[str, typer.Option("--scenario", help="Some defaults are the scenario's.")] = "seq-digits",
    everything: Annotated[bool, typer.Option("--all", help="Those for ablations and special cases too.")] = False,
) -> None:
    """What `--set` takes for a method, with defaults and a line each. The part after the dot is enough.

    Examples:

    `gcr settings gcr`

    `gcr settings er --selector grad-approx --all`
    """
    from gcr.experiments.describe import setting_lines

    shown = setting_lines(scenario, method, selector, advanced=everything)
    print_names("setting", shown, third="default")
    if more := len(setting_lines(scenario, method, selector)) - len(shown):
        out.say(f"{more} more for ablations and special cases: add --all")


LISTS = {
    "methods": list_methods,
    "selectors": list_selectors,
    "scenarios": list_scenarios,
    "settings": list_settings,
}
