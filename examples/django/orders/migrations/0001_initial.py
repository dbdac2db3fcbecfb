from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = (
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("article", models.CharField(max_length=50)),
                ("shipped", models.BooleanField(default=False)),
            ],
        ),
    )
