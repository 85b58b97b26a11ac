"""Static files under ASGI: WhiteNoise's choice of file, encoding and headers, its body as bytes instead of a stream.

Second of the middlewares. Django serves a file's blocking iterator under ASGI by reading all of it at once, with
a warning for every file; what is read at once here needs no warning. Invariant: read in the middleware's own thread,
never on the event loop, and closed.
"""

from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]  # whitenoise has no types
    """Scripts, styles and fonts of the console and the API pages; the largest has a few megabytes."""

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> HttpResponse:
        """The answer with exactly the headers that WhiteNoise chose."""
        found = static_file.get_response(request.method, request.META)
        body = b""
        if found.file is not None:
            with found.file as file:
                body = file.read()
        answer = HttpResponse(body, status=int(found.status))
        del answer["Content-Type"]
        for name, value in found.headers:
            answer[name] = value
        return answer
