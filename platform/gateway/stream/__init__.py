"""Step 7: released frames from the mailbox or the log to the client, over SSE, plain JSON or WebSocket."""
