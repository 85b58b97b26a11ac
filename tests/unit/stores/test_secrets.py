"""One root secret, one key for each purpose."""

import pytest

from stores.secrets import CACHE_SALT, DJANGO, KEY_PEPPER, cache_salt, derive

ROOT_SECRET = "x" * 32


class TestDerive:
    def test_each_purpose_has_a_key_of_its_own(self) -> None:
        keys = {derive(ROOT_SECRET, label) for label in (KEY_PEPPER, CACHE_SALT, DJANGO)}
        assert len(keys) == 3

    def test_is_hkdf_sha256(self) -> None:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        theirs = HKDF(algorithm=SHA256(), length=32, salt=b"weir/v1", info=b"purpose").derive(ROOT_SECRET.encode())
        assert derive(ROOT_SECRET, "purpose") == theirs

    def test_refuses_a_short_secret(self) -> None:
        with pytest.raises(ValueError, match="32 characters"):
            derive("short", DJANGO)


class TestCacheSalt:
    def test_differs_by_tenant_and_stays_the_same(self) -> None:
        key = derive(ROOT_SECRET, CACHE_SALT)
        assert cache_salt(key, tenant_id="a") == cache_salt(key, tenant_id="a") != cache_salt(key, tenant_id="b")
