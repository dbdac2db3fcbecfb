"""A Django project: settings in the namespace CELERY_, shared tasks found in its apps."""

from shop.celery import app as celery_app

__all__ = ("celery_app",)
