"""Every stated limit on what a client may send, in one place, as data. docs/limits.md is `render_limits()`.

Invariant: no other module of the room holds a number that a client can run into. All are checked before the queue.
"""

from dataclasses import dataclass

from billing.clickhouse import usage

_STATED: list["StatedLimit"] = []


@dataclass(frozen=True, slots=True)
class StatedLimit:
    """One row of docs/limits.md."""

    name: str
    value: int
    unit: str
    about: str
    refusal: str


def _state(name: str, value: int, unit: str, about: str, refusal: str = "400, the field in `param`") -> int:
    _STATED.append(StatedLimit(name, value, unit, about, refusal))
    return value


HEAD_BYTES_MAX = _state("head_bytes", 32_768, "bytes", "request line and headers", "431, closed")
HEADERS_MAX = _state("headers", 100, "headers", "headers of one request", "431, closed")
HEAD_SECONDS = _state(
    "head_seconds", 10, "s", "from the opening, or a kept connection's first byte, to the headers' end", "408, closed"
)
IDLE_SECONDS = _state("idle_seconds", 75, "s", "a connection between two requests", "closed")
STALL_SECONDS = _state("stall_seconds", 30, "s", "a connection whose client takes nothing of what is sent", "closed")
CONNECTIONS_MAX = _state(
    "connections", 12_000, "connections", "open connections of one gateway process, or what its files allow", "503"
)
BODY_SECONDS = _state("body_seconds", 30, "s", "from the end of the headers to the end of the body", "408, closed")
BODY_BYTES_MAX = _state(
    "body_bytes", 4 * 1024 * 1024, "bytes", "request body, counted after decompression (gzip is accepted)", "413"
)
MANAGEMENT_BODY_BYTES_MAX = _state("management_body", 1_048_576, "bytes", "body of a request to /api or /admin", "413")
HEADER_BEARER_MAX = _state("bearer", 256, "characters", "API key in the Authorization header", "401")
IDEMPOTENCY_KEY_MAX = _state("idempotency_key", 255, "characters", "Idempotency-Key header, visible ASCII, no spaces")
JSON_DEPTH_MAX = _state("json_depth", 64, "levels", "nesting of objects and arrays in the body")
JSON_INTEGER_DIGITS_MAX = _state("json_integer", 19, "digits", "any integer in the body (and it must fit in 64 bits)")
MODEL_NAME_MAX = _state("model", 128, "characters", "model name")
MESSAGES_MAX = _state("messages", 2_048, "items", "messages of a chat")
PARTS_MAX = _state("messages[].content", 256, "items", "text parts of one message")
NAME_MAX = _state(
    "messages[].name", 64, "characters", "name of a speaker, a tool or a schema; id of a WebSocket's item"
)
TOOL_CALLS_MAX = _state("messages[].tool_calls", 128, "items", "tool calls of one assistant message")
TOOLS_MAX = _state("tools", 128, "items", "tools of one request")
DESCRIPTION_MAX = _state("tools[].function.description", 8_192, "characters", "description of a tool or a schema")
SCHEMA_BYTES_MAX = _state("schema_bytes", 65_536, "bytes", "one JSON schema (tool parameters or response_format)")
SCHEMA_DEPTH_MAX = _state("schema_depth", 16, "levels", "nesting of schemas in one JSON schema")
SCHEMA_NODES_MAX = _state("schema_nodes", 1_000, "schemas", "subschemas of one JSON schema")
SCHEMA_ENUM_MAX = _state("schema_enum", 500, "items", "values of one enum")
SCHEMA_PATTERN_MAX = _state("schema_pattern", 512, "characters", "a `pattern` in a JSON schema")
SCHEMA_COUNT_MAX = _state("schema_count", 1_000, "", "minItems, maxItems, minLength, maxLength and {m,n} of a pattern")
SCHEMA_REPEAT_MAX = _state("schema_repeat", 128, "", "each {m,n} of a pattern that an answer must follow")
PROMPT_TOKEN_IDS_MAX = _state("prompt", 1_048_576, "token ids", "a completion prompt given as token ids")
CHOICES_MAX = _state("n", 8, "choices", "choices of one request")
TOP_LOGPROBS_MAX = _state("top_logprobs", 20, "tokens", "alternatives reported for each token")
STOP_MAX = _state("stop", 4, "items", "stop strings, as many as OpenAI and vLLM take")
STOP_CHARS_MAX = _state("stop[]", 256, "characters", "one stop string")
STOP_TOKEN_IDS_MAX = _state("stop_token_ids", 64, "items", "stop token ids")
LOGIT_BIAS_MAX = _state("logit_bias", 1_024, "entries", "biased tokens, each in the model's vocabulary")
ALLOWED_TOKEN_IDS_MAX = _state("allowed_token_ids", 4_096, "items", "allowed tokens, each in the model's vocabulary")
BAD_WORDS_MAX = _state("bad_words", 64, "items", "words never generated")
BAD_WORD_CHARS_MAX = _state("bad_words[]", 64, "characters", "one of them")
END_USER_MAX = _state("user", 256, "characters", "the end user's id; only its hash is kept")
STRING_BYTES_MAX = _state("string", BODY_BYTES_MAX, "bytes", "any string without a limit of its own: its body's", "413")
OPEN_REQUESTS_MAX = _state("open_requests", 10_000, "requests", "open requests of one gateway process", "503")
QUEUE_WAIT_SECONDS = _state("queue_wait", 600, "s", "a request in the queue", "504, ended `expired`")
REQUEST_SECONDS = _state("request_seconds", 1_800, "s", "from a request's last byte to its answer's", "504")
BACKGROUND_WAIT_SECONDS = _state("background_wait", 86_400, "s", "a background request in the queue", "ended `expired`")
BACKGROUND_KEPT_SECONDS = _state(
    "background_kept", 86_400, "s", "answer and events of a background request, from its end on", "410, and facts only"
)
REALTIME_KEY_SECONDS = _state("realtime_key", 10, "s", "a WebSocket until its API key", "close 4408")
REALTIME_FRAME_BYTES_MAX = _state(
    "realtime_frame", 1_048_576, "bytes", "one WebSocket message", "close 4413; from twice as many on 1009"
)
REALTIME_FRAGMENTS_MAX = _state(
    "realtime_fragments", 4_096, "fragments", "pieces of one WebSocket message", "close 1009"
)
REALTIME_BYTES_MAX = _state("realtime_bytes", 4_194_304, "bytes", "text of one WebSocket's items", "error event")
REALTIME_IDLE_SECONDS = _state(
    "realtime_idle", 900, "s", "a WebSocket whose client says nothing while no response runs", "close 4408"
)
REALTIME_RESPONSES_MAX = _state("realtime_responses", 4, "responses", "open responses of one WebSocket", "error event")
REALTIME_REFUSALS_MAX = _state("realtime_refusals", 16, "responses", "responses asked for beyond that", "close 4429")
REALTIME_ITEMS_MAX = _state("realtime_items", 512, "items", "conversation items of one WebSocket", "error event")
MODERATION_INPUTS_MAX = _state("input", 256, "items", "texts of one moderation")
REQUEST_ID_MAX = _state("request_id", 64, "characters", "a request id in a path", "404")
QUERY_BYTES_MAX = _state("query", 4_096, "bytes", "the query string of a URL", "400")
QUERY_VALUES_MAX = _state("query_values", 100, "items", "values of one list in a query string")
USAGE_DAYS_MAX = _state("start_time, end_time", usage.RANGE_MAX_MS // 86_400_000, "days", "one question about usage")
USAGE_MINUTES_MAX = _state("limit (1m)", usage.WIDTHS["1m"].maximum, "buckets", "minutes of one page of usage")
USAGE_HOURS_MAX = _state("limit (1h)", usage.WIDTHS["1h"].maximum, "buckets", "hours of one page of usage")
USAGE_PAGE_DAYS_MAX = _state("limit (1d)", usage.WIDTHS["1d"].maximum, "buckets", "days of one page of usage")
COST_DAYS_MAX = _state("limit (costs)", 180, "buckets", f"days of costs; a page holds {USAGE_PAGE_DAYS_MAX} at most")


def stated_limits() -> tuple[StatedLimit, ...]:
    return tuple(_STATED)


def render_limits() -> str:
    """docs/limits.md, whole."""
    lines = [
        "# Limits",
        "",
        "Generated from `platform/gateway/surface/limits.py`. Each is checked before a request is queued; a request",
        "over one of them is refused at once, holds nothing and costs nothing. A model's context, and the tenant's",
        "own limits (requests, tokens, money, concurrency, queue), come on top.",
        "",
        "`param` of an error names the field by its path (`messages[0].content`), or the header or query parameter.",
        "Where the request has no such thing it names the part that is wrong: `body` (no JSON, no object, a field",
        "without a name, too large, late), `query`, `path`, `method`, `headers`, `version`, `request` (no HTTP).",
        "A field without a name is told by the path of the object that holds it, which is `body` for the outermost.",
        "It is `null` where nothing in the request is wrong: spent limits and budgets, and every 5xx but 501 (a method",
        "that no path takes). The same over WebSocket, where `body` is the message.",
        "",
        "A query parameter that a path of /v1 does not read is refused by its name (400, `unknown_parameter`): nothing",
        "that is sent is dropped silently. Over HTTP `api-version` alone is taken everywhere, and means nothing:",
        "clients that are set up for Azure add it to every call.",
        "",
        "| limit | value | about | answer |",
        "|---|---|---|---|",
    ]
    for row in _STATED:
        unit = f" {row.unit}" if row.unit else ""
        lines.append(f"| `{row.name}` | {row.value:,}{unit} | {row.about} | {row.refusal} |")
    return "\n".join(lines) + "\n"
