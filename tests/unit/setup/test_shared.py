"""What is heavy lies once in the user's cache, named by what it was made from: a second clone finds it made."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from controlplane.local import model, paths
from infra.setup import bootstrap

Place = Callable[[Path], Path]  # from the root of a clone to where the heavy thing of that clone lies


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, as both programs find it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert bootstrap.user_cache() == paths.user_cache() == tmp_path / "cache" / "weir"
    return paths.user_cache()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Place:
    def place(root: Path) -> Path:
        monkeypatch.setattr(bootstrap, "ROOT", root)
        monkeypatch.setattr(bootstrap, "REQUIREMENTS", root / "requirements")
        return bootstrap.engine_environment().directory

    return place


@pytest.fixture
def installer(engine: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Found where it is made already, so nothing is run."""

    def made(command: list[str], **_: object) -> None:
        if "venv" in command:
            (Path(command[-1]) / "bin").mkdir(parents=True)
            (Path(command[-1]) / "bin" / "uv").touch()

    def place(root: Path) -> Path:
        engine(root)
        return bootstrap._ensure_uv().parents[1]

    monkeypatch.setattr(bootstrap, "run", made)
    return place


@pytest.fixture
def converted() -> Place:
    return lambda root: model.cached_directory(root=root)


def clone(root: Path, *, text: str) -> Path:
    """A clone whose locks and whose model's manifest say this."""
    (root / "requirements").mkdir(parents=True)
    for name in ("engine.txt", "uv.txt"):
        (root / "requirements" / name).write_text(text)
    committed = model.committed_directory(root=root)
    committed.mkdir(parents=True)
    (committed / "manifest.json").write_text(text)
    return root


@pytest.mark.parametrize("what", ["engine", "installer", "converted"])
class TestWhatClonesShare:
    def test_lies_in_the_users_cache_under_the_hash_of_its_lock(
        self, what: str, cache: Path, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        place: Place = request.getfixturevalue(what)
        directory = place(clone(tmp_path / "a", text="one==1"))
        assert directory.is_relative_to(cache)
        assert sha256(b"one==1").hexdigest()[:12] in directory.name

    def test_is_one_for_two_clones_until_their_locks_differ(
        self, what: str, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        place: Place = request.getfixturevalue(what)
        roots = [clone(tmp_path / name, text=text) for name, text in (("a", "1"), ("b", "1"), ("c", "2"))]
        first, second, other = map(place, roots)
        assert first == second
        assert other != first
