"""`manage.py engine_config ACTION POOL`: versions of a pool's engine configuration. docs/engine-configurations.md.

`add` FILE as a version; `check` one against vLLM's own parser; `activate` it; `show` it and what runs; `env` as the
worker's variables; `run` a worker with it. The version is the newest unless `--number` says another (`env` and `run`:
the active one).
"""

import getpass
import json
import os
import shlex
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from redis.exceptions import RedisError

from contracts.wire import WireError
from controlplane.engineconfig.cards import cards_of
from controlplane.engineconfig.document import ConfigurationRefused, environment_of, read_document
from controlplane.engineconfig.parser import ParserAway, ask_parser
from controlplane.engineconfig.running import compare
from controlplane.engineconfig.services import activate, active_of, add_version, record_verdict
from controlplane.env import ROOT
from controlplane.local.model import committed_directory
from controlplane.models import EngineConfig

ACTIONS = ("add", "list", "check", "activate", "show", "env", "run")


class Command(BaseCommand):
    help = "Engine configurations: add, check against vLLM's own parser, activate, compare with what runs, run."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("action", choices=ACTIONS)
        parser.add_argument("pool")
        parser.add_argument("file", nargs="?", type=Path, help="add: the document, as JSON")
        parser.add_argument("--number", type=int, help="the version meant")
        parser.add_argument("--note", default="", help="add: why")
        parser.add_argument("--python", type=Path, help="check: python of the engine's environment")
        parser.add_argument("--model-dir", type=Path, help="check: the model's directory")
        parser.add_argument("--json", action="store_true", help="show: one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, f"_{options['action']}")(options)
        except ConfigurationRefused as refused:
            raise CommandError(str(refused)) from refused

    def _add(self, options: dict[str, Any]) -> None:
        if options["file"] is None:
            raise CommandError("name the file of the document", returncode=2)
        try:
            raw = json.loads(options["file"].read_text())
        except (OSError, ValueError) as error:
            raise CommandError(f"{options['file']} cannot be read as JSON: {error}") from error
        if not isinstance(raw, dict):
            raise CommandError(f"{options['file']} is not an object")
        made = add_version(pool=options["pool"], raw=raw, note=options["note"], by=_me())
        self.stdout.write(f"{made} added, sha256 {made.digest}; `check` it next")

    def _list(self, options: dict[str, Any]) -> None:
        active = active_of(options["pool"])
        for config in EngineConfig.objects.filter(pool=options["pool"]):
            last = config.events.first()
            state = "active" if config == active else last.kind if last else "not checked"
            self.stdout.write(f"v{config.version}  {state:<11}  {config.created_at:%Y-%m-%d %H:%M}  {config.note}")

    def _check(self, options: dict[str, Any]) -> None:
        config = _chosen(options)
        python = options["python"] or Path(os.environ.get("WEIR_ENGINE_PYTHON", ""))
        if not python.is_file():
            raise CommandError("--python or WEIR_ENGINE_PYTHON must name the python of the engine's environment")
        folder = options["model_dir"] or committed_directory(root=ROOT)
        try:
            verdict = ask_parser(read_document(config.document), python=python, model_dir=folder)
        except ParserAway as error:
            raise CommandError(str(error)) from error
        record_verdict(config=config, verdict=verdict, by=_me())
        if not verdict.accepted:
            raise CommandError(f"vLLM's parser refuses {config}: {verdict.text}")
        self.stdout.write(f"vLLM {verdict.engine_version} accepts {config}; parsed, not started")

    def _activate(self, options: dict[str, Any]) -> None:
        config = _chosen(options)
        activate(config=config, by=_me())
        self.stdout.write(f"{config} is active: workers that start from now on run it")

    def _show(self, options: dict[str, Any]) -> None:
        config = _chosen(options)
        document = read_document(config.document)
        try:
            cards = cards_of(config.pool)
        except (RedisError, WireError) as error:
            raise CommandError(f"what runs cannot be read: {type(error).__name__}") from error
        shown = {
            "pool": config.pool,
            "version": config.version,
            "digest": config.digest,
            "active": active_of(config.pool) == config,
            "document": config.document,
            "running": [],
        }
        for card in cards:
            found = compare(document, card)
            apart = [
                {"field": one.field, "configured": one.configured, "running": one.running} for one in found.different
            ]
            shown["running"].append(
                {"model": card.model, "engine": f"{card.engine} {card.engine_version}", "different": apart}
                | {"same": list(found.same), "not_read_back": list(found.unread)}
            )
        self.stdout.write(json.dumps(shown, indent=None if options["json"] else 2))

    def _env(self, options: dict[str, Any]) -> None:
        for name, value in self._active_environment(options).items():
            self.stdout.write(f"{name}={shlex.quote(value)}")

    def _run(self, options: dict[str, Any]) -> None:
        """In this process's place, so that a supervisor's signals reach the worker."""
        environment = {**os.environ, **self._active_environment(options), "WEIR_POOL": options["pool"]}
        os.execve(sys.executable, [sys.executable, "-m", "workers"], environment)  # noqa: S606 - the worker itself

    def _active_environment(self, options: dict[str, Any]) -> dict[str, str]:
        config = _chosen(options) if options["number"] else active_of(options["pool"])
        if config is None:
            raise CommandError(f"the pool {options['pool']} has no active configuration")
        return environment_of(read_document(config.document))


def _chosen(options: dict[str, Any]) -> EngineConfig:
    """The version that was named, or the newest."""
    found = EngineConfig.objects.filter(pool=options["pool"])
    if options["number"]:
        found = found.filter(version=options["number"])
    config = found.order_by("-version").first()
    if config is None:
        raise CommandError(f"the pool {options['pool']} has no such configuration")
    return config


def _me() -> str:
    return f"cli:{getpass.getuser()}"
