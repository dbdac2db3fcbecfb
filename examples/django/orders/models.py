from django.db import models


class Order(models.Model):
    article = models.CharField(max_length=50)
    shipped = models.BooleanField(default=False)
