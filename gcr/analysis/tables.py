"""What ``gcr table`` shows: a row per group of runs, mean ± SEM over its seeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gcr.analysis.formats import Entry, Sheet
from gcr.analysis.load import CHOSE, METRICS, PROTOCOLS, Group, metric_of
from gcr.experiments import variants
from gcr.experiments.describe import unusual
from gcr.experiments.experiment import unused_by
from gcr.experiments.names import short_names

SHOWN = ("accuracy", "forgetting")  # unless asked for others
MEMORY = "memory_bytes"  # a column of every table; records have it where asked. It has no protocol
SHARED = ("stream.", "training.", "optimizer.", "model")  # settings that rows of any method are taken to have alike
NUMERICS = "training.precision"  # but for this one
VALIDATION = "stream.validation"
NAMED = ("scenario", "stream.online", "method.name", "selector.name", "memory.buffer", "seed")  # columns of their own
IN_COLUMNS = ("memory.buffer", "stream.online")  # shown by a table's columns and title


def columns(metrics: Sequence[str] = SHOWN) -> list[str]:
    return [
        "method",
        "K",
        "seeds",
        *(f"{PROTOCOLS[protocol]} {METRICS[m]}" for protocol, m in _measures(metrics)),
        "bytes",
        "seconds",
    ]


def table(groups: list[Group], metrics: Sequence[str] = SHOWN, always: Sequence[str] = ()) -> list[list[str]]:
    """A row of text per group, under ``columns``: mean ± SEM over seeds. ``always``: settings named in every row."""
    rows = []
    for name, group in zip(row_names(groups, always), groups, strict=True):
        spreads = [group.spread(protocol, metric) for protocol, metric in _measures(metrics)]
        seconds = f"{group.seconds.mean:.1f}" if group.seconds else "–"
        cells = [str(s) if s else "–" for s in spreads]
        held = "–" if group.memory_bytes is None else f"{group.memory_bytes:,}"
        seeds = f"{len(group.seeds)} ({group.diverged} diverged)" if group.diverged else str(len(group.seeds))
        rows.append([name, _buffer(group), seeds, *cells, held, seconds])
    return rows


def sheets(groups: list[Group], metrics: Sequence[str] = SHOWN, always: Sequence[str] = ()) -> list[Sheet]:
    """A table per scenario."""
    return [
        Sheet(
            f"{scenario}: percent, mean ± SEM over seeds",
            columns(metrics),
            [[Entry(text) for text in row] for row in table(members, metrics, always)],
        )
        for scenario, members in by_scenario(groups).items()
    ]


def records(groups: list[Group], metrics: Sequence[str] = SHOWN, seeds: bool = False) -> list[dict[str, object]]:
    """The same for CSV: a line per group, protocol and metric, with numbers in full. For JSON with the list of
    ``seeds``, which CSV counts alone."""
    lines: list[dict[str, object]] = []
    for members in by_scenario(groups).values():
        for name, group in zip(row_names(members), members, strict=True):
            made = group.experiment
            about: dict[str, object] = {
                "scenario": made.scenario,
                "regime": made.stream.regime,
                "method": name,
                "buffer": group.buffer,
            }
            about |= {"seeds": group.seeds} if seeds else {}
            for protocol, metric in _measures(metrics):
                found = group.spread(protocol, metric)
                lines.append(
                    about
                    | {"protocol": PROTOCOLS[protocol].lower(), "metric": metric}
                    | {"mean": found.mean if found else None, "sem": found.sem if found else None}
                    | {"n": len(group.seeds), "diverged": group.diverged}
                )
            if MEMORY in metrics:
                of = {"protocol": None, "metric": MEMORY, "mean": group.memory_bytes, "sem": None}
                lines.append(about | of | {"n": len(group.seeds), "diverged": group.diverged})
    return lines


def seed_records(groups: list[Group], metrics: Sequence[str] = SHOWN) -> list[dict[str, object]]:
    """For CSV and JSON: a line per run, protocol and metric, with every setting that is not the same in all groups."""
    described = [group.experiment.settings for group in groups]
    keys = dict.fromkeys(key for settings in described for key in settings if key not in NAMED)
    varying = [key for key in keys if len({str(settings.get(key)) for settings in described}) > 1]
    lines: list[dict[str, object]] = []
    for group, settings in zip(groups, described, strict=True):
        made = group.experiment
        about = {"scenario": made.scenario, "regime": made.stream.regime, "method": made.label, "buffer": group.buffer}
        about |= {key: settings.get(key) for key in varying}
        for run, seed, result in zip(group.runs, group.seeds, group.results, strict=True):
            one = {"path": str(run.path), "seed": seed} | about
            for protocol, metric in _measures(metrics):
                of = {"protocol": PROTOCOLS[protocol].lower(), "metric": metric}
                lines.append(one | of | {"value": metric_of(result, protocol, metric)})
            if MEMORY in metrics:
                lines.append(one | {"protocol": None, "metric": MEMORY, "value": result.get(MEMORY)})
    return lines


def _measures(metrics: Sequence[str]) -> list[tuple[str, str]]:
    """Protocols and metrics, in the order of columns."""
    return [(protocol, metric) for protocol in PROTOCOLS for metric in metrics if metric != MEMORY]


def by_scenario(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Groups under the name of their scenario; online runs apart."""
    split: dict[str, list[Group]] = {}
    for group in groups:
        split.setdefault(_title(group), []).append(group)
    return split


def row_names(groups: Sequence[Group], always: Sequence[str] = ()) -> list[str]:
    """The label of each group, with what distinguishes it from others of the same label and buffer size; what makes it
    no fair comparison with any other row of its table; and settings of its method that are not at their default, so
    that equal labels mean equal settings in several tables, too."""
    together = by_scenario(groups)
    of_methods = {key for group in groups for key in group.experiment.settings if key.startswith("method.")}
    unlike = {title: _unlike(members) for title, members in together.items()}
    variant = {title: _variant_if_unlike(members) for title, members in together.items()}
    families: dict[tuple[str, str, str], list[int]] = {}
    for number, group in enumerate(groups):
        families.setdefault((_title(group), group.experiment.label, _buffer(group)), []).append(number)
    names = [group.experiment.label for group in groups]
    for (title, _, _), members in families.items():
        apart = unlike[title] | of_methods
        words = distinctions([groups[i] for i in members], [*always, *variant[title]], apart)
        for number, text in zip(members, words, strict=True):
            names[number] += f" ({text})" if text else ""
    return names


def in_all_rows(groups: Sequence[Group]) -> list[str]:
    """For each table, settings of stream, model, training and optimizer that are not at their default, and the same in
    all of its rows, which therefore do not name them."""
    notes = []
    for title, members in by_scenario(groups).items():
        changed = set.intersection(*(unusual(group.experiment) for group in members)) - {*IN_COLUMNS, VALIDATION}
        settings, names = members[0].experiment.settings, short_names(members[0].experiment.settings)
        alike = [
            f"{names[key]}={settings[key]}"
            for key in settings
            if key in changed and key.startswith(SHARED)
            if all(group.experiment.settings[key] == settings[key] for group in members)
        ]
        notes += [f"{title}: all rows with {', '.join(alike)}"] if alike else []
    return notes


def _unlike(groups: Sequence[Group]) -> set[str]:
    """Settings of stream, model, training and optimizer that differ between rows of one table. A method that ignores
    a setting does not differ in it."""
    values: dict[str, set[str]] = {}
    for group in groups:
        ignored = unused_by(type(group.experiment.method))
        for key, value in group.experiment.settings.items():
            if key.startswith(SHARED) and key != NUMERICS and key not in ignored:
                values.setdefault(key, set()).add(str(value))
    return {key for key, found in values.items() if len(found) > 1}


def _variant_if_unlike(groups: Sequence[Group]) -> list[str]:
    """The setting ``variant``, if methods of one table use GCR's selection in different ways."""
    names = [key for key in variants.PAPER if not key.startswith("method.")]
    ways = {
        (group.experiment.label, *map(group.experiment.settings.get, names))
        for group in groups
        if group.experiment.settings.get("selector.name") == "grad-approx"
    }
    labels, details = {way[0] for way in ways}, {way[1:] for way in ways}
    return ["variant"] if len(labels) > 1 and len(details) > 1 else []


def distinctions(groups: Sequence[Group], always: Sequence[str] = (), unlike: Collection[str] = ()) -> list[str]:
    """For each of some groups, what a reader must know of it.

    Values that one tunes (training, optimizer, numbers of the method) are named where groups differ in them; of the
    rest what is not at its default, model and stream again only where groups differ; that seeds chose a setting; the
    folder where all that is the same for two of them. Settings in ``always`` are always named, and that a run is tested
    on validation data. Settings in ``unlike`` may differ from other rows: named where they are not at their default,
    and offline epochs in any case. Where it is shorter, a variant of GCR stands for its settings.
    """
    described = [group.experiment.settings for group in groups]
    keys = {key for settings in described for key in settings}
    varying = {key for key in keys if len({str(settings.get(key)) for settings in described}) > 1}
    texts = [
        ", ".join(filter(None, [_words(group, settings, varying, always, unlike), CHOSE if group.chose else ""]))
        for group, settings in zip(groups, described, strict=True)
    ]
    folders = shortest_distinct([group.folder.parts for group in groups])
    return [
        ", ".join(filter(None, [words, f"folder={folder}"])) if texts.count(words) > 1 else words
        for words, folder in zip(texts, folders, strict=True)
    ]


def _words(
    group: Group,
    settings: Mapping[str, Any],
    varying: Collection[str],
    always: Collection[str],
    unlike: Collection[str],
) -> str:
    """What ``distinctions`` says of one group, but for its folder."""
    changed, names = unusual(group.experiment), short_names(settings)
    asked = {key for key in settings if key not in IN_COLUMNS and (key in always or names[key] in always)}
    shown = {}
    for key, value in settings.items():
        number_of_method = key.startswith("method.") and not isinstance(value, str)
        tuned = number_of_method or key.startswith(("training.", "optimizer."))
        special = key in changed and (key in varying or key.startswith(("method.", "memory.", "selector.")))
        offline_epochs = key == "training.epochs" and not settings["stream.online"]
        apart = key in unlike and (key in changed or offline_epochs)
        on_validation = key == VALIDATION and value > 0
        if key in asked or apart or on_validation or (key in varying if tuned else special):
            shown[key] = value
    words = {names[key]: value for key, value in shown.items() if key not in variants.PAPER}
    points = {key: value for key, value in shown.items() if key in variants.PAPER}
    if group.experiment.has_variants:
        variant, others = variants.nearest(settings, type(group.experiment.method))
        rest = {key: value for key, value in points.items() if key not in asked}
        if "variant" in always or len(others) + 1 < len(rest):
            words["variant"] = variant
            points = others | {key: settings[key] for key in settings if key in asked and key in variants.PAPER}
    words |= {names[key]: value for key, value in points.items()}
    return ", ".join(f"{name}={value}" for name, value in words.items())


def shortest_distinct(paths: Sequence[tuple[str, ...]]) -> list[str]:
    """The last part of each path, or as many as it takes to make them differ."""
    for depth in range(1, max(map(len, paths)) + 2):
        names = ["/".join(parts[-depth:]) or "." for parts in paths]
        if len(set(names)) == len(set(paths)):
            break
    return names


def _title(group: Group) -> str:
    return group.experiment.scenario + (", online" if group.experiment.stream.online else "")


def _buffer(group: Group) -> str:
    return str(group.buffer or "–")
