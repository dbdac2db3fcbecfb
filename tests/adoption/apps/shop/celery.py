import os

import facts
from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
facts.supervised(app)
app.autodiscover_tasks()


def calls():
    from shop.orders.tasks import ship, touch

    return {
        "ship": ship.s(7),
        "delayed": touch.signature((1,), countdown=0.2),
        "in a queue": touch.signature((2,), queue="orders"),
    }
