"""Engines behind one protocol: a child process on a Unix socket (vLLM, simulated) or a server by its URL."""
