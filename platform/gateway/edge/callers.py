"""Steps 1-2: who asks, of one HTTP request. Called by every route that needs a key.

Invariant: once the caller is known, every answer carries the rate headers of what is limited, an error's and a
report's too, unless the limits cannot be read.
"""

from gateway.admission import Admission, Caller
from gateway.edge.exchange import Exchange
from gateway.surface.errors import Headers, rate_headers


async def identified(
    exchange: Exchange, admission: Admission, *, model: str = "", query: frozenset[str] = frozenset()
) -> Caller:
    """The caller. `model`: the one that the path names; `query`: the parameters that the route reads.

    Raises AuthFailed, PermissionDenied, Unavailable, and, to those who have a key, InvalidRequest for other parameters.
    """
    caller = await admission.identify(exchange.bearer(), address=exchange.address)

    async def rates() -> Headers:
        requests, tokens = await admission.room(caller.context, model=exchange.model)
        return rate_headers(requests=requests, tokens=tokens)

    exchange.caller, exchange.rates, exchange.model = caller.context, rates, model
    exchange.require_query(query)
    return caller
