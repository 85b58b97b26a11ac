"""/api/schema and /api/docs/: the management API described, for generators and for people. Views of `urls.py`.

Invariants: a query parameter that means nothing, and a form that is not served, are refused; every refusal is OpenAI's
error object in JSON, whatever the document itself is written in.
"""

from typing import Any, ClassVar

from django.http import HttpResponse
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from contracts.errors import NotFound
from tenants.api.errors import as_json
from tenants.api.words import unknown_parameter

FORMATS = ("json", "yaml")


class _Document(APIView):
    """What both share. `parameters` are the query parameters that a document has."""

    parameters: ClassVar[frozenset[str]] = frozenset()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Before the choice of a form. Raises InvalidRequest, NotFound, and NotAcceptable of DRF."""
        for name, values in request.query_params.lists():
            if name not in self.parameters:
                raise unknown_parameter(name)
            if name == "format" and (len(values) > 1 or values[0] not in FORMATS):
                raise NotFound(f"It is written in one of: {', '.join(FORMATS)}.", param=name)
        super().initial(request, *args, **kwargs)

    def options(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:  # type: ignore[override]
        """The methods of this path, in `Allow`: DRF's own answer has no page to be shown on."""
        return HttpResponse(status=204)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """An error is JSON here too: DRF would write it as it writes the document."""
        if isinstance(response, Response) and response.status_code >= 400:
            response = as_json(response)
        return super().finalize_response(request, response, *args, **kwargs)


class SchemaView(_Document, SpectacularAPIView):
    """The OpenAPI file, by `Accept` or `?format=`."""

    parameters = frozenset({"format"})


class DocsView(_Document, SpectacularSwaggerSplitView):
    """The page that reads it, and by `?script=` its script."""

    parameters = frozenset({"script"})
