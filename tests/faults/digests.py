"""Digests as gcr writes them, computed here once more: what is whole, and odd contents under a right digest."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from pathlib import Path

DIGEST = re.compile(rb'digest\\?": ?\\?"(sha256|crc32):([0-9a-f]+)')
DIGITS = {b"sha256": 64, b"crc32": 8}


def sealed(name: str, content: bytes) -> bytes:
    """``content`` of a file of that name with the digest that its bytes have; as it is where it has none."""
    if name.endswith(".jsonl.gz"):
        return gzip.compress(sealed(name.removesuffix(".gz"), gzip.decompress(content)), mtime=0)
    if name.endswith(".jsonl"):
        return b"".join(sealed("line.json", line) for line in content.splitlines(keepends=True))
    end = 8 + int.from_bytes(content[:8], "little") if name.endswith(".safetensors") else len(content)
    *_, match = (None, *DIGEST.finditer(content, 0, end))
    if match is None or len(match[2]) != DIGITS[match[1]]:
        return content
    empty = content[: match.start(2)] + b"0" * len(match[2]) + content[match.end(2) :]
    digest = f"{zlib.crc32(empty):08x}" if match[1] == b"crc32" else hashlib.sha256(empty).hexdigest()
    return content[: match.start(2)] + digest.encode() + content[match.end(2) :]


def link_state(folder: Path) -> None:
    """Let ``learner.json`` of a state in ``folder`` have the hashes that it and the tensors next to it have."""
    file, tensors = folder / "learner.json", folder / "tensors.safetensors"
    values = json.loads(file.read_bytes())
    content = tensors.read_bytes()
    if isinstance(values.get("tensors"), dict):
        values["tensors"] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    values.pop("sha256", None)
    own = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    file.write_text(json.dumps(values | {"sha256": hashlib.sha256(own).hexdigest()}, indent=1) + "\n")


def check_whole(name: str, content: bytes) -> None:
    """A ValueError or safetensors' own error if a file that a run wrote is not all there, or has no digest."""
    if name.endswith(".safetensors"):
        from safetensors.torch import load

        load(content)
    elif name.endswith(".json"):
        json.loads(content)
    elif name.endswith(".jsonl"):  # a kill may cut its last line, which the next command removes
        content = content[: content.rfind(b"\n") + 1]
        for line in content.splitlines():
            json.loads(line)
    if not has_digest(name, content):
        raise ValueError(f"{name} has no digest")
    if sealed(name, content) != content:
        raise ValueError(f"the digest of {name} is wrong")


def has_digest(name: str, content: bytes) -> bool:
    """All that gcr writes for a later command has one; each line of lines has its own."""
    if name.endswith(".jsonl.gz"):
        return has_digest(name.removesuffix(".gz"), gzip.decompress(content))
    if name.endswith(".jsonl"):
        return all(has_digest("line.json", line) for line in content.splitlines())
    end = 8 + int.from_bytes(content[:8], "little") if name.endswith(".safetensors") else len(content)
    return any(len(match[2]) == DIGITS[match[1]] for match in DIGEST.finditer(content, 0, end))
