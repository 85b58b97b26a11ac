"""`python -m workers [--pool NAME]`: one worker process. Settings come from the environment (`config`)."""

import argparse
import asyncio
import sys

import structlog
import uvloop
from pydantic import ValidationError

from stores.redis import open_redis
from stores.system import SystemClock
from workers.config import WorkerSettings
from workers.drain import stop_on_signals
from workers.engines.base import EngineError
from workers.engines.settings import EngineSettings
from workers.wiring import build_worker

SWITCH_SECONDS = (
    0.001  # how long a thread that writes a log may hold Python's lock from the loop: a fifth of the default
)
CONFIG_ERROR = 78  # sysexits.h EX_CONFIG: starting again will not help

log = structlog.get_logger(__name__)


async def serve(settings: WorkerSettings, engine: EngineSettings) -> None:
    """Run until SIGTERM or SIGINT, then drain. Raises ValueError, EngineError (in a group)."""
    redis = open_redis(settings.redis_url)
    stop = asyncio.Event()
    stop_on_signals(stop)
    try:
        worker = build_worker(settings=settings, engine=engine, redis=redis, clock=SystemClock())
        await worker.run(stop)
    finally:
        await redis.aclose(close_connection_pool=True)


def main() -> int:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    sys.setswitchinterval(SWITCH_SECONDS)
    parser = argparse.ArgumentParser(prog="workers", description="Claims requests of one pool and runs its engine.")
    parser.add_argument("--pool", help="instead of WEIR_POOL")
    options = parser.parse_args()
    try:
        settings = WorkerSettings(**({"pool": options.pool} if options.pool else {}))
        uvloop.run(serve(settings, EngineSettings()))
    except (ValidationError, ValueError) as error:
        log.error("settings_refused", error=str(error))  # noqa: TRY400 - a sentence for the operator, no traceback
        return CONFIG_ERROR
    except ExceptionGroup as errors:
        if errors.split(EngineError)[1] is not None:
            raise
        log.error("engine_gave_up", error=str(_first(errors)))  # noqa: TRY400 - as above
        return 1
    return 0


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    sys.exit(main())
