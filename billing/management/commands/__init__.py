"""Commands of the billing room: close_period, credit, meter, settler, usage_report."""
