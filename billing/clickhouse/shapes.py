"""What reports hand to other rooms: frozen, exact, ready to print. Amounts are nano-units until they become text."""

from dataclasses import dataclass, field
from typing import Any

from contracts.money import text_from_nano


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageResult:
    """One group of one bucket. `input_tokens` includes `cached_tokens`, as OpenAI counts; None = not grouped by it."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    requests: int
    cost_nano: int
    currency: str
    model: str | None = None
    project_id: str | None = None
    api_key_id: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "object": "organization.usage.completions.result",
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "num_model_requests": self.requests,
            "input_cached_tokens": self.cached_tokens,
            "output_reasoning_tokens": self.reasoning_tokens,
            "input_audio_tokens": 0,
            "output_audio_tokens": 0,
            "project_id": self.project_id,
            "user_id": None,
            "api_key_id": self.api_key_id,
            "model": self.model,
            "batch": None,
            "cost": text_from_nano(self.cost_nano),
            "currency": self.currency,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageBucket:
    """[start_s, end_s) in Unix seconds; no results when nothing was used."""

    start_s: int
    end_s: int
    results: tuple[UsageResult, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "object": "bucket",
            "start_time": self.start_s,
            "end_time": self.end_s,
            "results": [result.as_json() for result in self.results],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePage:
    """A page of buckets, oldest first. `next_page` is None on the last."""

    buckets: tuple[UsageBucket, ...]
    next_page: str | None

    def as_json(self) -> dict[str, Any]:
        return {
            "object": "page",
            "data": [bucket.as_json() for bucket in self.buckets],
            "has_more": self.next_page is not None,
            "next_page": self.next_page,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineStep:
    """One of the nine steps of a request. `duration_us` None = this step has no duration of its own."""

    step: str
    duration_us: int | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One row of `inference_requests_audit` as people read it."""

    request_id: str
    revision: int
    tenant_id: str
    project_id: str
    api_key_id: str
    model: str
    pool: str
    endpoint: str
    service_class: str
    stream: bool
    admitted_at_ms: int
    billed_at_ms: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    delivered_tokens: int
    ttft_ms: float
    itl_ms: float
    total_ms: float
    outcome: str
    finish_reason: str
    error_code: str
    attempt: int
    worker_id: str
    price_card_id: str
    currency: str
    cost_nano: int
    log_key: str
    budget_cut: bool = False  # less output was held than asked for, because no more was affordable
    timeline: tuple[TimelineStep, ...] = field(default=())

    @property
    def stopped_by(self) -> str:
        """ "budget" where its cut ended the answer, as the table's alias of this name says; else empty."""
        return "budget" if self.budget_cut and self.finish_reason == "length" else ""

    @property
    def cursor(self) -> str:
        """Keyset position for `recent_requests(before=…)`: admission and text of the id."""
        return f"{self.admitted_at_ms}:{self.request_id}"

    @property
    def cost_text(self) -> str:
        return text_from_nano(self.cost_nano)


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Milliseconds; None when nothing was measured."""

    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPercentiles:
    requests: int
    ttft: Percentiles
    itl: Percentiles
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLine:
    """One line of the usage report: usage billed in a period, by model, key, outcome and currency."""

    model: str
    api_key_id: str
    outcome: str
    currency: str
    requests: int
    budget_stopped_requests: int  # of them: those whose answer ended where the budget did
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_nano: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTotals:
    """Number and cost of the requests that the ledger has taken in a period."""

    requests: int
    cost_nano: int
