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
        ]
