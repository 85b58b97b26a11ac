"""What the models of this room share: ids that sort by time, ISO codes, periods that never touch, versions by two."""

import uuid
from collections.abc import Collection

import uuid_utils
from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeBoundary, RangeOperators
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import F, Func, Q

CURRENCY = RegexValidator(r"^[A-Z]{3}$", "Three capital letters, as in ISO 4217.")
COUNTRY = RegexValidator(r"^[A-Z]{2}$", "Two capital letters, as in ISO 3166.")


def new_id() -> uuid.UUID:
    """UUIDv7: new rows sort last, in the index too."""
    return uuid.UUID(str(uuid_utils.uuid7()))


class Period(Func):
    function = "TSTZRANGE"
    output_field = DateTimeRangeField()


def no_overlap(*, name: str, whose: Q, columns: tuple[str, ...]) -> ExclusionConstraint:
    """Periods [valid_from, valid_to) of equal columns do not touch (btree_gist)."""
    equal = [(column, RangeOperators.EQUAL) for column in columns]
    period = (Period("valid_from", "valid_to", RangeBoundary()), RangeOperators.OVERLAPS)
    return ExclusionConstraint(
        name=name,
        expressions=[*equal, period],
        condition=whose,
        violation_error_message="Another version holds for a part of this time; supersede it instead.",
    )


class Version(models.Model):
    """What holds in [valid_from, valid_to) once a second person has approved it; superseded, never edited.

    A proposal holds for nobody: it is approved, which ends its predecessor, or withdrawn.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    valid_from = models.DateTimeField()
    valid_to = models.DateTimeField(null=True, blank=True, help_text="First moment without it; empty = open.")
    created_by = models.CharField(max_length=200, editable=False)
    approved_by = models.CharField(max_length=200, blank=True, editable=False)
    withdrawn_by = models.CharField(max_length=200, blank=True, default="", editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True

    def validate_constraints(self, exclude: Collection[str] | None = None) -> None:
        """The two names are on no form, and what holds is checked by them all the same."""
        super().validate_constraints(exclude=set(exclude or ()) - {"created_by", "approved_by", "withdrawn_by"})

    @property
    def state(self) -> str:
        """proposed, withdrawn or approved."""
        if self.withdrawn_by:
            return "withdrawn"
        return "approved" if self.approved_by else "proposed"


def version_checks(name: str) -> list[models.BaseConstraint]:
    """What every table of versions checks, its constraints' names beginning with `name`."""
    return [
        models.CheckConstraint(name=f"{name}_period", condition=Q(valid_to=None) | Q(valid_to__gte=F("valid_from"))),
        models.CheckConstraint(
            name=f"{name}_two_people", condition=Q(approved_by="") | ~Q(approved_by=F("created_by"))
        ),
        models.CheckConstraint(name=f"{name}_approved_or_withdrawn", condition=Q(approved_by="") | Q(withdrawn_by="")),
    ]
