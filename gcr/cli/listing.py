"""gcr methods, selectors, scenarios, settings: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from gcr.cli.console import out, print_names


def list_methods() -> None:
    """The learning methods."""
    from gcr.methods import METHODS

    print_names("method", [(m.name, m.summary, "") for m in METHODS])
    out.print("settings of a method: gcr settings METHOD", highlight=False)


def list_selectors() -> None:
    """The ways to choose what memory keeps."""
    from gcr.memory import POLICIES

    print_names("selector", [(s.name, s.summary, "") for s in POLICIES])
    out.print("settings of a selector: gcr settings METHOD --selector SELECTOR", highlight=False)


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
    from gcr.experiments.listing import setting_lines

    shown = setting_lines(scenario, method, selector, advanced=everything)
    print_names("setting", shown, third="default")
    if more := len(setting_lines(scenario, method, selector)) - len(shown):
        out.print(f"{more} more for ablations and special cases: add --all", highlight=False)


LISTS = {
    "methods": list_methods,
    "selectors": list_selectors,
    "scenarios": list_scenarios,
    "settings": list_settings,
}
