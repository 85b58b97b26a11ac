"""Versions of engine configurations in real PostgreSQL: who may become active, what never changes, what runs."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.test import Client
from redis import Redis

from contracts.names import MODELS
from contracts.wire import encode
from controlplane.engineconfig.document import ConfigurationRefused
from controlplane.engineconfig.parser import Verdict
from controlplane.engineconfig.services import activate, active_of, add_version, record_verdict
from controlplane.models import EngineConfig
from tests.unit.engineconfig.test_document import CARD, SMALL

pytestmark = pytest.mark.django_db

YES = Verdict(accepted=True, engine_version="0.32.0", text="", parsed={})
NO = Verdict(accepted=False, engine_version="", text="error: unrecognized arguments: --x", parsed={})


def add(**changes: Any) -> EngineConfig:
    return add_version(pool="p", raw={**SMALL, **changes}, by="me")


class TestVersions:
    def test_count_from_one_in_each_pool(self) -> None:
        add()
        assert add(max_num_seqs=8).version == 2
        assert add_version(pool="q", raw=SMALL, by="me").version == 1

    def test_are_not_made_of_what_the_newest_says(self) -> None:
        add()
        with pytest.raises(ConfigurationRefused, match="says the same"):
            add(max_num_seqs=64)

    def test_are_never_changed_nor_deleted(self) -> None:
        config = add()
        for change in (lambda: EngineConfig.objects.update(note="x"), lambda: config.delete()):
            with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
                change()


class TestActivation:
    def test_needs_a_parser_that_accepts(self) -> None:
        config = add()
        with pytest.raises(ConfigurationRefused, match="nobody asked"):
            activate(config=config, by="me")
        record_verdict(config=config, verdict=NO, by="me")
        with pytest.raises(ConfigurationRefused, match="unrecognized arguments"):
            activate(config=config, by="me")
        record_verdict(config=config, verdict=YES, by="me")
        assert activate(config=config, by="me").engine_version == "0.32.0"
        assert active_of("p") == config

    def test_goes_back_to_an_earlier_version(self) -> None:
        first, second = add(), add(max_num_seqs=8)
        for config in (first, second):
            record_verdict(config=config, verdict=YES, by="me")
            activate(config=config, by="me")
        assert active_of("p") == second
        activate(config=first, by="me")
        assert active_of("p") == first
        assert active_of("other") is None


class TestCommand:
    def test_adds_lists_shows_what_runs_and_tells_the_worker_s_variables(self, wired: Redis, tmp_path: Path) -> None:
        file = tmp_path / "c.json"
        file.write_text(json.dumps({**SMALL, "max_model_len": 4_096}))
        out = StringIO()
        call_command("engine_config", "add", "p", str(file), "--note", "first", stdout=out)
        wired.hset(MODELS, "m", encode(CARD))
        out = StringIO()
        call_command("engine_config", "show", "p", "--json", stdout=out)
        shown = json.loads(out.getvalue())
        assert (shown["version"], shown["active"]) == (1, False)
        [running] = shown["running"]
        assert running["different"] == [{"field": "max_model_len", "configured": "4096", "running": "8192"}]
        with pytest.raises(CommandError, match="no active"):
            call_command("engine_config", "env", "p")
        config = EngineConfig.objects.get()
        record_verdict(config=config, verdict=YES, by="me")
        call_command("engine_config", "activate", "p", stdout=StringIO())
        out = StringIO()
        call_command("engine_config", "env", "p", stdout=out)
        assert "WEIR_ENGINE_MAX_MODEL_LEN=4096\n" in out.getvalue()
        out = StringIO()
        call_command("engine_config", "list", "p", stdout=out)
        assert "v1  active" in out.getvalue()


class TestConsole:
    def test_adds_a_version_and_shows_it_beside_what_runs(self, wired: Redis) -> None:
        wired.hset(MODELS, "m", encode(CARD))
        client = Client()
        client.force_login(User.objects.create_superuser("root"))
        place = "/admin/controlplane/engineconfig/"
        wrong = {"pool": "p", "document": json.dumps({**SMALL, "unheard": 1}), "note": ""}
        inline = {"events-TOTAL_FORMS": "0", "events-INITIAL_FORMS": "0"}
        answer = client.post(f"{place}add/", {**wrong, **inline})
        assert (answer.status_code, EngineConfig.objects.count()) == (200, 0)
        assert b"unheard" in answer.content
        answer = client.post(f"{place}add/", {**wrong, **inline, "document": json.dumps(SMALL)})
        assert answer.status_code == 302, answer.content[:2000]
        config = EngineConfig.objects.get()
        assert (config.version, config.created_by) == (1, "user:root")
        page = client.get(f"{place}{config.pk}/change/").content.decode()
        assert "no difference. Read back and the same: repository, revision" in page
        assert client.get(place).status_code == 200
