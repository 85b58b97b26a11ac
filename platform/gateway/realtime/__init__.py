"""Steps 1 and 7 over a WebSocket: /v1/realtime, text only."""
