"""The close of a period: every book compared, every gap explained request by request, then sealed."""
