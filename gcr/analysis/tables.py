"""What ``gcr table`` shows: a row per group of runs, mean ± SEM over its seeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gcr.analysis.formats import Entry, Sheet
from gcr.analysis.load import METRICS, PROTOCOLS, Group
from gcr.experiments import variants
from gcr.experiments.describe import unusual
from gcr.experiments.names import short_names

SHOWN = ("accuracy", "forgetting")  # unless asked for others
IN_COLUMNS = ("memory.buffer", "stream.online")  # shown by a table's columns and title


def columns(metrics: Sequence[str] = SHOWN) -> list[str]:
    return [
        "method",
        "K",
        "seeds",
        *(f"{protocol} {METRICS[m]}" for protocol in PROTOCOLS.values() for m in metrics),
        "seconds",
    ]


def table(groups: list[Group], metrics: Sequence[str] = SHOWN, always: Sequence[str] = ()) -> list[list[str]]:
    """A row of text per group, under ``columns``: mean ± SEM over seeds. ``always``: settings named in every row."""
    rows = []
    for name, group in zip(row_names(groups, always), groups, strict=True):
        spreads = [group.spread(protocol, metric) for protocol in PROTOCOLS for metric in metrics]
        seconds = f"{group.seconds.mean:.1f}" if group.seconds else "–"
        cells = [str(s) if s else "–" for s in spreads]
        seeds = f"{len(group.seeds)} ({group.diverged} diverged)" if group.diverged else str(len(group.seeds))
        rows.append([name, _buffer(group), seeds, *cells, seconds])
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


def records(groups: list[Group], metrics: Sequence[str] = SHOWN) -> list[dict[str, object]]:
    """The same for CSV: a line per group, protocol and metric, with numbers in full."""
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
            for protocol, metric in ((v, m) for v in PROTOCOLS for m in metrics):
                found = group.spread(protocol, metric)
                lines.append(
                    about
                    | {"protocol": PROTOCOLS[protocol].lower(), "metric": metric}
                    | {"mean": found.mean if found else None, "sem": found.sem if found else None}
                    | {"n": len(group.seeds)}
                )
    return lines


def by_scenario(groups: list[Group]) -> dict[str, list[Group]]:
    """Groups under the name of their scenario; online runs apart."""
    split: dict[str, list[Group]] = {}
    for group in groups:
        online = ", online" if group.experiment.stream.online else ""
        split.setdefault(group.experiment.scenario + online, []).append(group)
    return split


def row_names(groups: list[Group], always: Sequence[str] = ()) -> list[str]:
    """The label of each group, with what distinguishes it from others of the same label and buffer size; and its epochs
    where offline groups differ in them, since that would not be a fair comparison."""
    epochs = {group.experiment.training.epochs for group in groups if not group.experiment.stream.online}
    always = [*always, *(["epochs"] if len(epochs) > 1 else [])]
    families: dict[tuple[str, str, str], list[int]] = {}
    for number, group in enumerate(groups):
        families.setdefault((group.experiment.scenario, group.experiment.label, _buffer(group)), []).append(number)
    names = [group.experiment.label for group in groups]
    for members in families.values():
        for number, words in zip(members, distinctions([groups[i] for i in members], always), strict=True):
            names[number] += f" ({words})" if words else ""
    return names


def distinctions(groups: Sequence[Group], always: Sequence[str] = ()) -> list[str]:
    """For each of some groups, what a reader must know of it.

    Values that one tunes (training, optimizer, numbers of the method) are named where groups differ in them; of the
    rest what is not at its default, model and stream again only where groups differ; the folder where all that is the
    same for two of them. Settings in ``always`` are always named. Where it is shorter, a variant of GCR stands for its
    settings.
    """
    described = [group.experiment.settings for group in groups]
    keys = {key for settings in described for key in settings}
    varying = {key for key in keys if len({str(settings.get(key)) for settings in described}) > 1}
    texts = [_words(group, settings, varying, always) for group, settings in zip(groups, described, strict=True)]
    folders = _shortest_distinct([group.folder.parts for group in groups])
    return [
        ", ".join(filter(None, [words, f"folder={folder}"])) if texts.count(words) > 1 else words
        for words, folder in zip(texts, folders, strict=True)
    ]


def _words(group: Group, settings: Mapping[str, Any], varying: Collection[str], always: Collection[str]) -> str:
    """What ``distinctions`` says of one group, but for its folder."""
    changed, names = unusual(group.experiment), short_names(settings)
    asked = {key for key in settings if key not in IN_COLUMNS and (key in always or names[key] in always)}
    shown = {}
    for key, value in settings.items():
        number_of_method = key.startswith("method.") and not isinstance(value, str)
        tuned = number_of_method or key.startswith(("training.", "optimizer."))
        special = key in changed and (key in varying or key.startswith(("method.", "memory.", "selector.")))
        if key in asked or (key in varying if tuned else special):
            shown[key] = value
    words = {names[key]: value for key, value in shown.items() if key not in variants.PAPER}
    points = {key: value for key, value in shown.items() if key in variants.PAPER}
    if group.experiment.has_variants:
        variant, others = variants.nearest(settings)
        rest = {key: value for key, value in points.items() if key not in asked}
        if "variant" in always or len(others) + 1 < len(rest):
            words["variant"] = variant
            points = others | {key: settings[key] for key in settings if key in asked and key in variants.PAPER}
    words |= {names[key]: value for key, value in points.items()}
    return ", ".join(f"{name}={value}" for name, value in words.items())


def _shortest_distinct(paths: Sequence[tuple[str, ...]]) -> list[str]:
    """The last part of each path, or as many as it takes to make them differ."""
    for depth in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(names)) == len(set(paths)):
            break
    return names


def _buffer(group: Group) -> str:
    return str(group.buffer or "–")
