"""A configuration held against vLLM's own argument parser, in the engine's environment. Called by the command.

No engine is started and no GPU is needed to parse; vLLM is imported, which takes ten seconds. Invariant: what is
"accepted" was parsed by the vLLM whose version is told, as the very command line that a worker would run.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.engineconfig.document import EngineDocument, environment_of
from workers.engines.settings import EngineSettings
from workers.engines.vllm import vllm_command

PARSE_SECONDS = 180
TEXT_MAX = 2_000
_PARSE = """
import importlib.metadata, json, sys
import vllm
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
parsed = parser.parse_args(json.loads(sys.argv[1]))
AsyncEngineArgs.from_cli_args(parsed)
print("PARSED" + json.dumps({"version": vllm.__version__, "args": {k: str(v) for k, v in vars(parsed).items()}}))
"""


class ParserAway(RuntimeError):
    """vLLM's parser could not be asked; nothing is known of the configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What vLLM's parser said. `text` is its complaint, or the flags that it understood apart from its defaults."""

    accepted: bool
    engine_version: str
    text: str
    parsed: Mapping[str, str]


def settings_of(document: EngineDocument, *, python: str) -> EngineSettings:
    """The worker's settings, read as the worker reads them."""
    prefix = len("WEIR_ENGINE_")
    given = {name[prefix:].lower(): value for name, value in environment_of(document).items()}
    return EngineSettings.model_validate({**given, "python": python})


def ask_parser(document: EngineDocument, *, python: Path, model_dir: Path) -> Verdict:
    """Raises ParserAway when the environment does not answer."""
    with tempfile.TemporaryDirectory() as home:
        command = vllm_command(
            engine=settings_of(document, python=str(python)),
            model_dir=model_dir,
            served="model",
            uds=Path("engine.sock"),
        )
        try:
            done = subprocess.run(  # noqa: S603 - the command is ours
                [str(python), "-c", _PARSE, json.dumps(command.argv[3:])],
                capture_output=True,
                text=True,
                timeout=PARSE_SECONDS,
                check=False,
                env={"PATH": "/usr/bin:/bin", "HOME": home, **command.environment},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ParserAway(f"the engine's environment does not answer: {type(error).__name__}") from error
    if done.returncode == 0 and "PARSED" in done.stdout:
        found = json.loads(done.stdout.rpartition("PARSED")[2])
        return Verdict(accepted=True, engine_version=found["version"], text="", parsed=found["args"])
    said = done.stderr.strip().splitlines()
    complaint = next((line for line in reversed(said) if "error:" in line or "Error" in line), "")
    if not complaint or "ModuleNotFoundError" in complaint or "ImportError" in complaint:
        raise ParserAway(f"the engine's environment failed: {(said or ['no word'])[-1][:TEXT_MAX]}")
    return Verdict(accepted=False, engine_version="", text=complaint[:TEXT_MAX], parsed={})
