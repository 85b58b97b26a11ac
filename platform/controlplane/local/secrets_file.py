"""Local mode: the secrets of one state directory, made once. Called by the plan of `make up`.

Invariant: what was given out stays: the root secret that keys are hashed with, and the passwords that the
stores' data was made with, are never made anew while the file is there. Mode 0600.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass

from controlplane.local.paths import Layout, write_private


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSecrets:
    """Root secret of the platform, and the passwords of the local stores."""

    root: str
    postgres: str
    valkey: str
    s3_access_key: str
    s3_secret_key: str


def load_or_make(*, layout: Layout) -> LocalSecrets:
    """The secrets in the file; a new file with new ones when there is none. Raises ValueError for a broken file."""
    path = layout.secrets_file
    if path.exists():
        try:
            return LocalSecrets(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged; restore it, or `make clean` to begin with empty stores") from error
    made = LocalSecrets(
        root=secrets.token_hex(32),
        postgres=secrets.token_hex(16),
        valkey=secrets.token_hex(16),
        s3_access_key=secrets.token_hex(8),
        s3_secret_key=secrets.token_hex(20),
    )
    write_private(path, json.dumps(asdict(made), indent=2) + "\n")
    return made
