"""`manage.py slo`: the platform's targets under a stated load, pass or miss, with the record of the run.

It is bench `slo` (infra/bench/slo.py): JSON lines on stdout with `--json`, record and table on stderr.
"""

from argparse import ArgumentParser

from controlplane.management.commands import bench


class Command(bench.Command):
    help = "Hold this machine against the targets: first token, time between tokens, tokens a second, conversations."

    def add_arguments(self, parser: ArgumentParser) -> None:
        bench.add_load_arguments(parser)
        parser.set_defaults(name="slo", list=False)
