"""Identifiers. All are strings on the wire; `NewType` keeps one kind from being passed for another.

A request id is a UUIDv7 minted by us before anything else (`stores.ids`); the client's own id is a label only.
The billing key of a request is `(request_id, revision)`: an attempt never makes a second bill.
"""

from typing import NewType

TenantId = NewType("TenantId", str)
ProjectId = NewType("ProjectId", str)
ApiKeyId = NewType("ApiKeyId", str)
RequestId = NewType("RequestId", str)
PoolName = NewType("PoolName", str)  # one model with one engine configuration
WorkerId = NewType("WorkerId", str)
GatewayId = NewType("GatewayId", str)
Fence = NewType("Fence", str)  # "<attempt>-<nonce>", compared by equality only
