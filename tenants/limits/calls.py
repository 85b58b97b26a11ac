"""Step 3, LIMITS: what goes into the scripts and what their answers mean. Pure; used by `buckets.Limits`.

Invariant: the order of keys and arguments is the scripts' headers'; amounts are checked before they become doubles.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

from contracts.errors import AuthFailed, PermissionDenied
from contracts.tenancy import Limit, Scope
from tenants.limits import keys as names
from tenants.limits import policy, refusal
from tenants.limits.holds import EpochUnknown, HoldExisting, HoldGranted, HoldHint, HoldRequest, HoldState, LimitUse
from tenants.limits.policy import RULES, Kind, Reading, Window


def text(value: bytes | str | None) -> str:
    """A reply's text; None is empty."""
    return value.decode() if isinstance(value, bytes) else value or ""


def check_amounts(request: HoldRequest) -> None:
    """Checked integers: a huge multiplier must never wrap or lose a digit in a script."""
    if not 0 <= request.prompt_tokens <= policy.TOKENS_MAX or not 0 <= request.output_tokens_max <= policy.TOKENS_MAX:
        raise ValueError("token amounts must lie between 0 and TOKENS_MAX")
    if not 0 <= request.cost_max_nano <= policy.CAP_MAX or request.choices < 1 or request.output_nano_per_token < 0:
        raise ValueError("the worst-case cost must lie between 0 and CAP_MAX, choices must be positive")


def hold_call(request: HoldRequest, windows: Sequence[Window], time_ms: int) -> tuple[list[str], list[str | int]]:
    """Keys and arguments of hold.lua."""
    given = request.idempotency
    tenant_id = request.tenant_id
    keys = [
        names.hold(tenant_id, request.request_id),
        names.holds(tenant_id),
        names.use(tenant_id),
        names.epoch(tenant_id),
        names.idempotency(tenant_id, given.key_digest if given else ""),
        names.alerts(tenant_id),
    ]
    args: list[str | int] = [
        time_ms,
        request.request_id,
        request.api_key_id,
        request.key_epoch,
        request.tenant_epoch,
        request.enqueue_deadline_ms,
        request.pool,
        request.project_id,
        request.prompt_tokens,
        request.output_tokens_max,
        request.cost_max_nano,
        request.output_nano_per_token,
        int(request.cut_to_affordable),
        request.choices,
        given.key_digest if given else "",
        given.body_digest if given else "",
        given.ttl_ms if given else 0,
    ]
    for limit, window in zip(request.limits, windows, strict=True):
        rule = RULES[limit.metric]
        name = names.counter(limit, tenant_id=tenant_id, project_id=request.project_id, api_key_id=request.api_key_id)
        args += [name, rule.kind.value, rule.amount.value, limit.cap, window.label, window.start_ms, window.end_ms]
        args.append(",".join(map(str, limit.alerts)))
    return keys, args


def read_hold(request: HoldRequest, windows: Sequence[Window], answer: list[Any]) -> HoldGranted | HoldExisting:
    """The meaning of hold.lua's answer; raises what `Limits.hold` says."""
    status = answer[0]
    if status == b"granted":
        now_ms, admitted, deadline, output, cut = answer[1:6]
        readings = [Reading(used=u, held=h) for u, h in zip(answer[6::2], answer[7::2], strict=True)]
        requests, tokens = refusal.rates(request.limits, readings, windows, now_ms)
        return HoldGranted(
            request_id=request.request_id,
            admitted_at_ms=admitted,
            hold_deadline_ms=deadline,
            output_tokens=output,
            cut=bool(cut),
            requests=requests,
            tokens=tokens,
        )
    if status == b"existing":
        return HoldExisting(
            request_id=answer[1].decode(),
            state=HoldState(answer[2].decode()),
            body_matches=answer[3] == 1,
            admitted_at_ms=answer[4],
            output_tokens=answer[5],
            cut=answer[6] == 1,
        )
    if status == b"refused":
        fits = answer[3::3]
        readings = [Reading(used=u, held=h) for u, h in zip(answer[4::3], answer[5::3], strict=True)]
        raise refusal.refused(request, windows, fits, readings, answer[1])
    if answer[1] == b"key":
        raise AuthFailed("This API key was revoked.")
    if answer[1] == b"tenant":
        raise PermissionDenied("This organization is suspended.", code="tenant_suspended")
    raise EpochUnknown(answer[1].decode())


def counters_of(tenant_id: str, hint: HoldHint) -> list[str]:
    """Every counter that a lost hold may have stood in; the script charges those that exist."""
    counters: list[str] = []
    for scope, metric, model in product(Scope, RULES, {None, hint.model or None}):
        rule = RULES[metric]
        if rule.kind in (Kind.CONCURRENT, Kind.QUEUED, Kind.REQUEST):
            continue  # held only, or not counted at all: a lost hold has left nothing there
        name = names.counter(
            Limit(scope=scope, metric=metric, cap=0, model=model),
            tenant_id=tenant_id,
            project_id=hint.project_id,
            api_key_id=hint.api_key_id,
        )
        counters += [name, rule.kind.value, rule.amount.value]
    return counters


def limit_use(limit: Limit, row: Sequence[bytes | None], window: Window, now_ms: int) -> LimitUse:
    """One counter of usage.lua, as it stands at `now_ms`."""
    used, held = int(row[0] or 0), int(row[1] or 0)
    kind = RULES[limit.metric].kind
    if kind in (Kind.RATE, Kind.OUTPUT):
        used = policy.drained(debt=used, cap=limit.cap, since_ms=int(row[2] or now_ms), now_ms=now_ms)
    elif kind is Kind.WINDOW:
        stored = (row[2] or b"").decode().split(" ")[0]
        if stored < window.label:
            used, held = 0, 0
    reading = Reading(used=used, held=held)
    shown = -(-used // policy.GRAINS) if kind in (Kind.RATE, Kind.OUTPUT) else used
    return LimitUse(
        limit=limit,
        used=shown,
        held=held,
        free=policy.free(metric=limit.metric, cap=limit.cap, reading=reading),
        reset_ms=policy.reset_ms(metric=limit.metric, cap=limit.cap, reading=reading, window=window, now_ms=now_ms),
    )
