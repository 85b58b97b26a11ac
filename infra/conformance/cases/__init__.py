"""The cases, one module for each kind: tables of declarations, without a socket or a clock."""
