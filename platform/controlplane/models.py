"""The catalogue: which models are offered, by which pool. How a model is configured comes from its running engine."""

from django.db import models


class ServedModel(models.Model):
    """One model offered under one name. A pool serves one model with one engine configuration."""

    name = models.SlugField(max_length=100, unique=True, help_text="The id that clients send as `model`.")
    pool = models.SlugField(max_length=100, help_text="The queue whose workers serve it.")
    tokenizer_dir = models.CharField(
        max_length=500, help_text="Directory with tokenizer.json, tokenizer_config.json and config.json."
    )
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        verbose_name = "model"

    def __str__(self) -> str:
        return self.name


class EngineConfig(models.Model):
    """One version of what a pool's engines are to run. Append-only: the database refuses changes."""

    pool = models.SlugField(max_length=100)
    version = models.PositiveIntegerField()
    document = models.JSONField()
    digest = models.CharField(max_length=64)
    note = models.CharField(max_length=500, blank=True, default="")
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pool", "-version"]
        constraints = [models.UniqueConstraint(fields=["pool", "version"], name="engineconfig_version_once")]
        verbose_name = "engine configuration"

    def __str__(self) -> str:
        return f"{self.pool} v{self.version}"


class EngineConfigEvent(models.Model):
    """What became of a version: vLLM's parser accepted or refused it, it was made active. Append-only."""

    class Kind(models.TextChoices):
        ACCEPTED = "accepted"
        REFUSED = "refused"
        ACTIVATED = "activated"

    config = models.ForeignKey(EngineConfig, on_delete=models.PROTECT, related_name="events")
    kind = models.CharField(max_length=10, choices=Kind.choices)
    text = models.CharField(max_length=2000, blank=True, default="")
    engine_version = models.CharField(max_length=60, blank=True, default="")
    by = models.CharField(max_length=200)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        verbose_name = "engine configuration event"

    def __str__(self) -> str:
        return f"{self.config}: {self.kind}"


class ConsolePage(models.Model):  # noqa: DJ008 - has no rows to name
    """No table: carries the permissions of the console's pages that show no model."""

    class Meta:
        managed = False
        default_permissions = ()
        permissions = [
            ("open_requests", "Can look at requests and their timelines"),
            ("open_usage", "Can look at usage"),
            ("open_engines", "Can look at running engines"),
            ("open_limits", "Can look at limits as they stand"),
            ("open_refusals", "Can look up why a request was refused"),
            ("open_dead_letters", "Can look at dead letters and what engines said last"),
            ("replay_dead_letters", "Can run a dead letter once more"),
        ]
