"""Odd values in files that are whole: JSON and tensors are changed, and digests and links are made again."""

import gzip
import json
import math
import random
from pathlib import Path
from typing import Any

import torch
from made_runs import link_files
from safetensors.torch import load, save

from gcr.files import json_bytes, parse_json, parse_tensors, sha256, tensor_bytes
from gcr.learner.state_folder import ABOUT, TENSORS, _own_hash
from gcr.runs.folder import RunFolder
from gcr.settings import BadInput

Files = dict[str, bytes]
ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 3, 255, 10**4, 2**31, 2**63, 10**40, 0.5, 1e308, math.nan, math.inf),
    *("", "x", "a" * 5000, "../x", "\x1b[31m", "0", "float32", "cuda", "\ud800"),
    *([], {}, [[]], [1], [-1, -1], ["x"], {"x": 1}),
)
DTYPES = (torch.uint8, torch.int64, torch.float32, torch.float16, torch.bool)


def odd_json(value: Any, rng: random.Random) -> Any:
    """A copy with one or two places changed: another value, none, one of another place, or one more."""
    value = {"": json.loads(json.dumps(value))}
    for _ in range(rng.choice((1, 1, 2))):
        places = [(held, key) for held in _containers(value) for key in _keys(held)]
        held, key = rng.choice(places)
        match rng.randrange(5):
            case 0 | 1:
                held[key] = rng.choice(ODD)
            case 2 if held is not value:
                del held[key]
            case 3:
                held[key] = json.loads(json.dumps(rng.choice([there[name] for there, name in places])))
            case _ if isinstance(held[key], (int, float)):
                held[key] = rng.choice((-held[key], held[key] + 1, held[key] * 1000))
            case _ if isinstance(held, list):
                held.append(held[key])
    return value[""]


def _containers(value: Any) -> list[Any]:
    found = [value] if isinstance(value, (dict, list)) else []
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return found + [one for each in inside for one in _containers(each)]


def _keys(held: Any) -> list[Any]:
    return list(held) if isinstance(held, dict) else list(range(len(held)))


def odd_tensors(tensors: dict[str, torch.Tensor], rng: random.Random) -> dict[str, torch.Tensor]:
    """One is missing, renamed, of another type, shape or size, filled with one number, or another one."""
    changed = dict(tensors)
    for name in rng.sample(sorted(changed), min(len(changed), rng.choice((1, 1, 2)))):
        tensor = changed[name]
        match rng.randrange(7):
            case 0:
                del changed[name]
            case 1:
                changed[rng.choice(("x", f"{name}.x", name[1:], f"0{name}"))] = changed.pop(name)
            case 2:
                changed[name] = tensor.to(rng.choice(DTYPES))
            case 3:
                changed[name] = rng.choice((tensor.flatten(), tensor[None], tensor[..., None], tensor.sum()))
            case 4:
                changed[name] = tensor[: rng.randrange(3)] if tensor.dim() else tensor.repeat(3)
            case 5:
                changed[name] = torch.full_like(tensor, rng.choice((0, 1, 77)))
                if tensor.dtype not in (torch.uint8, torch.bool):
                    bad = (-1, 10**12, math.nan, math.inf) if tensor.is_floating_point() else (-1, -(2**40), 10**12)
                    changed[name] = torch.full_like(tensor, rng.choice(bad))
            case _:
                changed[name] = changed[rng.choice(sorted(changed))].clone()
    return changed


def write_odd(files: Files, names: list[str], folder: Path, rng: random.Random) -> None:
    """Write ``files``, one or two of ``names`` with odd values."""
    targets = set(rng.sample(names, min(len(names), rng.choice((1, 1, 2)))))
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(odd_content(name, content, rng) if name in targets else content)
    for name in files:
        if name.endswith("result.json") and name not in targets:
            try:
                link_files(RunFolder((folder / name).parent))
            except BadInput:
                continue
        if name.endswith(ABOUT):
            _seal_version((folder / name).parent)


def odd_content(name: str, content: bytes, rng: random.Random) -> bytes:
    if name.endswith(TENSORS):
        return save({key: tensor.contiguous() for key, tensor in odd_tensors(load(content), rng).items()})
    if name.endswith(ABOUT):
        values = json.loads(content)
        return json.dumps(values | {"about": odd_json(values["about"], rng)}).encode()
    if name.endswith(".safetensors"):
        about, tensors = parse_tensors(content, name)
        if about and rng.randrange(2):
            about = _as_object(odd_json(about, rng))
        else:
            tensors = odd_tensors(tensors, rng)
        return tensor_bytes(tensors, about)
    if name.endswith(".gz"):
        return gzip.compress(_odd_lines(gzip.decompress(content), rng, packed=True), 1)
    if name.endswith(".jsonl"):
        return _odd_lines(content, rng)
    return json_bytes(_as_object(odd_json(parse_json(content, name), rng)))


def _as_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _odd_lines(content: bytes, rng: random.Random, packed: bool = False) -> bytes:
    lines = [parse_json(line, "") for line in content.splitlines(keepends=True)]
    number = rng.randrange(len(lines))
    lines[number] = _as_object(odd_json(lines[number], rng))
    sealed = [json_bytes(line, indent=None) for line in lines]
    if packed and number:
        sealed[0] = json_bytes(lines[0] | {"sha256": sha256(b"".join(sealed[1:]))}, indent=None)
    return b"".join(sealed)


def _seal_version(folder: Path) -> None:
    """The digests of a state, as they are for what is there."""
    content = (folder / TENSORS).read_bytes()
    values = json.loads((folder / ABOUT).read_bytes())
    values["tensors"] = {"file": TENSORS, "bytes": len(content), "sha256": sha256(content)}
    values.pop("sha256")
    (folder / ABOUT).write_text(json.dumps(values | {"sha256": _own_hash(values)}))
