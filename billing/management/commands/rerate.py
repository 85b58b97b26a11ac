"""`manage.py rerate`: a closed month under a price list that is still a draft, tenant by tenant."""

import csv
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.invoicing.whatif import rerate_month
from billing.management.arguments import read_month
from billing.models import PriceList
from contracts.money import text_from_nano


class Command(BaseCommand):
    """Changes nothing. Prices of the list count whether somebody has approved them or not."""

    help = "What if: net amounts of a closed month under a (draft) price list, as CSV."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--month", required=True, help="2026-11")
        parser.add_argument("--list", dest="name", required=True, help="name of the price list")

    def handle(self, *args: Any, **options: Any) -> None:
        month = read_month(options["month"], option="--month")
        price_list = PriceList.objects.filter(name=options["name"]).first()
        if price_list is None:
            raise CommandError(f"no price list is called {options['name']}")
        writer = csv.writer(self.stdout, lineterminator="\n")
        writer.writerow(["tenant", "month", "currency", "net", "net_under_the_list", "difference"])
        for row in rerate_month(month=month, price_list=price_list):
            amounts = (row.net_nano, row.other_nano, row.difference_nano)
            writer.writerow([row.tenant, row.month, row.currency, *map(text_from_nano, amounts)])
