"""Step 6, WORKER: claims a ticket, runs the engine, guards the output, logs and publishes tokens, ends the request.

Never imports Django. Started by `python -m workers`, one process per engine.
"""
