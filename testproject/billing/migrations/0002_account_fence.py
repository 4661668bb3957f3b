from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="account",
            name="fence",
            field=models.BigIntegerField(db_default=0, default=0, editable=False, verbose_name="fence"),
        ),
    ]
