"""Work in the background of the billing room: who asked, who does it, how far it is, and what came of it."""

from django.db import models
from django.db.models import Q

from billing.models.base import new_id


class JobKind(models.TextChoices):
    """What there is to do. Each is idempotent: done twice it changes nothing more."""

    CLOSE = "close", "Seal a period"
    CORRECT = "correct", "Look for late usage"
    ISSUE = "issue", "Issue documents"
    DUNNING = "dunning", "Remind of what is overdue"


class JobState(models.TextChoices):
    """waiting → running → done | failed; a run that died or failed waits again, up to a bound."""

    WAITING = "waiting", "Waiting"
    RUNNING = "running", "Running"
    DONE = "done", "Done"
    FAILED = "failed", "Failed"


class BillingJob(models.Model):
    """One piece of work. `claimed_until` is the lease of whoever runs it: past it, anybody may."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    kind = models.CharField(max_length=20, choices=JobKind)
    subject = models.CharField(max_length=64, blank=True, help_text="What it is about: a period's id; empty = all.")
    state = models.CharField(max_length=10, choices=JobState, default=JobState.WAITING)
    asked_by = models.CharField(max_length=200)
    asked_at = models.DateTimeField()
    due_at = models.DateTimeField(help_text="Not before.")
    attempts = models.PositiveSmallIntegerField(default=0)
    claimed_by = models.CharField(max_length=200, blank=True)
    claimed_until = models.DateTimeField(null=True)
    progress = models.CharField(max_length=200, blank=True)
    result = models.TextField(blank=True, help_text="What came of it, or why it failed.")
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-asked_at"]
        verbose_name = "job"
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "subject"], condition=Q(state__in=("waiting", "running")), name="billing_job_open_once"
            ),
        ]
        indexes = [models.Index(fields=["due_at"], condition=Q(state__in=("waiting", "running")), name="job_due")]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.subject}".strip()
