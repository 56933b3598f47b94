"""What ``gcr settings`` shows: the settings of a method, with help and defaults."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gcr.experiments.experiment import Experiment, compose, unused_by
from gcr.experiments.variants import VARIANTS, in_words
from gcr.models import MODELS
from gcr.settings import setting_names


def setting_lines(
    scenario: str, method: str, selector: str | None = None, advanced: bool = True
) -> list[tuple[str, str, str]]:
    """Dotted name, help and default of every setting that ``compose`` takes, and the default online where it differs.
    Without ``advanced``: those that users change most."""
    experiment = compose(scenario, method, selector=selector)
    online = compose(scenario, method, selector=selector, overrides={"online": True})
    lines = [("model", f"one of {', '.join(make.__name__ for make in MODELS)}", experiment.model)]
    if experiment.has_variants:
        text = f"all details in which the GCR paper and its released code differ: {' or '.join(VARIANTS)}"
        lines.append(("variant", text, _default(*(in_words(e.settings) for e in (experiment, online)))))
    parts, streamed = _parts(experiment), _parts(online)
    for owner, part in parts.items():
        for declared in fields(part):
            key, name = f"{owner}.{declared.name}", declared.name
            if name not in setting_names(type(part)) or key in unused_by(type(experiment.method)):
                continue
            if advanced or not declared.metadata["advanced"]:
                both = getattr(part, name), getattr(streamed[owner], name)
                default = str(both[0]).lower() if key == "stream.online" else _default(*both)
                lines.append((key, declared.metadata["help"], default))
    return lines


def _default(usual: Any, online: Any) -> str:
    return str(usual) if usual == online else f"{usual}; online {online}"


def _parts(experiment: Experiment) -> dict[str, Any]:
    memory = experiment.memory
    parts: dict[str, Any] = {"method": experiment.method}
    parts |= {"memory": memory, "selector": memory.selector} if memory else {}
    return parts | {"optimizer": experiment.optimizer, "training": experiment.training, "stream": experiment.stream}
