r"""Well-known formats of credentials. Each is the issuer's documented shape, with a bound on its length.

A leading `\b` keeps a format from matching inside another word; what follows is left open where the issuer does, so a
key glued to other text is still caught.
"""

from functools import cache

from contracts.text import shown
from safety.rules.port import RuleError
from safety.rules.regex import RegexAutomaton, compile_regex

FORMATS: dict[str, str] = {
    "aws_access_key": r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b",
    "anthropic_key": r"\bsk-ant-[A-Za-z0-9_-]{24,128}",
    "openai_key": r"\bsk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{20,200}",
    "github_token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,90})",
    "gitlab_token": r"\bglpat-[A-Za-z0-9_-]{20}",
    "google_api_key": r"\bAIza[A-Za-z0-9_-]{35}",
    "huggingface_token": r"\bhf_[A-Za-z0-9]{34}",
    "npm_token": r"\bnpm_[A-Za-z0-9]{36}",
    "private_key": r"-----BEGIN (?:[A-Z]{2,9} ){0,2}PRIVATE KEY-----[A-Za-z0-9+/=\s:,-]{0,900}",
    "pypi_token": r"\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,200}",
    "sendgrid_key": r"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",
    "slack_token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,120}",
    "stripe_key": r"\b(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,120}",
    "telegram_bot": r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}",
    "json_web_token": r"\beyJ[A-Za-z0-9_-]{10,300}\.eyJ[A-Za-z0-9_-]{10,500}\.[A-Za-z0-9_-]{16,200}",
    "weir_key": r"\bweir_[A-Za-z0-9]{38}",
}


def compile_secrets(*, formats: tuple[str, ...] = ()) -> tuple[RegexAutomaton, ...]:
    """Automata for the named formats, or for all of them. Raises RuleError for an unknown name."""
    unknown = sorted(set(formats) - set(FORMATS))
    if unknown:
        raise RuleError(f"unknown format {shown(unknown[0])}; there are {', '.join(FORMATS)}")
    chosen = formats or tuple(FORMATS)
    return tuple(automaton for name in chosen for automaton in _compiled(name))


@cache
def _compiled(name: str) -> tuple[RegexAutomaton, ...]:
    return compile_regex(pattern=FORMATS[name], match_chars_max=1_024)
