"""Sign-in to the console: password, second factor, lock-out, session limits; and the way back from a lost factor."""

import re
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any

import pytest
import time_machine
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from axes.models import AccessAttempt
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test import Client
from django.utils import timezone
from pytest_django import Settings
from redis import Redis

from controlplane.signin.adapters import SecondFactorAdapter
from tenants.models import OutboxEvent

PASSWORD = "a long pass phrase"
LOGIN = "/admin/login/"


@pytest.fixture
def ada(db: None, wired: Redis) -> User:
    return User.objects.create_superuser("ada", password=PASSWORD)


def sign_in(client: Client, password: str = PASSWORD, username: str = "ada", to: str = "") -> Any:
    return client.post(LOGIN + (f"?next={to}" if to else ""), {"username": username, "password": password})


def code_of(secret: str, steps: int = 0) -> str:
    counter = int(timezone.now().timestamp()) // 30 + steps
    return format_hotp_value(hotp_value(secret, counter))


def enrol(client: Client) -> str:
    """Enrols an authenticator app; the secret that it would hold."""
    page = client.get("/admin/security/totp/activate/")
    found = re.search(r'id="authenticator_secret" type="text" value="([A-Z2-7]+)"', page.content.decode())
    assert found, page.content.decode()[-3000:]
    answer = client.post("/admin/security/totp/activate/", {"code": code_of(found[1])})
    assert answer.status_code == 302, answer.content.decode()[-3000:]
    return found[1]


class TestPassword:
    def test_opens_the_console_where_no_second_factor_is_asked_for(self, ada: User, client: Client) -> None:
        answer = sign_in(client, to="/admin/tenants/tenant/")
        assert (answer.status_code, answer["location"]) == (302, "/admin/tenants/tenant/")
        assert client.get("/admin/").status_code == 200

    @pytest.mark.parametrize(("username", "password"), [("ada", "wrong"), ("nobody", PASSWORD), ("", ""), ("a\0", "x")])
    def test_a_wrong_one_does_not(self, ada: User, client: Client, username: str, password: str) -> None:
        answer = sign_in(client, password, username)
        assert answer.status_code == 200
        assert client.get("/admin/").status_code == 302

    def test_is_told_apart_from_an_unknown_name_by_nothing_on_the_page(self, ada: User, client: Client) -> None:
        def said(answer: Any) -> list[str]:
            return re.findall(r"errornote[^>]*>\s*([^<]+?)\s*<", answer.content.decode())

        wrong, unknown = sign_in(client, "wrong"), sign_in(client, "wrong", "nobody")
        assert said(wrong) == said(unknown) != []

    def test_of_a_person_without_access_is_answered_like_a_wrong_one(self, ada: User, client: Client) -> None:
        User.objects.create_user("member", password=PASSWORD)
        assert "not correct" in sign_in(client, username="member").content.decode()

    def test_a_person_without_access_is_told_so_instead_of_sent_in_a_circle(self, ada: User, client: Client) -> None:
        client.force_login(User.objects.create_user("member", password=PASSWORD))
        assert client.get(LOGIN).status_code == 403

    @pytest.mark.parametrize(
        "to", ["https://evil.example/", "//evil.example/", "https:evil.example", "/\\evil.example"]
    )
    def test_never_leads_to_another_site(self, ada: User, client: Client, to: str) -> None:
        answer = client.post(LOGIN, {"username": "ada", "password": PASSWORD, "next": to})
        assert answer["location"] == "/admin/"

    def test_gets_a_new_session_id(self, ada: User, client: Client, settings: Settings) -> None:
        client.get(LOGIN)
        session = client.session
        session["planted"] = True
        session.save()
        client.cookies[settings.SESSION_COOKIE_NAME] = session.session_key
        sign_in(client)
        assert client.cookies[settings.SESSION_COOKIE_NAME].value != session.session_key

    @pytest.mark.parametrize("password", ["too-short", "1q2w3e4r5t6y", "7" * 20, "ada.lovelace.1"])
    def test_weak_ones_are_refused_when_an_operator_chooses_one(
        self, db: None, wired: Redis, client: Client, password: str
    ) -> None:
        client.force_login(User.objects.create_superuser("ada.lovelace", password=PASSWORD))
        fields = {"old_password": PASSWORD, "new_password1": password, "new_password2": password}
        assert client.post("/admin/password_change/", fields).status_code == 200
        assert User.objects.get().check_password(PASSWORD)

    def test_a_good_one_is_taken(self, ada: User, client: Client) -> None:
        sign_in(client)
        fields = {
            "old_password": PASSWORD,
            "new_password1": "four-odd-words-here",
            "new_password2": "four-odd-words-here",
        }
        assert client.post("/admin/password_change/", fields).status_code == 302
        assert User.objects.get().check_password("four-odd-words-here")


class TestLockOut:
    def test_five_wrong_passwords_lock_the_account_for_a_quarter_of_an_hour(self, ada: User, client: Client) -> None:
        answers = [sign_in(client, f"wrong {number}").status_code for number in range(5)]
        assert answers == [200, 200, 200, 200, 429]
        right = sign_in(client)
        assert (right.status_code, right["retry-after"]) == (429, "900")
        with time_machine.travel(timezone.now() + timezone.timedelta(minutes=16), tick=True):
            assert sign_in(client).status_code == 302

    def test_follows_the_name_and_not_the_address(self, ada: User, client: Client) -> None:
        for number in range(5):
            address = f"198.51.100.{number}"
            client.post(LOGIN, {"username": "ada", "password": "wrong"}, REMOTE_ADDR=address, HTTP_USER_AGENT=address)
        assert sign_in(client).status_code == 429

    def test_leaves_other_accounts_alone(self, ada: User, client: Client) -> None:
        User.objects.create_superuser("bob", password=PASSWORD)
        for _ in range(5):
            sign_in(client, "wrong")
        assert sign_in(client, username="bob").status_code == 302

    def test_a_right_answer_forgets_the_wrong_ones(self, ada: User, client: Client) -> None:
        for _ in range(4):
            sign_in(client, "wrong")
        sign_in(client)
        assert not AccessAttempt.objects.filter(username="ada").exists()

    def test_counts_wrong_codes_too(self, ada: User, client: Client) -> None:
        sign_in(client)
        secret = enrol(client)
        other = Client()
        assert sign_in(other)["location"] == "/admin/security/authenticate/"
        answers = [other.post("/admin/security/authenticate/", {"code": "000000"}).status_code for _ in range(5)]
        assert answers == [200, 200, 200, 200, 429]
        late = other.post("/admin/security/authenticate/", {"code": code_of(secret, 1)})
        assert late.status_code != 302
        assert other.get("/admin/").status_code == 302

    def test_tells_the_audit_trail(self, ada: User, client: Client) -> None:
        for _ in range(5):
            sign_in(client, "wrong")
        assert OutboxEvent.objects.filter(name="operator.locked_out", body__subject="user:ada").count() == 1

    @pytest.mark.django_db(transaction=True)
    def test_parallel_guesses_are_counted_like_guesses_in_a_row(self, wired: Redis) -> None:
        User.objects.create_superuser("ada", password=PASSWORD)

        def guess(number: int) -> int:
            try:
                return int(sign_in(Client(), f"wrong {number}").status_code)
            finally:
                connections.close_all()

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(guess, range(40)))
        assert max(AccessAttempt.objects.values_list("failures_since_start", flat=True)) <= 5


@pytest.mark.django_db(transaction=True)  # a factor counts when its transaction is committed
class TestSecondFactor:
    def test_once_enrolled_is_asked_for_at_every_sign_in(self, ada: User, client: Client) -> None:
        sign_in(client)
        secret = enrol(client)
        other = Client()
        assert sign_in(other, to="/admin/tenants/tenant/")["location"] == "/admin/security/authenticate/"
        assert other.get("/admin/").status_code == 302
        answer = other.post("/admin/security/authenticate/", {"code": code_of(secret, 1)})
        assert (answer.status_code, answer["location"]) == (302, "/admin/tenants/tenant/")
        assert other.get("/admin/").status_code == 200

    def test_who_enrols_goes_on_without_proving_it_again(self, ada: User, client: Client) -> None:
        sign_in(client)
        enrol(client)
        assert client.get("/admin/").status_code == 200

    def test_a_code_works_once(self, ada: User, client: Client) -> None:
        sign_in(client)
        code = code_of(enrol(client), 1)
        first, second = Client(), Client()
        for other in (first, second):
            sign_in(other)
        assert first.post("/admin/security/authenticate/", {"code": code}).status_code == 302
        assert second.post("/admin/security/authenticate/", {"code": code}).status_code == 200

    def test_a_recovery_code_stands_in_for_a_lost_phone_once(self, ada: User, client: Client) -> None:
        sign_in(client)
        enrol(client)
        codes = Authenticator.objects.get(type=Authenticator.Type.RECOVERY_CODES).wrap().get_unused_codes()
        assert len(codes) == 10
        first, second = Client(), Client()
        for other in (first, second):
            sign_in(other)
        assert first.post("/admin/security/authenticate/", {"code": codes[0]}).status_code == 302
        assert second.post("/admin/security/authenticate/", {"code": codes[0]}).status_code == 200

    def test_an_older_session_must_prove_it_too(self, ada: User, client: Client) -> None:
        older = Client()
        sign_in(older)
        sign_in(client)
        secret = enrol(client)
        answer = older.get("/admin/tenants/tenant/")
        assert answer["location"] == "/admin/security/reauthenticate/?next=%2Fadmin%2Ftenants%2Ftenant%2F"
        assert older.get("/admin/security/totp/deactivate/").status_code == 302
        proved = older.post(answer["location"], {"code": code_of(secret, 1), "next": "/admin/tenants/tenant/"})
        assert (proved.status_code, proved["location"]) == (302, "/admin/tenants/tenant/")
        assert older.get("/admin/tenants/tenant/").status_code == 200

    def test_is_kept_encrypted(self, ada: User, client: Client) -> None:
        sign_in(client)
        secret = enrol(client)
        with connection.cursor() as cursor:
            cursor.execute("SELECT data::text FROM mfa_authenticator")
            kept = " ".join(row[0] for row in cursor.fetchall())
            cursor.execute("SELECT session_data FROM django_session")
            assert len(cursor.fetchall()) == 1
        assert secret not in kept
        stored = Authenticator.objects.get(type=Authenticator.Type.TOTP).data["secret"]
        assert SecondFactorAdapter().decrypt(stored) == secret

    def test_is_shown_to_nobody_in_the_admin(self, ada: User, client: Client) -> None:
        sign_in(client)
        enrol(client)
        assert client.get("/admin/mfa/authenticator/").status_code == 404


@pytest.mark.django_db(transaction=True)  # a factor counts when its transaction is committed
class TestRequired:
    @pytest.fixture(autouse=True)
    def required(self, settings: Settings) -> None:
        settings.REQUIRE_SECOND_FACTOR = True

    def test_opens_nothing_but_the_enrolment_before_it(self, ada: User, client: Client) -> None:
        sign_in(client)
        for path in ("/admin/", "/admin/tenants/tenant/", "/admin/requests/", "/admin/password_change/"):
            answer = client.get(path)
            assert (answer.status_code, answer["location"]) == (302, "/admin/security/totp/activate/"), path
        enrol(client)
        assert client.get("/admin/").status_code == 200

    def test_programs_on_a_session_are_refused_in_the_api_s_words(self, ada: User, client: Client) -> None:
        sign_in(client)
        answer = client.get("/api/v1/tenants")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "second_factor_required")

    def test_is_asked_again_after_the_factor_was_removed(self, ada: User, client: Client) -> None:
        sign_in(client)
        enrol(client)
        client.post("/admin/security/confirm/", {"password": PASSWORD, "next": "/admin/security/totp/deactivate/"})
        client.post("/admin/security/totp/deactivate/")
        assert not Authenticator.objects.exists()
        assert client.get("/admin/")["location"] == "/admin/security/totp/activate/"


class TestSessions:
    def test_end_after_half_an_hour_of_silence(self, ada: User, client: Client) -> None:
        sign_in(client)
        with time_machine.travel(timezone.now() + timezone.timedelta(minutes=31), tick=True):
            assert client.get("/admin/").status_code == 302
            assert "idle" in client.get(LOGIN).content.decode()

    def test_end_after_twelve_hours_of_work(self, ada: User, client: Client) -> None:
        sign_in(client)
        began = timezone.now()
        for minutes in range(20, 12 * 60 + 1, 20):
            with time_machine.travel(began + timezone.timedelta(minutes=minutes), tick=True):
                answer = client.get("/admin/").status_code
                assert answer == (200 if minutes < 720 else answer), minutes
        with time_machine.travel(began + timezone.timedelta(minutes=721), tick=True):
            assert client.get("/admin/").status_code == 302

    def test_are_written_at_most_once_a_minute(
        self, ada: User, client: Client, django_assert_max_num_queries: Any
    ) -> None:
        sign_in(client)
        client.get("/admin/")
        with django_assert_max_num_queries(50) as captured:
            client.get("/admin/")
        assert not [query for query in captured.captured_queries if query["sql"].startswith("UPDATE")]

    def test_cookies_are_out_of_reach_of_scripts(self, ada: User, client: Client, settings: Settings) -> None:
        answer = sign_in(client)
        cookie = answer.cookies[settings.SESSION_COOKIE_NAME]
        assert (cookie["httponly"], cookie["samesite"], cookie["max-age"]) == (True, "Lax", "")


@pytest.mark.django_db(transaction=True)  # a factor counts when its transaction is committed
class TestOperatorCommand:
    def run(self, *arguments: str) -> str:
        out = StringIO()
        call_command("operator", *arguments, stdout=out)
        return out.getvalue()

    def test_unlocks_an_account(self, ada: User, client: Client) -> None:
        for _ in range(5):
            sign_in(client, "wrong")
        assert "wrong answers: 5" in self.run("ada")
        assert "wrong answers: 0" in self.run("ada", "--unlock")
        assert sign_in(client).status_code == 302

    def test_resets_a_lost_second_factor_and_ends_its_sessions(self, ada: User, client: Client) -> None:
        sign_in(client)
        enrol(client)
        told = self.run("ada", "--reset-second-factor")
        assert "second factor: none" in told
        assert "1 sessions ended" in told
        assert client.get("/admin/").status_code == 302
        assert sign_in(client)["location"] == "/admin/"
        names = set(OutboxEvent.objects.values_list("name", flat=True))
        assert {"operator.second_factor_added", "operator.second_factor_reset", "operator.signed_in"} <= names

    def test_says_that_there_is_no_such_account(self, ada: User) -> None:
        with pytest.raises(CommandError, match="no account"):
            self.run("eve")
