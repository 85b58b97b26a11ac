"""Credentials in their issuers' shapes, drawn by chance, and what is mistaken for them. Pure; they open nothing."""

from __future__ import annotations

import base64
import json
import random
import re
import string
from collections.abc import Mapping

_SETS = {
    "W": string.ascii_letters + string.digits,
    "U": string.ascii_letters + string.digits + "_-",
    "D": string.digits,
    "X": "0123456789abcdef",
    "B": string.ascii_uppercase + "234567",
    "S": string.ascii_letters + string.digits + "+/",
}
# `<U48>` is 48 characters of the set U. The first part names the issuer.
SHAPES: dict[str, tuple[str, ...]] = {
    "aws_access_key": ("AKIA<B16>", "ASIA<B16>"),
    "anthropic_key": ("sk-ant-api03-<U93>AA",),
    "openai_key": ("sk-proj-<U120>", "sk-<W48>", "sk-svcacct-<U100>"),
    "github_token": ("ghp_<W36>", "gho_<W36>", "ghs_<W36>", "github_pat_<W22>_<W59>"),
    "gitlab_token": ("glpat-<U20>",),
    "google_api_key": ("AIza<U35>",),
    "huggingface_token": ("hf_<W34>",),
    "npm_token": ("npm_<W36>",),
    "pypi_token": ("pypi-AgEIcHlwaS5vcmc<U120>",),
    "sendgrid_key": ("SG.<U22>.<U43>",),
    "slack_token": ("xoxb-<D12>-<D12>-<W24>", "xoxp-<D12>-<D12>-<D12>-<X32>"),
    "stripe_key": ("sk_live_<W24>", "rk_test_<W99>", "pk_live_<W24>"),
    "telegram_bot": ("<D9>:AA<U33>",),
    "weir_key": ("weir_<W38>",),
    "azure_storage_key": ("AccountKey=<S86>==",),
    "digitalocean_token": ("dop_v1_<X64>",),
    "discord_webhook": ("discord.com/api/webhooks/<D18>/<U68>",),
    "docker_token": ("dckr_pat_<U27>",),
    "databricks_token": ("dapi<X32>",),
    "google_oauth_secret": ("GOCSPX-<U28>",),
    "mailgun_key": ("key-<X32>",),
    "shopify_token": ("shpat_<X32>", "shpss_<X32>"),
    "slack_webhook": ("hooks.slack.com/services/T<B10>/B<B10>/<W24>",),
    "square_token": ("sq0atp-<U22>", "sq0csp-<U43>"),
    "twilio_key": ("SK<X32>",),
    "url_password": ("postgres://app:<W20>@db.internal:5432/app", "https://bot:<U16>@git.example.org/x.git"),
    "assigned_secret": ('api_key = "<W32>"', "password: <W20>", "client_secret=<U40>", "export DB_PASSWORD=<W24>"),
}
MADE = (*SHAPES, "json_web_token", "private_key")
_HARD = {
    "openai_key": ("sk-learn-compatible-estimators-and-pipelines", "task-management-for-distributed-teams"),
    "anthropic_key": ("sk-ant-farm", "sk-ant-..."),
    "twilio_key": ("SKU-20391-BLUE-LARGE", "SKILLS"),
    "mailgun_key": ("key-value-stores-compared", "key-00ff"),
    "stripe_key": ("sk_live_…", "pk_test_key"),
    "json_web_token": ("eyJhbGciOiJIUzI1NiJ9", "eyJ.eyJ.x"),
    "private_key": ("-----BEGIN PUBLIC KEY-----", "-----BEGIN CERTIFICATE-----"),
    "url_password": ("https://example.org:8080/a@b", "postgres://db.internal:5432/app", "mail me: ada@example.org"),
    "assigned_secret": (
        "password = your_password_goes_here_1",
        "token = process.env.SERVICE_TOKEN_2",
        "the secret is correcthorsebatterystaple",
        "password: ****************",
        "api_key = xxxxxxxxxxxxxxxxxxxx1",
        "token: the_one_that_you_were_given",
        "passwords: at least 12 characters",
    ),
}
_COMMON = ("<X40>", "<X64>", "<X8>-<X4>-<X4>-<X4>-<X12>", "data:image/png;base64,<S60>", "sha256:<X64>", "<D16>")
_DRAW = re.compile(r"<([A-Z])(\d+)>")
KEY_LINES = (3, 26, 50)  # of an elliptic curve's key, of RSA's with 2,048 bits and with 4,096
STEM_CHARS = 6  # of what follows an issuer's prefix in a value that was cut short


def secret(name: str, source: random.Random) -> str:
    """A value of the format `name`."""
    if name == "json_web_token":
        head, claims = ({"alg": "HS256", "typ": "JWT"}, {"sub": _drawn("<D10>", source), "iat": 1_700_000_000})
        return f"{_base64(head)}.{_base64(claims)}.{_drawn('<U43>', source)}"
    if name == "private_key":
        kind = source.choice(("RSA ", "EC ", "OPENSSH ", ""))
        lines = [_drawn("<S64>", source) for _ in range(source.choice(KEY_LINES))]
        line_end = source.choice(("\n", r"\n"))  # in a file, in a JSON document
        return line_end.join([f"-----BEGIN {kind}PRIVATE KEY-----", *lines, f"-----END {kind}PRIVATE KEY-----"])
    return _drawn(source.choice(SHAPES[name]), source)


def hidden(name: str, value: str) -> str:
    """What of a value must not be read: neither the host behind a password, nor the name before it."""
    if name == "url_password":
        return value.partition("@")[0]
    return re.split(r"[=:] ?", value)[-1].strip('"') if name == "assigned_secret" else value


def no_secret(name: str, source: random.Random) -> str:
    """What looks like one and is none: cut short, an issuer's prefix in prose, a digest, a placeholder."""
    choices = [*_COMMON, *_HARD.get(name, ())]
    if name in SHAPES and name not in ("assigned_secret", "url_password"):
        shape = source.choice(SHAPES[name])
        stem = shape.partition("<")[0]
        if stem:
            choices += [f"{stem}<W{STEM_CHARS}>", f"keys that begin with {stem} are refused"] * 3
    return _drawn(source.choice(choices), source)


def _drawn(shape: str, source: random.Random) -> str:
    return _DRAW.sub(lambda found: "".join(source.choices(_SETS[found[1]], k=int(found[2]))), shape)


def _base64(document: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")
