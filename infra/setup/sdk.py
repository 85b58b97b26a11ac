"""Makes what the compatibility tests need beside the control plane: another Python SDK, Node, the JavaScript SDK.

Called by tests/e2e. All lie in the user's cache, named by the hash of their lock files, so that they are made once.
Node comes from a wheel, so that nothing need be installed. Invariant: as in `bootstrap`, the stamp is written last.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from infra.setup.bootstrap import REQUIREMENTS, ROOT, STAMP, Environment, SetupFailed, ensure, user_cache

JAVASCRIPT = ROOT / "tests" / "e2e" / "javascript"
_MANIFESTS = ("package.json", "package-lock.json")
_INSTALL_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Programs to run client scripts with."""

    python: Path  # an environment with the SDK of requirements/sdk3.txt
    node: Path
    node_modules: Path


def ensure_clients() -> Clients:
    """Everything, made if it is not there. Raises SetupFailed with a sentence that says what to do."""
    lock = REQUIREMENTS / "sdk3.txt"
    environment = Environment("client SDKs", lock, user_cache() / f"sdk3-{_digest(lock)}", 1024**3 // 2)
    ensure(environment)
    binaries = environment.directory / "bin"
    return Clients(
        python=environment.python,
        node=binaries / "node",
        node_modules=_ensure_node_modules(binaries) / "node_modules",
    )


def _ensure_node_modules(binaries: Path) -> Path:
    lock = JAVASCRIPT / "package-lock.json"
    place = user_cache() / f"sdk-javascript-{_digest(lock)}"
    stamp = place / STAMP
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not stamp.exists():
            for name in _MANIFESTS:
                shutil.copyfile(JAVASCRIPT / name, place / name)
            _npm_ci(binaries, place)
            stamp.write_text(_digest(lock))
    return place


def _npm_ci(binaries: Path, place: Path) -> None:
    """Installs exactly what the lock names, by integrity, and runs no script of a package."""
    environment = {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = [str(binaries / "npm"), "ci", "--omit=peer", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        done = subprocess.run(
            command,
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SetupFailed(f"npm did not finish within {_INSTALL_SECONDS} s: check its registry setting") from error
    if done.returncode != 0:
        raise SetupFailed(f"npm could not install the JavaScript SDK:\n{(done.stderr + done.stdout)[-1500:]}")


def _digest(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
