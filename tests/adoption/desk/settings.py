"""On SQLite, or on the PostgreSQL at DESK_POSTGRES, a directory with its socket; or on both."""

import os

SECRET_KEY = "of-the-tests"
ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
DEBUG = False
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_celery_beat",
    "supervisor.django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DESK_SQLITE", "desk.sqlite3"),
    }
}
if "DESK_POSTGRES" in os.environ:
    DATABASES["postgres"] = {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": os.environ["DESK_POSTGRES"],
        "NAME": "postgres",
        "USER": "desk",
    }
DATABASE_ROUTERS = ["tests.adoption.desk.router.Router"]
ROOT_URLCONF = "tests.adoption.desk.urls"
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
LOGGING_CONFIG = None

SUPERVISOR_APP = "tests.adoption.desk.celery"
SUPERVISOR_PAGE_URL = "https://jobs.example.org/"

CELERY_BROKER_URL = os.environ["DESK_REDIS"]
CELERY_RESULT_BACKEND = CELERY_BROKER_URL
