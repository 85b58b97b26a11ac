"""Commands of the billing room: meter, settler, usage_report."""
