r"""Well-known formats of credentials. Each is the issuer's documented shape, with a bound on its length.

A leading `\b` keeps a format from matching inside another word; what follows is left open where the issuer does, so a
key glued to other text is still caught.
"""

import math
import re
from collections import Counter
from collections.abc import Callable
from functools import cache

from contracts.text import shown
from safety.rules.port import RuleError
from safety.rules.regex import RegexAutomaton, compile_regex

ENTROPY_BITS_MIN = 3.0  # a character; English runs at 2 to 2.6 in texts as short, random letters and digits above 3.3
VALUE_CHARS_MIN = 16
VALUE_CHARS_JUDGED = 128  # of a longer one; it is asked again for each character, so its cost has a bound
# No issuer's shape: a name that says it is a secret, and a value that looks drawn by chance.
ASSIGNED = (
    r"(?i)(?:(?:api|access|private)[_. -]?key|secret|token|passw(?:or)?d|passphrase|pwd|credential|authorization)s?"
    r"[\"']?(?: {0,3}(?::=|=>|[:=]) {0,3}| is )(?:bearer |basic )?[\"']?[A-Za-z0-9+/=_.~!@$%^&*-]{16,}"
)
_NAME = re.compile(r"(?i)^.*?(?::=|=>|[:=]| is ) {0,3}(?:bearer |basic )?[\"']?")
_DIGIT = re.compile("[0-9]")
_LETTER = re.compile("[A-Za-z]")
_PLACEHOLDERS = (
    "your",
    "example",
    "xxxx",
    "placeholder",
    "changeme",
    "12345678",
    "abcdefgh",
    "process.env",
    "os.environ",
)


def is_random_value(text: str) -> bool:
    """Does an assignment's value look drawn by chance? Letters and digits, Shannon's entropy, no known placeholder."""
    value = _NAME.sub("", text, count=1)[:VALUE_CHARS_JUDGED]
    if not (_DIGIT.search(value) and _LETTER.search(value)):
        return False
    if len(value) < VALUE_CHARS_MIN or any(word in value.lower() for word in _PLACEHOLDERS):
        return False
    counts = Counter(value).values()
    entropy = -sum(count / len(value) * math.log2(count / len(value)) for count in counts)
    return entropy >= ENTROPY_BITS_MIN


FORMATS: dict[str, str] = {
    "aws_access_key": r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b",
    "anthropic_key": r"\bsk-ant-[A-Za-z0-9_-]{24,128}",
    "openai_key": r"\bsk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{20,200}",
    "github_token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,90})",
    "gitlab_token": r"\bglpat-[A-Za-z0-9_-]{20}",
    "google_api_key": r"\bAIza[A-Za-z0-9_-]{35}",
    "huggingface_token": r"\bhf_[A-Za-z0-9]{34}",
    "npm_token": r"\bnpm_[A-Za-z0-9]{36}",
    "private_key": r"-----BEGIN (?:[A-Z]{2,9} ){0,2}PRIVATE KEY-----"
    r"(?:[A-Za-z0-9+/=\s:,]|-[A-Za-z0-9]|\\{1,4}[nrt/])*(?:-----END (?:[A-Z]{2,9} ){0,2}PRIVATE KEY-----)?",
    "pypi_token": r"\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,200}",
    "sendgrid_key": r"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",
    "slack_token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,120}",
    "stripe_key": r"\b(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,120}",
    "telegram_bot": r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}",
    "json_web_token": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{16,}",
    "weir_key": r"\bweir_[A-Za-z0-9]{38}",
    "azure_storage_key": r"(?i)\bAccountKey=[A-Za-z0-9+/]{86}==",
    "digitalocean_token": r"\bdo[opr]_v1_[a-f0-9]{64}",
    "discord_webhook": r"\bdiscord(?:app)?\.com/api/webhooks/[0-9]{17,20}/[A-Za-z0-9_-]{60,80}",
    "docker_token": r"\bdckr_pat_[A-Za-z0-9_-]{27}",
    "databricks_token": r"\bdapi[a-f0-9]{32}",
    "google_oauth_secret": r"\bGOCSPX-[A-Za-z0-9_-]{28}",
    "mailgun_key": r"\bkey-[a-f0-9]{32}\b",
    "shopify_token": r"\bshp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}",
    "slack_webhook": r"\bhooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/]{40,80}",
    "square_token": r"\b(?:sq0atp-[A-Za-z0-9_-]{22}|sq0csp-[A-Za-z0-9_-]{43})",
    "twilio_key": r"\bSK[a-f0-9]{32}\b",
    "url_password": r"\b(?:https?|ftps?|postgres(?:ql)?|mysql|mariadb|mongodb(?:\+srv)?|rediss?|amqps?|smtps?|ssh|git)"
    r"://[A-Za-z0-9._%+-]{0,64}:[^\s@/:\"'<>]{3,128}@[A-Za-z0-9]",
    "assigned_secret": ASSIGNED,
}
BY_NAME = ("assigned_secret", "url_password")  # nobody's own shape: found where a policy names them
ISSUED = tuple(name for name in FORMATS if name not in BY_NAME)  # what a rule without formats looks for
# Without a bound of their own: a private key has 1,700 to 6,500 characters, a token's claims what its issuer writes.
CHARS_MAX = {"assigned_secret": 1_024, "json_web_token": 8_192, "private_key": 8_192}
_CHECKS: dict[str, Callable[[str], bool]] = {"assigned_secret": is_random_value}


def compile_secrets(*, formats: tuple[str, ...] = ()) -> tuple[RegexAutomaton, ...]:
    """Automata for the named formats, or for the ISSUED ones. Raises RuleError for an unknown name."""
    unknown = sorted(set(formats) - set(FORMATS))
    if unknown:
        raise RuleError(f"unknown format {shown(unknown[0])}; there are {', '.join(FORMATS)}")
    return tuple(automaton for name in formats or ISSUED for automaton in _compiled(name))


@cache
def _compiled(name: str) -> tuple[RegexAutomaton, ...]:
    return compile_regex(pattern=FORMATS[name], match_chars_max=CHARS_MAX.get(name), check=_CHECKS.get(name))
