import facts
from celery import shared_task
from django.contrib.auth import get_user_model


@shared_task(bind=True)
def ship(self, number):
    return {**facts.seen(self), "users": get_user_model().__name__}


@shared_task(bind=True, ignore_result=False, rate_limit="100/m")
def touch(self, number):
    return facts.seen(self)
