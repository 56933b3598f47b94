"""The report: one HTML page that needs nothing but itself. All of it is there without its script, which sorts, filters
and, on a live page, looks for news. A content security policy keeps the browser from running or fetching anything else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from gcr.analysis.load import Group, Unreadable
from gcr.files import write_whole
from gcr.report.against_paper import HeadlineTable, against_paper
from gcr.report.cells import Facets
from gcr.report.charts import HEIGHT, SQUARE, WIDTH
from gcr.report.gallery import galleries
from gcr.report.sections import overview, sections, show
from gcr.report.unfinished import Unfinished, unfinished_table
from gcr.settings import BadInput

TITLE = "Continual learning runs"
NAMED = 20  # results that cannot be read which are named
FEW = 6  # groups whose heat maps are open from the start


def write_report(
    groups: list[Group],
    path: Path,
    title: str = TITLE,
    unreadable: Sequence[Unreadable] = (),
    first: HeadlineTable | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Write the page for ``groups`` to ``path`` and return it. ``first`` is a table that these runs were made for."""
    page = render(groups, title, unreadable, first=first, notes=notes)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, page.encode())
    except OSError as error:
        raise BadInput(f"cannot write {path} ({error.strerror}); choose another file") from None
    return path


def render(
    groups: Sequence[Group],
    title: str = TITLE,
    unreadable: Sequence[Unreadable] = (),
    unfinished: Sequence[Unfinished] = (),
    version: str = "",
    n_trials: int = 0,
    first: HeadlineTable | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The page as text. With a ``version`` it is live: it asks its server for a newer one. ``n_trials`` of searches are
    finished that are not among ``groups``. ``notes`` say what to know before rows are compared."""
    facets = Facets()
    shown = show(groups, facets)
    versus_paper = against_paper(groups, facets, first)
    return str(
        _template().render(
            title=title,
            policy=policy(scripts=True, live=bool(version)),
            style=style(),
            script=_read("page.js"),
            version=version,
            made_at=time.strftime("%Y-%m-%d %H:%M:%S"),
            n_runs=sum(len(group.seeds) for group in groups),
            n_trials=n_trials,
            first=first,
            first_tables=first.tables(facets) if first else [],
            overview=overview(shown, first.serves if first else None) if shown else None,
            sections=sections(shown, galleries(shown)),
            versus_paper=versus_paper,
            unfinished=unfinished_table(unfinished, facets) if unfinished else None,
            n_running=sum(run.locked for run in unfinished),
            n_failed=sum(run.failed for run in unfinished),
            unreadable=[str(bad) for bad in unreadable[:NAMED]],
            n_unreadable=len(unreadable),
            notes=notes,
            made_with=sorted({_made_with(result) for group in groups for result in group.results}),
            facets=_json(facets.data()),
            few=FEW,
            size={"width": WIDTH, "height": HEIGHT, "square": SQUARE},
        )
    )


def policy(scripts: bool, live: bool = False) -> str:
    """What a browser may do with a page: show its own style and pictures, run the one script, ask for its version."""
    allowed = {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": _hash(style()),
        "script-src": _hash(_read("page.js")) if scripts else "'none'",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def style() -> str:
    """With a class for every percent of a heat map: the policy admits no styles of single elements."""
    return _read("page.css") + "".join(f".v{percent}{{--v:{percent / 100}}}" for percent in range(101))


def needs_of_report() -> set[str]:
    """Libraries that only the report needs."""
    return {"jinja2", "PIL"}


@cache
def _template() -> Any:
    try:
        from jinja2 import Environment, PackageLoader
    except ImportError:
        raise BadInput("the report needs jinja2 and pillow: pip install jinja2 pillow") from None
    environment = Environment(
        loader=PackageLoader("gcr.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html")


@cache
def _read(name: str) -> str:
    return resources.files("gcr.report").joinpath(name).read_text(encoding="utf-8")


def _json(data: Any) -> str:
    """JSON that cannot end the element it stands in.

    >>> _json(["</script>"])
    '["\\\\u003c/script\\\\u003e"]'
    """
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _made_with(result: dict[str, Any]) -> str:
    versions = " · ".join(f"{name} {version}" for name, version in result["versions"].items())
    return f"{versions} · {result['device']}" if versions else str(result["device"])
