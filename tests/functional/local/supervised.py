"""A supervisor over small children, as a process of its own: `supervised.py STATE_DIR CASE`. Used by test_supervisor.

Prints one JSON line per change of a child's state, so that a test waits for facts and never for time.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import signal
import socket
import sys
from pathlib import Path

from controlplane.local import probes
from controlplane.local.children import ChildSpec
from controlplane.local.paths import Layout
from controlplane.local.ports import find_free
from controlplane.local.restarts import RestartPolicy
from controlplane.local.supervisor import AlreadyRunning, Child, ChildFailed, Supervisor, hold_lock, stop_leftovers

# A server that announces itself by a Unix socket and stops in order, leaving a line in its log.
SERVER = """
import os, signal, socket, sys
path = sys.argv[1]
if os.path.exists(path): os.unlink(path)
door = socket.socket(socket.AF_UNIX); door.bind(path); door.listen(8)
tcp = socket.create_server(("127.0.0.1", int(sys.argv[2]))) if len(sys.argv) > 2 else None
def stop(*_):
    print("stopped in order", flush=True); os._exit(0)
signal.signal(signal.SIGTERM, stop)
while True:
    try: door.accept()[0].close()
    except OSError: pass
"""
MUTE = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
PULSING = "import pathlib, sys, time\nwhile True: pathlib.Path(sys.argv[1]).touch(); time.sleep(0.02)"
# Like SeaweedFS: it makes a socket elsewhere and leaves it there.
LEAVING = """
import os, signal, socket, sys
for path in sys.argv[2], sys.argv[1]:
    if os.path.exists(path): os.unlink(path)
    door = socket.socket(socket.AF_UNIX); door.bind(path); door.listen(8)
signal.pause()
"""
STUBBORN = SERVER.replace("signal.SIGTERM, stop", "signal.SIGTERM, signal.SIG_IGN")


def say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def spec(layout: Layout, name: str, source: str, **options: object) -> ChildSpec:
    socket_path = layout.run / f"{name}.sock"
    probe = probes.unix_socket(path=socket_path) if source in (SERVER, STUBBORN, LEAVING) else probes.started
    defaults = {"cwd": layout.state, "env": {"PATH": "/usr/bin:/bin"}, "role": name, "probe": probe}
    port = options.pop("listens_on", options.get("port"))
    arguments = (str(socket_path),) if port is None else (str(socket_path), str(port))
    return ChildSpec(name=name, command=(sys.executable, "-c", source, *arguments), **{**defaults, **options})


def cases(layout: Layout) -> dict[str, list[ChildSpec]]:
    store = spec(layout, "store", SERVER)
    never = probes.unix_socket(path=layout.run / "no.sock")
    job = spec(layout, "job", "print('migrated')", after=("store",), once=True, wave=1)
    port = find_free()
    door = spec(layout, "door", SERVER, after=("job",), wave=2, port=port)
    # Another program sits on the port that the child is said to serve; the child itself listens elsewhere.
    foreign = socket.create_server(("127.0.0.1", 0))
    taken = foreign.getsockname()[1]
    atexit.register(foreign.close)
    left = Path(f"{layout.state}.sock")
    return {
        "platform": [store, job, door],
        "broken": [
            store,
            spec(layout, "broken", "print('no such table'); raise SystemExit(3)", after=("store",), probe=never),
        ],
        "broken_job": [store, spec(layout, "job", "raise SystemExit(2)", after=("store",), once=True)],
        "mute": [spec(layout, "mute", MUTE, probe=never, ready_deadline=0.3, stop_deadline=0.1)],
        "robbed": [spec(layout, "robbed", SERVER, port=taken, listens_on=port, ready_deadline=0.5)],
        "stubborn": [spec(layout, "stubborn", STUBBORN, stop_deadline=0.2)],
        "hung": [
            spec(
                layout,
                "settler",
                PULSING,
                probe=probes.file_exists(path=layout.run / "settler.sock"),
                pulse=probes.file_changes(path=layout.run / "settler.sock"),
                pulse_file=layout.run / "settler.sock",
                stop_deadline=0.5,
            )
        ],
        "leaving": [spec(layout, "leaving", LEAVING, leaves=(left,), listens_on=left)],
        "leaving_nothing": [spec(layout, "other", SERVER)],
        "family": [spec(layout, "family", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {MUTE!r}])")],
    }


def main() -> int:
    layout = Layout(root=Path.cwd(), state=Path(sys.argv[1]))
    layout.make()
    try:
        hold_lock(layout=layout)
    except AlreadyRunning:
        say(event="already running")
        return 3
    say(event="leftovers", names=stop_leftovers(layout=layout))

    def listener(child: Child) -> None:
        pid = None if child.process is None else child.process.pid
        say(event=str(child.state), name=child.spec.name, pid=pid, reason=child.reason)

    async def serving() -> None:
        say(event="platform serves")

    async def run() -> None:
        policy = RestartPolicy(first_wait=0.01, wait_max=0.02, deaths_max=3, stable_seconds=0.0)
        if sys.argv[2] == "hung":
            policy = RestartPolicy(first_wait=0.01, silences_max=3, pulse_seconds=0.3)
        if sys.argv[2] in ("broken", "mute", "robbed"):
            policy = RestartPolicy(first_wait=0.01, wait_max=0.02, deaths_max=3)
        await Supervisor(layout=layout, specs=cases(layout)[sys.argv[2]], listener=listener, policy=policy).run(
            when_serving=serving
        )

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        asyncio.run(run())
    except ChildFailed as failure:
        say(event="over", reason=str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
