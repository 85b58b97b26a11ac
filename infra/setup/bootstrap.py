"""Makes the two environments of Weir with nothing but Python 3.11: `bootstrap.py [control] [engine]`.

Called by the Makefile before anything is installed, and by `manage.py up` for the engine, so it imports the
standard library only. `control` is `.venv` in the clone; `engine` (vLLM) lies in the user's cache, named by the
hash of its lock, so that a second clone finds it made. Invariant: an environment counts as made only when its
stamp holds the hash of the lock it was made from; the stamp is written last, so a killed run is made again.

uv installs them (from lock files with hashes that name no registry). uv reads none of pip's settings, so those
that say where packages come from and whom to trust are handed over.
"""

from __future__ import annotations

import signal

# A Ctrl-C while the imports below run ends us without a traceback; nothing is begun yet.
signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import ctypes
import errno
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
STAMP = "weir-lock"
GIB = 1024**3
CPUINFO = Path("/proc/cpuinfo")
_PR_SET_PDEATHSIG = 1
# The separator of PYTHONPATH, what PostgreSQL's initdb hands to a shell, and what no file of settings can hold.
_PATH_REFUSED = ':"$`\\\n\r'


class SetupFailed(Exception):
    """One sentence for the person at the terminal: what is wrong and what to do."""


@dataclass(frozen=True)
class Environment:
    """One virtual environment: its lock file, its place, and the disk it needs."""

    title: str
    lock: Path
    directory: Path
    disk_bytes: int

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def key(self) -> str:
        """What the environment is made from: the lock, this Python, this kind of machine."""
        parts = (self.lock.read_bytes(), platform.python_version().encode(), platform.machine().encode())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()

    def is_made(self) -> bool:
        stamp = self.directory / STAMP
        return self.python.exists() and stamp.exists() and stamp.read_text() == self.key


def user_cache() -> Path:
    """What all clones of one user share."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "weir"
    except RuntimeError as error:  # neither HOME nor an entry in the list of users
        message = "this user has no home directory: set XDG_CACHE_HOME to a folder for what is kept between runs"
        raise SetupFailed(message) from error


def control_environment() -> Environment:
    """The control plane's: Django, stores, tests."""
    return Environment("control plane", REQUIREMENTS / "control.txt", ROOT / ".venv", 3 * GIB)


def engine_environment() -> Environment:
    """The engine's: vLLM and its torch, shared by all clones with the same lock."""
    lock = REQUIREMENTS / "engine.txt"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    return Environment("engine (vLLM)", lock, user_cache() / f"engine-{digest}", 5 * GIB)


def ensure(environment: Environment) -> None:
    """Makes the environment unless it is made. Raises SetupFailed."""
    if environment.is_made():
        return
    user_cache().mkdir(parents=True, exist_ok=True)
    with _alone(environment):
        if environment.is_made():  # another clone made it while we waited
            return
        check_disk(environment)
        uv = _ensure_uv()
        with _step(f"{environment.title}: {_count(environment.lock)} packages") as done:
            _install(uv, environment)
            done(_size(environment.directory))
        (environment.directory / STAMP).write_text(environment.key)


def check_path(root: Path) -> None:
    """Raises SetupFailed for a clone whose path Python's search path or PostgreSQL's programs cannot take."""
    if any(sign in str(root) for sign in _PATH_REFUSED):
        message = (
            f'the path {str(root)!r} holds one of : " $ ` \\ or a line break: move the clone to a path without them'
        )
        raise SetupFailed(message)


def check_engine_machine(*, cpuinfo: Path = CPUINFO) -> None:
    """Raises SetupFailed where the engine's build cannot run."""
    simulated = "run `ENGINE=simulated make up` for all but the model, or set ENGINE_URL to a server elsewhere"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        message = (
            f"the engine's build is for Linux on x86_64, this is {sys.platform} on {platform.machine()}; {simulated}"
        )
        raise SetupFailed(message)
    if "avx2" not in cpuinfo.read_text().split():  # the build brings kernels for AVX2, AVX-512 and AVX-512 with bf16
        message = f"this processor has no AVX2, without which the engine's CPU build does not run; {simulated}"
        raise SetupFailed(message)


def _ensure_uv() -> Path:
    lock = REQUIREMENTS / "uv.txt"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    place = user_cache() / f"uv-{digest}"
    uv = place / "bin" / "uv"
    if (place / STAMP).exists() and uv.exists():
        return uv
    with _step("uv, the installer") as done:
        run([sys.executable, "-m", "venv", "--clear", str(place)], log="uv")
        run(
            [
                *(str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"),
                *("--require-hashes", "--disable-pip-version-check", "-r", str(lock)),
            ],
            log="uv",
        )
        done(_size(place))
    (place / STAMP).write_text(digest)
    return uv


def _install(uv: Path, environment: Environment) -> None:
    settings = uv_settings(pip=_read_pip_settings(), environ=os.environ)
    env = {**os.environ, **settings, "UV_PYTHON_DOWNLOADS": "never", "VIRTUAL_ENV": str(environment.directory)}
    if not environment.python.exists():
        shutil.rmtree(environment.directory, ignore_errors=True)
        run([str(uv), "venv", "--python", sys.executable, str(environment.directory)], log="venv", env=env)
    sync = [str(uv), "pip", "sync", "--require-hashes", "--python", str(environment.python), str(environment.lock)]
    if _needs_torch_index(environment.lock, settings.get("UV_FIND_LINKS", "")):
        sync += ["--torch-backend", "cpu"]
    try:
        run(sync, log="install", env=env)
    except NoNetwork:
        # Everything may be in uv's cache from another clone: then no network is needed at all.
        try:
            run([*sync, "--offline"], log="install", env=env)
        except NoNetwork as offline:
            what = f"the packages of the {environment.title} are not cached here and no registry answers"
            message = f"{what}: check the network, or pip's index-url and cert settings, and run it again"
            raise SetupFailed(message) from offline


def remake_locks() -> None:
    """Brings the lock files up to pyproject.toml and requirements/*.in; pins that fit stay. Raises SetupFailed."""
    uv = _ensure_uv()
    settings = uv_settings(pip=_read_pip_settings(), environ=os.environ)
    common = ["--quiet", "--no-header", "--no-emit-index-url", "--generate-hashes", "--python-version", "3.11"]
    extras = [part for extra in ("guardrails", "bench", "dev") for part in ("--extra", extra)]
    engine = ["--override", "requirements/engine-overrides.txt", "requirements/engine.in"]
    if _needs_torch_index(REQUIREMENTS / "engine.txt", settings.get("UV_FIND_LINKS", "")):
        engine += ["--torch-backend", "cpu"]
    jobs = {"uv": ["requirements/uv.in"], "control": [*extras, "pyproject.toml"], "engine": engine}
    for name, arguments in jobs.items():
        command = [str(uv), "pip", "compile", *common, *arguments, "-o", f"requirements/{name}.txt"]
        run(command, log="lock", env={**os.environ, **settings}, directory=ROOT)
        print(f"  ✓ requirements/{name}.txt: {_count(REQUIREMENTS / f'{name}.txt')} packages", file=sys.stderr)


def uv_settings(*, pip: dict[str, str], environ: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """What uv must be told of pip's settings. `pip` maps names such as `find-links` to their values.

    A UV_… variable that is set already wins. Only http(s) indexes are handed over: uv refuses a directory that is
    not an index, where pip only warns.
    """
    found: dict[str, str] = {"UV_SYSTEM_CERTS": "1"}
    links = [part for part in pip.get("find-links", "").split() if "://" in part or Path(part).exists()]
    if links:
        found["UV_FIND_LINKS"] = ",".join(links)
    if pip.get("index-url"):
        found["UV_DEFAULT_INDEX"] = pip["index-url"]
    extra = [part for part in pip.get("extra-index-url", "").split() if part.startswith("http")]
    if extra:
        found["UV_INDEX"] = " ".join(extra)
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # what pip does; the hashes in the lock make it safe
    certificate = pip.get("cert", "")
    if certificate and "SSL_CERT_FILE" not in environ and Path(certificate).is_file():
        found["SSL_CERT_FILE"] = certificate
    return {name: value for name, value in found.items() if name not in environ}


def _read_pip_settings() -> dict[str, str]:
    """pip's settings from its files and environment, the strongest last."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False, timeout=60
    )
    settings: dict[str, str] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = value.strip("'\"").replace("\\n", " ")
    return settings


def _needs_torch_index(lock: Path, find_links: str) -> bool:
    """True when torch's CPU build must come from its own index: no directory of find-links holds it."""
    wanted = [line.split()[0] for line in lock.read_text().splitlines() if line.startswith("torch==")]
    if not wanted:
        return False
    wheel = wanted[0].replace("==", "-") + "-*.whl"
    return not any(list(Path(part).glob(wheel)) for part in find_links.split(",") if part and "://" not in part)


class NoNetwork(SetupFailed):
    """No registry answered."""


_REASONS: tuple[tuple[tuple[str, ...], type[SetupFailed], str], ...] = (
    (("No space left", "os error 28"), SetupFailed, "the disk is full: free some space{places}"),
    (
        ("Disk quota", "os error 122", "File too large", "os error 27"),
        SetupFailed,
        "your disk quota is used up: free some space{places}",
    ),
    (
        ("Read-only file system", "Permission denied", "os error 30", "os error 13"),
        SetupFailed,
        "a folder cannot be written: make it writable, or set XDG_CACHE_HOME to one that is",
    ),
    (
        (
            *("dns error", "Failed to fetch", "Request failed", "error sending request", "Connection refused"),
            *("timed out", "Could not connect", "Temporary failure in name", "NewConnectionError"),
            *("Network connectivity is disabled", "the network was disabled"),
        ),
        NoNetwork,
        "no package registry answers and not everything is cached: check the network, or pip's settings",
    ),
    (
        ("Hash mismatch", "hash mismatch", "HASHES", "DO NOT MATCH"),
        SetupFailed,
        "a downloaded package does not have the hash in the lock file: the registry or a mirror serves something else",
    ),
    (
        ("ensurepip is not available",),
        SetupFailed,
        "this Python cannot make virtual environments: install its venv package (on Debian: python3.11-venv)",
    ),
)


def run(command: list[str], *, log: str, env: dict[str, str] | None = None, directory: Path | None = None) -> None:
    """Runs a program quietly. Raises SetupFailed, NoNetwork with one sentence when it fails."""
    done = subprocess.run(
        command,
        cwd=directory,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=_die_with_parent,
    )
    if done.returncode == 0:
        return
    said = (done.stderr + done.stdout).strip()
    for signs, kind, sentence in _REASONS:
        if any(sign in said for sign in signs):
            message = f"{sentence.format(places=_places())}\n  {said.splitlines()[-1].strip()[:300]}"
            raise kind(message)
    record = user_cache() / f"{log}.log"
    record.write_text(" ".join(command) + "\n" + said + "\n")
    message = f"`{Path(command[0]).name} {' '.join(command[1:3])}` failed (all of it: {record}):\n" + said[-1500:]
    raise SetupFailed(message)


def _places() -> str:
    """Where things are made, and how much is free there."""
    folders = [folder for folder in (ROOT, user_cache(), Path(tempfile.gettempdir())) if folder.exists()]
    free = ", ".join(f"{shutil.disk_usage(folder).free / 1e6:,.0f} MB free in {folder}" for folder in folders)
    return f" and run it again ({free})"


def _die_with_parent() -> None:
    """In a child, before it runs its program: it shall not go on writing when we are killed and run again."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextmanager
def _alone(environment: Environment) -> Iterator[None]:
    """Holds the lock of one environment, so that two clones do not make it at once."""
    with (user_cache() / f".{environment.directory.name}.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"  … {environment.title}: waiting for another clone that makes it", file=sys.stderr)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def check_disk(environment: Environment) -> None:
    """Raises SetupFailed where too little space is free."""
    free = shutil.disk_usage(environment.directory.parent).free
    if free < environment.disk_bytes:
        message = (
            f"the {environment.title} needs {environment.disk_bytes / GIB:.0f} GB in {environment.directory.parent}, "
            f"where {free / GIB:.1f} GB are free: free some space"
        )
        raise SetupFailed(message)


@contextmanager
def _step(title: str) -> Iterator[Callable[[int], None]]:
    """Prints what is being done, and when it is done its size and time."""
    began = time.monotonic()
    sizes: list[int] = []
    print(f"  … {title}", file=sys.stderr)
    yield sizes.append
    size = f"{sizes[0] / 1e9:.1f} GB" if sizes[0] > 1e8 else f"{sizes[0] / 1e6:.0f} MB"
    print(f"  ✓ {title}, {size}, {time.monotonic() - began:.0f} s", file=sys.stderr)


def _count(lock: Path) -> int:
    return sum(1 for line in lock.read_text().splitlines() if "==" in line and not line.startswith((" ", "#")))


def _size(directory: Path) -> int:
    return sum(
        os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - a hundred thousand files
        for folder, _, names in os.walk(directory)
        for name in names
    )


def explain(failure: OSError) -> str:
    """One sentence that says what to do about a folder that cannot be used."""
    advice = {
        errno.ENOSPC: "the disk is full: free some space and run it again",
        errno.EDQUOT: "your disk quota is used up: free some space and run it again",
        errno.EFBIG: "your disk quota is used up: free some space and run it again",
        errno.EROFS: "it cannot be written: make it writable, or set XDG_CACHE_HOME to a folder that is",
        errno.EACCES: "it cannot be written: make it writable, or set XDG_CACHE_HOME to a folder that is",
    }.get(failure.errno or 0, str(failure.strerror or failure))
    return f"{failure.filename}: {advice}" if failure.filename else advice


def main() -> int:
    """Makes what is asked for. Returns the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(0o022)  # nothing secret is made here, and PostgreSQL may have to read it as another user
    parser = argparse.ArgumentParser(description="Make the environments of Weir.")
    parser.add_argument("what", nargs="*", choices=["control", "engine", "lock"], default=["control"])
    parser.add_argument("--print-python", action="store_true", help="print the last one's interpreter on stdout")
    arguments = parser.parse_args()
    asked = arguments.what
    try:
        if sys.version_info[:2] != (3, 11):
            found = platform.python_version()
            raise SetupFailed(f"Weir needs Python 3.11 and this is {found}; run `make PYTHON=/path/to/python3.11 …`")
        check_path(ROOT)
        if "control" in asked:
            ensure(control_environment())
        if "engine" in asked:
            check_engine_machine()
            ensure(engine_environment())
        if "lock" in asked:
            remake_locks()
    except SetupFailed as failure:
        print(f"setup: {failure}", file=sys.stderr)
        return 1
    except OSError as failure:
        print(f"setup: {explain(failure)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: stopped; run again, it goes on from here", file=sys.stderr)
        return 130
    if arguments.print_python:
        last = engine_environment() if "engine" in asked else control_environment()
        print(last.python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
