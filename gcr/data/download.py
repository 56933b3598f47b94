"""Fetching a file: with progress, resumed where it broke off, and kept only if its published checksum is right."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path

from gcr.data.writing import Progress, no_progress
from gcr.settings import BadInput

ATTEMPTS = 4  # a transfer that breaks is taken up again this often
TIMEOUT_SECONDS = 60
BLOCK = 2**18
MOST_BYTES = 2**40


def fetch(
    url: str,
    md5: str,
    target: Path,
    progress: Progress = no_progress,
    elsewhere: str = "gcr data import NAME PATH",
    most: int = MOST_BYTES,
) -> None:
    """Download ``url`` to ``target``. What an interrupted call left in ``<target>.part`` is not fetched again.

    ``elsewhere`` is the command that takes a copy from elsewhere, for messages. A server that sends more than ``most``
    bytes sends something else.
    """
    if not url.startswith(("http://", "https://")):
        raise BadInput(f'an address to download from must begin with http:// or https://, got "{url}"')
    if target.exists() and file_md5(target) == md5:
        return
    part = target.with_name(target.name + ".part")
    for attempt in range(ATTEMPTS):
        before = part.stat().st_size if part.exists() else 0
        try:
            _transfer(url, part, progress, elsewhere, most)
            break
        except _Broken as broken:
            moved = part.exists() and part.stat().st_size > before
            if attempt + 1 == ATTEMPTS or not moved:
                raise BadInput(f"{url}: {broken}; {_remedy(part)}, or import a copy with: {elsewhere}") from None
    if (found := file_md5(part)) != md5:
        part.unlink()
        raise BadInput(
            f"{url}: the file's MD5 is {found}, but {md5} is published; it was removed. Run the command again, or "
            f"import a copy from elsewhere with: {elsewhere}"
        )
    part.replace(target)


def _remedy(part: Path) -> str:
    """After a transfer that stopped: it may not have begun, and then leaves nothing."""
    if part.exists() and part.stat().st_size:
        return "the same command goes on where this one stopped"
    part.unlink(missing_ok=True)
    return "run the command again later"


class _Broken(Exception):
    """The transfer stopped on the way."""


def _transfer(url: str, part: Path, progress: Progress, elsewhere: str, most: int) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "gcr", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing left to fetch: the checksum shows whether it is complete
            return
        if error.code >= 500:
            raise _Broken(f"the server answers {error.code} {error.reason}") from None
        raise BadInput(
            f"{url}: the server answers {error.code} {error.reason}; import a copy from elsewhere with: {elsewhere}"
        ) from None
    except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise _Broken(f"cannot be reached ({getattr(reason, 'strerror', None) or reason})") from None
    with answer:
        resumed = answer.status == 206 and _range_start(answer.headers.get("Content-Range", "")) == have
        if not resumed:  # a server that knows no ranges sends all of it
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else 0
        _save(answer, part, have, total, progress, most)


def _save(answer: http.client.HTTPResponse, part: Path, have: int, total: int, progress: Progress, most: int) -> None:
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "ab" if have else "wb") as file:
            while block := _next_block(answer, have):
                file.write(block)
                have += len(block)
                if have > most:
                    part.unlink()
                    raise BadInput(f"the server sends more than {most} bytes for {part.stem}; it was removed")
                progress(part.name.removesuffix(".part"), have, total)
    except OSError as error:
        raise BadInput(f"cannot write {part} ({error.strerror or error}); set GCR_DATA to another folder") from None
    if total and have < total:
        raise _Broken(f"the connection broke after {have} of {total} bytes")


def _next_block(answer: http.client.HTTPResponse, have: int) -> bytes:
    try:
        return answer.read(BLOCK)
    except (http.client.HTTPException, OSError) as error:
        raise _Broken(f"the connection broke after {have} bytes ({type(error).__name__})") from None


def _range_start(header: str) -> int:
    """
    >>> _range_start("bytes 100-199/200")
    100
    """
    start = header.removeprefix("bytes ").split("-")[0]
    return int(start) if start.isdigit() else -1


def file_md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(2**22):
            digest.update(block)
    return digest.hexdigest()
