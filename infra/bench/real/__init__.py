"""Benches that ask a real engine what its own ways of working give."""
