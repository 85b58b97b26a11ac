"""Vocabulary of Weir: the words every room uses. Standard library only; no I/O, no clock, no randomness."""
