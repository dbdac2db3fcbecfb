from django.db import transaction
from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from orders.models import Order
from supervisor.features.on_commit.django import trigger_on_commit


@csrf_exempt  # for curl; a form of yours has a token
@require_POST
@transaction.atomic
def order(request, article):
    """The run starts once the order is committed; a rollback starts none."""
    placed = Order.objects.create(article=article)
    run = trigger_on_commit("ship-orders")
    return JsonResponse({"order": placed.pk, "run": run}, status=202)
