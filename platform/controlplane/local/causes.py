"""What to do about a client's error: the words of five client libraries, read once. Pure; called by `doctor`.

Invariant: a sentence is given only for a sign that is in the error; anything else gets the general advice.
"""

from __future__ import annotations

# The first sign that is in the text decides; `{variable}` is the setting that names the server.
_CAUSES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (
            *("password authentication failed", "WRONGPASS", "NOAUTH", "invalid username-password", "no password"),
            *("Authentication failed", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "(403)"),
            *("Authentication required", "ACCESS_REFUSED", "NOPERM"),
        ),
        "it refuses the login: put the right user and password into {variable} (characters such as @ or / as %40, %2F)",
    ),
    (
        ("Connection refused", "Connect call failed", "Could not connect", "connection attempts failed"),
        "nothing listens there: start it, or set {variable} to the host and port where it listens",
    ),
    (
        ("Name or service not known", "failed to resolve", "nodename nor servname", "getaddrinfo", "name resolution"),
        "no machine has this name: correct the host in {variable}",
    ),
    (
        ("certificate", "SSL", "TLS"),
        "it does not speak TLS as {variable} says: correct the scheme, or trust its certificate authority",
    ),
    (("UNKNOWN_DATABASE", "Code: 81."), "create the database there, or name another one in {variable}"),
)
_DATABASE_SIGNS = ('database "', "does not exist")
GENERAL = "see that it runs and that {variable} names its host, port, user and password; locally: `make up`"


_DOWN = 1  # the row of `_CAUSES` for a server that does not run
_OURS = "nothing listens there: `make up` starts it (`make ps` says whether it runs)"


def find_fix(*, variable: str, said: str, is_ours: bool = False) -> str:
    """One sentence that says what to change, for what a client said. `is_ours`: `make up` starts this server."""
    if is_ours and any(sign in said for sign in _CAUSES[_DOWN][0]):
        return _OURS
    if all(sign in said for sign in _DATABASE_SIGNS):
        name = said.partition('database "')[2].partition('"')[0]
        return f"create it there (`createdb {name}`), or name another database in {variable}"
    for signs, fix in _CAUSES:
        if any(sign in said for sign in signs):
            return fix.format(variable=variable)
    return GENERAL.format(variable=variable)
