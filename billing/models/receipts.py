"""The public keys that receipts and seals are checked with: published for ever, also when a newer one signs."""

from django.db import models


class ReceiptKey(models.Model):
    """One public key. The private one is in a file of the processes that sign, never in a database."""

    key_id = models.CharField(max_length=16, primary_key=True)
    public_key = models.CharField(max_length=64, help_text="Ed25519, 32 bytes in hex.")
    published_at = models.DateTimeField()
    retired_at = models.DateTimeField(null=True, help_text="Signs no more since; what it signed stays good.")

    class Meta:
        ordering = ["-published_at"]

    def __str__(self) -> str:
        return self.key_id
