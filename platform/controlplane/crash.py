"""What a crash report may show of the settings. Named in `settings.DEFAULT_EXCEPTION_REPORTER_FILTER`."""

import re

from django.views.debug import SafeExceptionReporterFilter


class SafeReports(SafeExceptionReporterFilter):
    """Hides addresses of stores too: their passwords stand in them."""

    hidden_settings = re.compile(
        "API|AUTH|TOKEN|KEY|SECRET|PASS|SIGNATURE|COOKIE|SESSION|URL|CHANNEL|DATABASES|ENV", re.IGNORECASE
    )
