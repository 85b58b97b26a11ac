"""The style guide as tests: what a reviewer would have to say twice is said here once."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stores.lua import LuaScript

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("platform", "tenants", "workers", "safety", "billing", "infra")
PURE = (
    "platform/contracts",
    "platform/fairqueue/policy.py",
    "platform/fairqueue/model.py",
    "tenants/limits/policy.py",
    "safety/rules",
    "billing/rating",
)
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 500
# The only files that are not searched for paths of one machine, and why. What is no text must be listed here too.
MACHINE_PATHS_ALLOWED = {
    "tests/architecture/test_tidy.py": "says what such a path looks like",
    "infra/models/smollm2-135m-instruct/tokenizer.json": "vendored: a vocabulary, in which any piece of text may stand",
}
IMPORTS_ALLOWED = {"uuid.UUID"}  # into a pure module: a type, which makes none
CLOCKS = {"now", "utcnow", "today"}
THREAT = re.compile(r"test_t\d\d_?")  # what the names of a threat's tests begin with
MONEY = re.compile(r"(cost|price|amount|balance|nano|spend)", re.IGNORECASE)


def _tracked(*suffixes: str) -> list[Path]:
    """The repository's files with these endings; without one, all."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = (ROOT / name for name in sorted(set(listed.stdout.split("\0"))))
    return [path for path in paths if (not suffixes or path.suffix in suffixes) and path.is_file()]


def _sources() -> list[Path]:
    return [
        path
        for path in _tracked(".py")
        if path.relative_to(ROOT).parts[0] in ROOMS and "migrations" not in path.relative_to(ROOT).parts
    ]


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _pure() -> list[Path]:
    return [path for path in _sources() if any(_name(path).startswith(prefix) for prefix in PURE)]


class TestSize:
    def test_no_function_is_longer_than_seventy_lines(self) -> None:
        long = [
            f"{_name(path)}:{function.lineno} {function.name} has {length} lines"
            for path in [*_sources(), *_tracked(".py")]
            for function in _functions(path)
            if "migrations" not in path.parts
            and (length := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX
        ]
        assert long == []

    def test_no_module_is_longer_than_five_hundred_lines(self) -> None:
        long = [
            f"{_name(path)} has {lines} lines"
            for path in _tracked(".py", ".lua")
            if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MODULE_LINES_MAX
        ]
        assert long == []


class TestNames:
    def test_platform_is_a_source_root_and_never_a_package(self) -> None:
        assert not (ROOT / "platform" / "__init__.py").exists()

    def test_no_module_is_called_utils_or_helpers(self) -> None:
        banned = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
        assert [_name(path) for path in _sources() if path.stem in banned] == []

    def test_every_room_has_a_readme_that_states_its_invariants(self) -> None:
        rooms = [ROOT / "platform" / name for name in ("contracts", "stores", "fairqueue", "gateway", "controlplane")]
        rooms += [ROOT / name for name in ("tenants", "safety", "workers", "billing")]
        missing = [
            _name(room)
            for room in rooms
            if not (room / "README.md").is_file()
            or "## Invariants" not in (room / "README.md").read_text(encoding="utf-8")
        ]
        assert missing == []

    def test_decisions_are_numbered_without_gaps(self) -> None:
        numbers = sorted(int(path.name[:4]) for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
        assert numbers == list(range(1, len(numbers) + 1))
        assert numbers


class TestLua:
    @pytest.mark.parametrize("path", _tracked(".lua"), ids=_name)
    def test_every_script_has_a_header_that_parses(self, path: Path) -> None:
        assert LuaScript.load(path).name == path.name

    def test_every_script_takes_its_clock_from_the_server(self) -> None:
        wrong = [_name(path) for path in _tracked(".lua") if "os.time" in path.read_text(encoding="utf-8")]
        assert wrong == []


class TestPurity:
    @pytest.mark.parametrize("path", _pure(), ids=_name)
    def test_decision_modules_import_no_clock_randomness_or_store(self, path: Path) -> None:
        banned = {
            "time",
            "random",
            "secrets",
            "uuid",
            "os",
            "socket",
            "asyncio",
            "redis",
            "django",
            "httpx",
            "stores",
            "pathlib",
        }
        found = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported = {f"{node.module}.{alias.name}" for alias in node.names} - IMPORTS_ALLOWED
                found |= {name.split(".")[0] for name in imported}
        assert found & banned == set()

    @pytest.mark.parametrize("path", _pure(), ids=_name)
    def test_decision_modules_ask_no_clock_what_time_it_is(self, path: Path) -> None:
        asked = [
            f"{_name(path)}:{node.lineno} {ast.unparse(node.func)}()"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS
        ]
        assert asked == []


class TestMoney:
    def test_no_float_is_near_it(self) -> None:
        wrong = []
        for path in _sources():
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                target, annotation = None, None
                if isinstance(node, ast.AnnAssign):
                    target, annotation = ast.unparse(node.target), ast.unparse(node.annotation)
                elif isinstance(node, ast.arg) and node.annotation is not None:
                    target, annotation = node.arg, ast.unparse(node.annotation)
                elif isinstance(node, ast.Call) and ast.unparse(node.func) == "float" and node.args:
                    target, annotation = ast.unparse(node.args[0]), "float"
                if target and annotation and "float" in annotation and MONEY.search(target):
                    wrong.append(f"{_name(path)}:{node.lineno} {target}")
        assert wrong == []

    def test_no_float_is_a_field_in_the_rooms_that_know_it(self) -> None:
        """Models, serializers, forms and casts in queries; the migrations too."""
        wrong = [
            f"{_name(path)}:{node.lineno}"
            for path in _tracked(".py")
            if path.relative_to(ROOT).parts[0] in ("tenants", "billing", "safety")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if getattr(node, "attr", getattr(node, "id", getattr(node, "name", None))) == "FloatField"
        ]
        assert wrong == []

    def test_no_float_is_its_column_in_clickhouse(self) -> None:
        column = re.compile(r"(\w+)\s+(?:Nullable\(|LowCardinality\()*B?Float\d+")
        found = {
            f"{_name(path)}: {name}": bool(MONEY.search(name))
            for path in _tracked(".sql")
            if _name(path).startswith("billing/clickhouse/migrations/")
            for name in column.findall(path.read_text(encoding="utf-8"))
        }
        assert [name for name, is_money in found.items() if is_money] == []
        assert found  # durations: the search finds columns


class TestThePlaceItRunsIn:
    def test_no_file_names_a_path_of_one_machine(self) -> None:
        home = re.compile(r"(/root/|/home/[a-z]+/|/work/|/opt/(wheels|pypi))")
        wrong = [
            f"{_name(path)}:{number}"
            for path in _tracked()
            if _name(path) not in MACHINE_PATHS_ALLOWED
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
            if home.search(line)
        ]
        assert wrong == []

    def test_every_file_that_may_name_such_a_path_is_there(self) -> None:
        assert [name for name in MACHINE_PATHS_ALLOWED if not (ROOT / name).is_file()] == []

    def test_no_requirement_names_a_registry(self) -> None:
        wrong = [
            f"{_name(path)}:{number}"
            for path in (ROOT / "requirements").iterdir()
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
            if "://" in line or line.startswith(("--index", "--extra-index", "--find-links", "-i "))
        ]
        assert wrong == []


class TestErrors:
    def test_every_error_has_its_own_code(self) -> None:
        from contracts import errors

        codes: dict[str, str] = {}
        kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
        for name, kind in kinds.items():
            if issubclass(kind, errors.WeirError) and not set(kind.__subclasses__()) & set(kinds.values()):
                assert kind.code not in codes, f"{name} shares {kind.code} with {codes[kind.code]}"
                codes[kind.code] = name
        assert len(codes) >= 15

    def test_every_error_is_drawn_in_the_tree(self) -> None:
        from contracts import errors

        drawn = errors.__doc__ or ""
        leaves = [
            name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.WeirError)
        ]
        assert [name for name in leaves if name not in drawn] == []


class TestDocs:
    def test_the_stated_limits_are_those_that_the_edge_checks(self) -> None:
        from gateway.surface.limits import render_limits
        from tenants.limits.stated import render_tenant_limits

        stated = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
        assert stated == render_limits() + render_tenant_limits(), "run `manage.py limits_doc`"

    def test_every_test_that_a_page_names_is_there(self) -> None:
        """As `path::Class::test`, as `path`, or by its name alone; also the number of a threat alone (`test_t04`)."""
        named = re.compile(r"((?:tests/)?[\w/]*test_\w+\.py)((?:::\w+)*)|\b(test_\w+|Test[A-Z]\w+)")
        tests = {_name(path): path.read_text(encoding="utf-8") for path in _tracked(".py")}
        tests = {name: text for name, text in tests.items() if name.startswith("tests/")}
        every, missing, whole = "\n".join(tests.values()), [], set()
        for page in _tracked(".md"):
            for path, parts, alone in set(named.findall(page.read_text(encoding="utf-8"))):
                files = [text for name, text in tests.items() if f"/{name}".endswith(f"/{path}")] if path else [every]
                wanted = [*filter(None, parts.split("::")), *filter(None, [alone])]
                ends = "" if THREAT.fullmatch(alone) else r"\b"
                if not any(all(re.search(rf"(def|class) {name}{ends}", text) for name in wanted) for text in files):
                    missing.append(f"{_name(page)}: {path}{parts}{alone}")
                elif parts:
                    whole.add((path, parts))
        assert missing == []
        assert len(whole) > 40

    def test_every_relative_link_leads_somewhere(self) -> None:
        link = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
        broken = [
            f"{_name(path)}: {target}"
            for path in _tracked(".md")
            for target in link.findall(path.read_text(encoding="utf-8"))
            if not (path.parent / target).exists()
        ]
        assert broken == []
