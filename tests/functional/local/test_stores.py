"""The local store servers serve what the platform asks of them."""

from __future__ import annotations

from urllib.parse import urlsplit

import boto3
import psycopg
import pytest
from redis.asyncio import Redis


class TestPostgres:
    def test_serves_its_owner_by_password(self, postgres_url: str) -> None:
        with psycopg.connect(postgres_url) as connection:
            row = connection.execute("SELECT current_user, current_setting('server_encoding')").fetchone()
        assert row == ("weir", "UTF8")

    def test_refuses_a_wrong_password(self, postgres_url: str) -> None:
        wrong = postgres_url.replace("only-for-tests", "guess")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong)

    def test_has_the_extension_for_price_periods(self, postgres_url: str) -> None:
        with psycopg.connect(postgres_url) as connection:
            found = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'btree_gist'")
            assert found.fetchone() == (1,)


class TestValkey:
    async def test_evicts_nothing(self, redis: Redis) -> None:
        assert await redis.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}

    async def test_is_empty_at_the_start_of_a_test(self, redis: Redis) -> None:
        assert await redis.dbsize() == 0
        await redis.set("left", "behind")

    async def test_is_empty_after_another_test_wrote(self, redis: Redis) -> None:
        assert await redis.get("left") is None


class TestS3:
    def test_returns_what_was_put(self, s3_url: str) -> None:
        parts = urlsplit(s3_url)
        client = boto3.client(
            "s3",
            endpoint_url=f"http://{parts.hostname}:{parts.port}",
            aws_access_key_id=parts.username,
            aws_secret_access_key=parts.password,
            region_name="us-east-1",
        )
        bucket = parts.path.strip("/")
        client.put_object(Bucket=bucket, Key="a/b.json", Body='{"é": 1}'.encode())
        assert client.get_object(Bucket=bucket, Key="a/b.json")["Body"].read() == '{"é": 1}'.encode()
