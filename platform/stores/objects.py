"""Objects (S3) by boto3: evaluation logs, batch files, invoices. Synchronous; async callers use a thread.

`S3_URL` = `http(s)://ACCESS:SECRET@host:port/bucket`; without keys, boto3's own chain of credentials is used.
Every call is bounded: connect 2 s, read 20 s, three tries.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CONNECT_SECONDS = 2
READ_SECONDS = 20
TRIES_MAX = 3
REGION = "us-east-1"


class ObjectStoreError(RuntimeError):
    """The object store did not do what was asked; trying later may help."""


class ObjectMissing(ObjectStoreError):
    """There is no object of that key."""


@dataclass(frozen=True)
class Objects:
    """One bucket."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str

    @classmethod
    def open(cls, url: str) -> "Objects":
        """Raises ValueError for a URL without host or bucket. Connects at the first call."""
        parts = urlsplit(url)
        bucket = parts.path.strip("/")
        if parts.scheme not in ("http", "https") or not parts.hostname or not bucket or "/" in bucket:
            raise ValueError("S3_URL must look like http://ACCESS:SECRET@host:port/bucket")
        port = f":{parts.port}" if parts.port else ""
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(
            endpoint=f"{parts.scheme}://{host}{port}",
            bucket=bucket,
            access_key=unquote(parts.username or ""),
            secret_key=unquote(parts.password or ""),
        )

    @cached_property
    def _client(self) -> "S3Client":
        config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            retries={"total_max_attempts": TRIES_MAX, "mode": "standard"},
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=self.access_key or None,
            aws_secret_access_key=self.secret_key or None,
            config=config,
        )

    def put(self, *, key: str, body: bytes, content_type: str) -> None:
        """Write or replace an object. Raises ObjectStoreError."""
        try:
            self._client.put_object(Bucket=self.bucket, Key=key, Body=body, ContentType=content_type)
        except (BotoCoreError, ClientError) as error:
            raise ObjectStoreError(f"the object cannot be written: {type(error).__name__}") from error

    def get(self, *, key: str) -> bytes:
        """The object's bytes. Raises ObjectMissing, ObjectStoreError."""
        try:
            return self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        except self._client.exceptions.NoSuchKey as error:
            raise ObjectMissing(key) from error
        except (BotoCoreError, ClientError) as error:
            raise ObjectStoreError(f"the object cannot be read: {type(error).__name__}") from error

    def keys(self, *, prefix: str) -> Iterator[str]:
        """Keys that begin with `prefix`, in order, a page of 1,000 at a time. Raises ObjectStoreError."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        try:
            for page in pages:
                yield from (each["Key"] for each in page.get("Contents", ()))
        except (BotoCoreError, ClientError) as error:
            raise ObjectStoreError(f"the objects cannot be listed: {type(error).__name__}") from error

    def check(self) -> None:
        """Whether the bucket is there and may be used. Raises ObjectStoreError."""
        try:
            self._client.head_bucket(Bucket=self.bucket)
        except (BotoCoreError, ClientError) as error:
            raise ObjectStoreError(f"bucket {self.bucket} cannot be used: {type(error).__name__}") from error
