"""Local mode: the model the engine serves, converted once per user and checked by hash. Called by `manage.py up`.

Invariant: a directory that `ensure_model` returns holds exactly the bytes that the committed manifest.json
names. The manifest, the tokenizer and the configuration lie in infra/models/, so that the simulated engine
and the gateway need no weights; the weights are made from the GGUF file in the engine environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.local.children import die_with_parent
from controlplane.local.paths import user_cache

MODEL = "smollm2-135m-instruct"
_CONVERSION_DEADLINE_SECONDS = 900
_TELL_SECONDS = 10.0
_DISK_FULL = ("No space left on device", "os error 28", "Disk quota exceeded", "File too large")


class ModelFailed(Exception):
    """The model cannot be used; the text says why and what to do."""


def committed_directory(*, root: Path) -> Path:
    """Tokenizer, chat template, configuration and manifest, without weights."""
    return root / "infra" / "models" / MODEL


def cached_directory(*, root: Path) -> Path:
    """Where the converted model of this manifest lies, made or not."""
    manifest = (committed_directory(root=root) / "manifest.json").read_bytes()
    return user_cache() / "models" / f"{MODEL}-{hashlib.sha256(manifest).hexdigest()[:12]}"


def ensure_model(*, root: Path, python: Path, tell: Callable[[str, float], None]) -> tuple[Path, bool]:
    """The converted model, made now if it is missing or damaged; True when it was made. Raises ModelFailed.

    `python` is the engine environment's: only there are torch and transformers. `tell` hears every ten seconds what
    goes on, and for how many seconds by now.
    """
    committed = committed_directory(root=root)
    directory = cached_directory(root=root)
    if find_damage(directory=directory, committed=committed) is None:
        return directory, False
    with _alone(directory):
        if find_damage(directory=directory, committed=committed) is None:  # another clone made it while we waited
            return directory, False
        for part in directory.parent.glob(f".{directory.name}.*"):  # of a conversion that was killed
            shutil.rmtree(part, ignore_errors=True)
        _convert(root=root, python=python, directory=directory, tell=tell)
        damage = find_damage(directory=directory, committed=committed)
    if damage is not None:
        message = f"the converted model is not the one on record ({damage}); `make lock` may have changed its tools"
        raise ModelFailed(message)
    return directory, True


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Holds the lock of one model, so that two clones do not convert it at once."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / f"{directory.name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def find_damage(*, directory: Path, committed: Path) -> str | None:
    """What is wrong with a converted model, or None. A file is hashed again only when size or time changed."""
    files: dict[str, str] = json.loads((committed / "manifest.json").read_text())["files"]
    record = directory / ".verified.json"
    try:
        seen = json.loads(record.read_text())
    except (FileNotFoundError, ValueError):
        seen = {}
    now: dict[str, list[int | str]] = {}
    for name, digest in files.items():
        path = directory / name
        try:
            status = path.stat()
        except FileNotFoundError:
            return f"{name} is missing"
        now[name] = [status.st_size, status.st_mtime_ns, digest]
        if seen.get(name) != now[name] and sha256_of(path=path) != digest:
            return f"{name} has another hash"
    if seen != now:
        record.write_text(json.dumps(now))
    return None


def _convert(*, root: Path, python: Path, directory: Path, tell: Callable[[str, float], None]) -> None:
    process = subprocess.Popen(  # noqa: S603 - the command is ours
        [str(python), str(root / "infra" / "setup" / "convert_model.py"), str(directory)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONDONTWRITEBYTECODE": ""},
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent(signum=signal.SIGKILL, parent=os.getpid()),
    )
    said = _follow(process, tell=tell)
    if any(sign in said for sign in _DISK_FULL):
        message = f"the model could not be converted, because the disk of {directory.parent} is full: free 1 GB there"
        raise ModelFailed(message)
    if process.returncode != 0:
        raise ModelFailed(f"the model could not be converted:\n{said.strip()[-1500:]}")


def _follow(process: subprocess.Popen[str], *, tell: Callable[[str, float], None]) -> str:
    """What the conversion says until it ends. Raises ModelFailed when it takes too long; it is ended however we are."""
    began = time.monotonic()
    try:
        while time.monotonic() - began < _CONVERSION_DEADLINE_SECONDS:
            try:
                return process.communicate(timeout=_TELL_SECONDS)[1]
            except subprocess.TimeoutExpired:
                tell("the model is being converted", time.monotonic() - began)
    finally:
        process.kill()
        process.wait()
    raise ModelFailed(f"the model was not converted within {_CONVERSION_DEADLINE_SECONDS} s: is the machine very busy?")


def sha256_of(*, path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
