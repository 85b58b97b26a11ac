"""Proof of an invoice: signed receipts, Merkle seals, and a verifier that needs nothing of ours."""
