"""Pure rules: text in, spans out. No I/O, no clock, no randomness."""
