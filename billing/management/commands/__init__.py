"""Commands of the billing room: close_period, credit, invoice, meter, settler, usage_report."""
