"""Routes and methods: models, 404, 405 with Allow, HEAD, OPTIONS, CORS, slashes. Kind `routes`."""

from __future__ import annotations

from typing import Any

from infra.conformance.build import CHAT, COMPLETIONS, case, chat, get, raw
from infra.conformance.case import Answer, Case, Http, Kind, Seen, Skipped, Wrong
from infra.conformance.checks import answered, any_of, error_of, refused

_MODELS = "OpenAI API reference: models"
_METHODS = "RFC 9110 15.5.6, 9.1"
_CORS = "WHATWG Fetch 3.2: CORS protocol"
_ORIGIN = (("Origin", "https://app.example"),)
_PREFLIGHT = (
    *_ORIGIN,
    ("Access-Control-Request-Method", "POST"),
    ("Access-Control-Request-Headers", "authorization, content-type"),
)


def _is_model(model: Any) -> None:
    if not isinstance(model, dict):
        raise Wrong(f"a model is {model!r}")
    if model.get("object") != "model" or not isinstance(model.get("id"), str) or not model["id"]:
        raise Wrong(f"a model without id or object: {str(model)[:100]}")
    if type(model.get("created")) is not int or not 0 <= model["created"] < 10**11:
        raise Wrong(f"created is {model.get('created')!r}, not Unix seconds")
    if not isinstance(model.get("owned_by"), str):
        raise Wrong(f"owned_by is {model.get('owned_by')!r}")


def _list(answer: Answer) -> None:
    document = answer.json()
    if not isinstance(document, dict) or document.get("object") != "list" or not isinstance(document.get("data"), list):
        raise Wrong(f"no list: {answer.text(80)}")
    for model in document["data"]:
        _is_model(model)
    ids = [model["id"] for model in document["data"]]
    if len(set(ids)) != len(ids) or not ids:
        raise Wrong(f"ids {ids[:4]}")


def _listed(seen: Seen) -> None:
    answered(_list)(seen)
    if seen.target.model not in [model["id"] for model in seen.answer.json()["data"]]:
        raise Wrong(f"{seen.target.model} is served and not listed")


def _same_model(seen: Seen) -> None:
    answered(lambda answer: _is_model(answer.json()))(seen)
    listed = {model["id"]: model for model in seen.answer_to(0).json()["data"]}
    shown = seen.answer.json()
    for name in ("id", "created", "owned_by"):
        if shown[name] != listed[seen.target.model][name]:
            raise Wrong(f"{name} differs between list and model")


_MODEL_CASES = (
    case(
        "the list of models",
        get("/models"),
        answered(_list),
        must="object list; each with id, object, created, owned_by",
        source=_MODELS,
    ),
    case("the model under test is listed", get("/models"), _listed, must="its id is in data", source=_MODELS),
    case("one model", (get("/models"), get("/models/<MODEL>")), _same_model, must="as in the list", source=_MODELS),
    case(
        "a model that is not there",
        get("/models/no-such-model"),
        refused(statuses=(404,)),
        must="404 in OpenAI's shape",
        source=_MODELS,
    ),
    case(
        "a model with a slash in its name",
        get("/models/no-such/model"),
        refused(statuses=(404,)),
        must="404 in OpenAI's shape",
        source=_MODELS,
    ),
    case(
        "a model with an encoded slash",
        get("/models/no-such%2Fmodel"),
        refused(statuses=(404,)),
        must="404 in OpenAI's shape",
        source=_MODELS,
    ),
    case("models without a key", get("/models", key=None), refused(statuses=(401,)), must="401", source=_MODELS),
    case(
        "one model without a key",
        get("/models/<MODEL>", key=None),
        refused(statuses=(401,)),
        must="401",
        source=_MODELS,
    ),
)

# Method, path, and what Allow must hold.
_WRONG_METHODS = (
    ("GET", CHAT, "POST"),
    ("PUT", CHAT, "POST"),
    ("PATCH", CHAT, "POST"),
    ("DELETE", CHAT, "POST"),
    ("GET", COMPLETIONS, "POST"),
    ("DELETE", COMPLETIONS, "POST"),
    ("PUT", COMPLETIONS, "POST"),
    ("POST", "/models", "GET"),
    ("PUT", "/models", "GET"),
    ("PATCH", "/models", "GET"),
    ("DELETE", "/models", "GET"),
    ("POST", "/models/<MODEL>", "GET"),
)


def _not_allowed(method: str, path: str, allowed: str) -> Case:
    def check(seen: Seen) -> None:
        refused(statuses=(405,))(seen)
        allow = seen.answer.header("allow")
        if allow is None:
            raise Wrong("405 without Allow")
        if allowed not in [part.strip().upper() for part in allow.split(",")]:
            raise Wrong(f"Allow: {allow}")

    step = Http(method=method, path=path, content=b"{}" if method != "GET" else None)
    return case(f"{method} {path}", step, check, must=f"405 in OpenAI's shape, Allow: {allowed}", source=_METHODS)


def _head(seen: Seen) -> None:
    answer = seen.answer
    if answer.status not in (200, 401, 404, 405):
        raise Wrong(f"{answer.status} for HEAD")
    if answer.body:
        raise Wrong("HEAD with a body")
    if answer.status == 405 and answer.header("allow") is None:
        raise Wrong("405 without Allow")


def _options(seen: Seen) -> None:
    answer = seen.answer
    if answer.status not in (200, 204, 401, 403, 404, 405):
        raise Wrong(f"{answer.status} for OPTIONS")
    if answer.status == 405 and answer.header("allow") is None:
        raise Wrong("405 without Allow")


def _no_wildcard_with_credentials(answer: Answer) -> None:
    origin = answer.header("access-control-allow-origin")
    credentials = (answer.header("access-control-allow-credentials") or "").lower() == "true"
    if credentials and origin in ("*", "https://app.example", "null", "https://evil.example"):
        raise Wrong(f"credentials are allowed to {origin}")


def _preflight(seen: Seen) -> None:
    """Allowed whole, or not at all."""
    answer = seen.answer
    _no_wildcard_with_credentials(answer)
    if answer.header("access-control-allow-origin") is None:
        _options(seen)
        raise Skipped("not open to other origins")
    if answer.status not in (200, 204):
        raise Wrong(f"{answer.status} for a preflight of an allowed origin")
    methods = (answer.header("access-control-allow-methods") or "").upper()
    if "POST" not in methods and methods != "*":
        raise Wrong(f"Access-Control-Allow-Methods: {methods or 'none'}")
    headers = (answer.header("access-control-allow-headers") or "").lower()
    if "authorization" not in headers:
        raise Wrong(f"Access-Control-Allow-Headers: {headers or 'none'}")


def _cors_on_errors(seen: Seen) -> None:
    """Where an origin may read answers, it may read refusals too."""
    good, bad = seen.answer_to(0), seen.answer_to(1)
    allowed = good.header("access-control-allow-origin")
    if allowed is None:
        raise Skipped("not open to other origins")
    if bad.header("access-control-allow-origin") != allowed:
        raise Wrong(f"{bad.status} without the Access-Control-Allow-Origin of 200")


def _slash(path: str, step: Http) -> Case:
    def check(seen: Seen) -> None:
        if 300 <= seen.answer.status < 400:
            raise Wrong(f"{seen.answer.status} to {seen.answer.header('location')}: SDKs lose the body")
        any_of(200, 404)(seen)

    must = "200 or 404 in OpenAI's shape, never a redirect"
    return case(f"{path} with a slash at its end", step, check, must=must, source="OpenAI SDKs; Django APPEND_SLASH")


def _no_location(seen: Seen) -> None:
    if 300 <= seen.answer.status < 400 or seen.answer.header("location") is not None:
        raise Wrong(f"{seen.answer.status} to {seen.answer.header('location')}")


def _unknown(method: str, path: str) -> Case:
    content = b"{}" if method == "POST" else None
    step = Http(method=method, path=path, content=content)

    def check(seen: Seen) -> None:
        if seen.answer.status in (200, 400, 403, 405, 422):
            error = None if seen.answer.status == 200 else error_of(seen.answer)
            raise Skipped(f"the server has it: {seen.answer.status} {error['message'][:60] if error else ''}")
        refused(statuses=(404,))(seen)

    return case(
        f"{method} {path}, where it is not served",
        step,
        check,
        must="404 in OpenAI's shape",
        source="OpenAI API reference",
    )


_UNSERVED = (
    ("POST", "/embeddings"),
    ("POST", "/responses"),
    ("POST", "/moderations"),
    ("POST", "/images/generations"),
    ("POST", "/audio/speech"),
    ("POST", "/audio/transcriptions"),
    ("GET", "/files"),
    ("POST", "/files"),
    ("GET", "/batches"),
    ("GET", "/fine_tuning/jobs"),
    ("POST", "/messages"),
    ("POST", "/threads"),
    ("GET", "/assistants"),
    ("POST", "/edits"),
    ("POST", "/engines/x/completions"),
)

KIND = Kind(
    name="routes",
    group="openai",
    about="models, methods, HEAD, OPTIONS, CORS, slashes, routes that are not served",
    cases=(
        *_MODEL_CASES,
        *(_not_allowed(*row) for row in _WRONG_METHODS),
        case(
            "HEAD of the models",
            get("/models", method="HEAD"),
            _head,
            must="200 without a body, or 405",
            source="RFC 9110 9.3.2",
        ),
        case(
            "HEAD of chat",
            get(CHAT, method="HEAD"),
            _head,
            must="405 with Allow, without a body",
            source="RFC 9110 9.3.2",
        ),
        case(
            "HEAD of a path that is not there",
            get("/no-such-path", method="HEAD"),
            _head,
            must="404 without a body",
            source="RFC 9110 9.3.2",
        ),
        case(
            "OPTIONS of chat",
            get(CHAT, method="OPTIONS"),
            _options,
            must="200 or 204, or 405 with Allow",
            source="RFC 9110 9.3.7",
        ),
        case(
            "OPTIONS of the models",
            get("/models", method="OPTIONS"),
            _options,
            must="200 or 204, or 405 with Allow",
            source="RFC 9110 9.3.7",
        ),
        case(
            "OPTIONS of a path that is not there",
            get("/no-such-path", method="OPTIONS"),
            _options,
            must="404, 200 or 204",
            source="RFC 9110 9.3.7",
        ),
        case(
            "a preflight",
            get(CHAT, method="OPTIONS", headers=_PREFLIGHT, key=None),
            _preflight,
            must="methods and headers allowed, or no CORS at all",
            source=_CORS,
        ),
        case(
            "a preflight of the models",
            get("/models", method="OPTIONS", headers=_PREFLIGHT, key=None),
            lambda seen: answered(_no_wildcard_with_credentials, statuses=(200, 204, 400, 401, 403, 404, 405))(seen),
            must="never credentials for every origin",
            source=_CORS,
        ),
        case(
            "a request of another origin",
            get("/models", headers=_ORIGIN),
            answered(_no_wildcard_with_credentials),
            must="never credentials for every origin",
            source=_CORS,
        ),
        case(
            "a request of the origin null",
            get("/models", headers=(("Origin", "null"),)),
            answered(_no_wildcard_with_credentials),
            must="never credentials for null",
            source=_CORS,
        ),
        case(
            "CORS on refusals",
            (get("/models", headers=_ORIGIN), get("/models", headers=_ORIGIN, key=None)),
            _cors_on_errors,
            must="as on 200",
            source=_CORS,
        ),
        _slash(CHAT, Http(path=CHAT + "/", content=b"<CHAT>")),
        _slash(COMPLETIONS, raw(b'{"model":"<MODEL>","prompt":"a","max_tokens":2}', path=COMPLETIONS + "/")),
        _slash("/models", get("/models/")),
        _slash("/models/<MODEL>", get("/models/<MODEL>/")),
        case(
            "the base URL itself",
            get(""),
            any_of(200, 401, 404),
            must="answered in JSON, no redirect",
            source="OpenAI SDKs",
        ),
        case(
            "a POST is not redirected",
            chat(),
            lambda seen: _no_location(seen),
            must="no Location",
            source="OpenAI SDKs",
        ),
        *(_unknown(*row) for row in _UNSERVED),
    ),
)
