"""`python -m workers.engines.simulated --uds PATH --model FOLDER --served-model-name NAME`."""

import argparse
from pathlib import Path

import uvicorn

from stores.system import SystemClock
from workers.engines.simulated.app import SimulatedApp
from workers.engines.simulated.engine import SimulatedEngine
from workers.engines.simulated.model import LocalModel
from workers.engines.simulated.settings import SimulatedSettings


def main() -> None:
    parser = argparse.ArgumentParser(prog="workers.engines.simulated", description="An engine without a model.")
    parser.add_argument("--uds", required=True, help="Unix socket to listen on")
    parser.add_argument("--model", required=True, type=Path, help="folder with tokenizer and config")
    parser.add_argument("--served-model-name", default="simulated")
    options = parser.parse_args()
    app = SimulatedApp(
        engine=SimulatedEngine(SimulatedSettings()),
        model=LocalModel.load(options.model),
        served=options.served_model_name,
        clock=SystemClock(),
    )
    uvicorn.run(app, uds=options.uds, log_level="warning", access_log=False, loop="uvloop", http="httptools")


main()
