"""A deterministic engine that speaks vLLM's HTTP dialect: for machines without one, and for every test of the platform.

The core (`cache`, `scheduler`, `text`) is pure; `app` puts it behind HTTP.
"""
