"""Django settings: one file, fed by `controlplane.env`. Production is a switch (WEIR_PRODUCTION=1)."""

from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from csp.constants import NONCE, NONE, SELF, UNSAFE_EVAL, UNSAFE_INLINE
from django.templatetags.static import static

from controlplane.env import ROOT, environment
from controlplane.hosts import own_hosts
from stores.secrets import DJANGO, derive

ENV = environment()

SECRET_KEY = derive(ENV.secret.get_secret_value(), DJANGO).hex()
SECRET_KEY_FALLBACKS = [derive(root, DJANGO).hex() for root in ENV.old_secrets]
DEBUG = ENV.debug
ALLOWED_HOSTS = [host.strip() for host in ENV.allowed_hosts.split(",") if host.strip()]
if not ALLOWED_HOSTS and not ENV.production:
    ALLOWED_HOSTS = own_hosts(listens_on=ENV.host)
ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
APPEND_SLASH = False  # a redirected POST loses its body

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.humanize",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "channels",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "axes",
    "controlplane.apps.ControlPlaneConfig",
    "tenants.apps.TenantsConfig",
    "tenants.webhooks.apps.WebhooksConfig",
    "safety.apps.SafetyConfig",
    "billing.apps.BillingConfig",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "controlplane.static_files.StaticFiles",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "controlplane.signin.sessions.SessionLimits",
    "allauth.account.middleware.AccountMiddleware",
    "controlplane.signin.second_factor.SecondFactor",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",  # last: it turns a lock-out into its page
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "platform" / "controlplane" / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "controlplane.signin.context.console",
            ],
        },
    }
]


def database_from_url(url: str) -> dict[str, Any]:
    """Django's settings of one PostgreSQL URL; its query (`?sslmode=verify-full`) goes to libpq, as everywhere else.

    Raises ValueError for another scheme.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ValueError(f"DATABASE_URL must begin with postgresql://, not {parts.scheme}://")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {"connect_timeout": 5, **dict(parse_qsl(parts.query))},
    }


DATABASES = {"default": database_from_url(ENV.database_url.get_secret_value())}

# In PostgreSQL, so that a one-time code is used once whichever gateway takes it, and sign-in needs no Redis.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.db.DatabaseCache",
        "LOCATION": "controlplane_cache",
        "OPTIONS": {"MAX_ENTRIES": 10_000},  # far above what signs in at once: no mark of a used code is dropped early
    }
}

# Sign-in (controlplane.signin)
_VALIDATORS = "django.contrib.auth.password_validation"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"{_VALIDATORS}.UserAttributeSimilarityValidator"},
    {"NAME": f"{_VALIDATORS}.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": f"{_VALIDATORS}.CommonPasswordValidator"},
    {"NAME": f"{_VALIDATORS}.NumericPasswordValidator"},
]
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
LOGIN_URL, LOGIN_REDIRECT_URL = "account_login", "admin:index"
REQUIRE_SECOND_FACTOR = ENV.second_factor_required
SESSION_IDLE_SECONDS, SESSION_LIFE_SECONDS = 30 * 60, 12 * 3600
SESSION_COOKIE_AGE = SESSION_LIFE_SECONDS
SESSION_EXPIRE_AT_BROWSER_CLOSE = True

ACCOUNT_ADAPTER = "controlplane.signin.adapters.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]  # nobody signs up; allauth checks that sign-in matches it
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_SESSION_REMEMBER = False
ACCOUNT_RATE_LIMITS = {"login": None, "login_failed": None}  # django-axes counts, and says who is locked
MFA_ADAPTER = "controlplane.signin.adapters.SecondFactorAdapter"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_FORMS = {
    "authenticate": "controlplane.signin.forms.SecondFactorForm",
    "reauthenticate": "controlplane.signin.forms.StepUpForm",
}
MFA_TOTP_ISSUER = "Weir"
MFA_TOTP_TOLERANCE = 1  # the code before and after: phones' clocks differ
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = not ENV.production

# Five wrong passwords or codes lock an account for a quarter of an hour, wherever they come from.
AXES_FAILURE_LIMIT = 5
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_LOCKOUT_PARAMETERS = ["username"]
AXES_RESET_ON_SUCCESS = True
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_LOCKOUT_CALLABLE = "controlplane.signin.views.locked_out"
AXES_ENABLE_ADMIN = False  # controlplane.admin shows its log to read
AXES_VERBOSE = False
# W006 fears a limit that a changed browser or cookie gets around; the account's name alone cannot be changed.
SILENCED_SYSTEM_CHECKS = ["axes.W006"]

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
USE_I18N = False
FORMAT_MODULE_PATH = ["controlplane.formats"]  # a language's own formats stand before settings

STATIC_URL = "/static/"
STATIC_ROOT = ENV.home / "static" if ENV.production else None  # elsewhere served from where they lie
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG

SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = ENV.production
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
# A browser takes a `__Host-` cookie only over TLS, from this very host, for all its paths.
SESSION_COOKIE_NAME = "__Host-session" if ENV.production else "sessionid"
CSRF_COOKIE_NAME = "__Host-csrf" if ENV.production else "csrftoken"
SECURE_HSTS_SECONDS = 31_536_000 if ENV.production else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = ENV.production
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if ENV.production else None
X_FRAME_OPTIONS = "DENY"
CSRF_FAILURE_VIEW = "controlplane.views.csrf_failure"
SECURE_REFERRER_POLICY = "same-origin"
# No inline script runs, also where a page would be tricked into holding one. The console's toolkit (django-unfold)
# evaluates expressions from its own templates' attributes, which needs 'unsafe-eval' (docs/decisions/0009), and sets
# style attributes.
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF, NONCE, UNSAFE_EVAL],
        "style-src": [SELF, UNSAFE_INLINE],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "manifest-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
    }
}

REST_FRAMEWORK = {
    "DEFAULT_SCHEMA_CLASS": "tenants.api.schema.Operation",
    "EXCEPTION_HANDLER": "tenants.api.errors.openai_error",
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_PAGINATION_CLASS": "rest_framework.pagination.CursorPagination",
    "PAGE_SIZE": 50,
}
SPECTACULAR_SETTINGS = {
    "ENUM_NAME_OVERRIDES": {
        "DocumentStateEnum": "billing.models.DocumentState",
        "MetricEnum": "tenants.models.METRICS",
        "SettableMetricEnum": "tenants.models.SETTABLE",
        "RuleActionEnum": "controlplane.policies.shapes.ACTIONS",
        "TrialActionEnum": "controlplane.policies.shapes.RESULTS",
    },
    "TITLE": "Weir management API",
    "DESCRIPTION": "The inference API is described at [/api/docs/inference/](/api/docs/inference/).",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "tenants.api.schema.complete",
    ],
    "SWAGGER_UI_DIST": "SIDECAR",  # the docs page loads nothing from elsewhere
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
}

CELERY_BROKER_URL = ENV.broker
CELERY_TASK_IGNORE_RESULT = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TASK_TIME_LIMIT = 300
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 3600, "socket_timeout": 30, "socket_keepalive": True}
CELERY_TIMEZONE = "UTC"

UNFOLD = {
    "SITE_TITLE": "Weir",
    "SITE_HEADER": "Weir",
    "SITE_SYMBOL": "water",
    "SITE_SUBHEADER": "Open-weight models, metered",
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "SITE_URL": None,  # there is no site but the console: its root leads back here
    "SIDEBAR": {"navigation": "controlplane.navigation.sidebar"},
    "ACCOUNT": {"navigation": "controlplane.navigation.account_links"},
    "DASHBOARD_CALLBACK": "controlplane.pages.home.dashboard",
    "STYLES": [lambda request: static("controlplane/console.css")],
    "SCRIPTS": [lambda request: static("controlplane/console.js")],
}

DEFAULT_EXCEPTION_REPORTER_FILTER = "controlplane.crash.SafeReports"
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"()": "controlplane.redaction.Redacting", "format": "%(asctime)s %(levelname)s %(name)s %(message)s"}
    },
    "filters": {
        "client_mistakes": {"()": "controlplane.log_filters.ClientMistakes"},
        "redacted": {"()": "controlplane.redaction.Redacted"},
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["client_mistakes"]}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    # One line a second of «due», «received», «succeeded» hides what matters.
    "loggers": {
        name: {"level": "WARNING"}
        for name in ("celery.beat", "celery.worker.strategy", "celery.app.trace", "httpx", "axes")
    }
    | {"clickhouse_driver": {"level": "CRITICAL"}}  # every failure is raised too, and said by who asked
    | {"uvicorn.error": {"filters": ["redacted"]}},
}
