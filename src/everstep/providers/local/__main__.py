"""``python -m everstep.providers.local serve --home DIR [--config FILE]``: the daemon of a cloud in a box.

``sweep --home DIR`` ends every process of the box in DIR without looking at its state: the way out when that is
damaged.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from everstep.model.errors import EverstepError
from everstep.providers.local import rpc
from everstep.providers.local.config import read_config
from everstep.providers.local.daemon import Daemon, begin_market, open_metadata_socket
from everstep.providers.local.machines import sweep
from everstep.providers.local.state import State

EXIT_BAD = 2
LOG_NAME = "daemon.log"
STATE_NAME = "state.sqlite"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; what went wrong is a line on standard error, and as JSON on standard output for the client."""
    arguments = _parser().parse_args(argv)
    home: Path = arguments.home.resolve()
    try:
        if arguments.command == "sweep":
            print(f"ended {sweep(home)} processes of the box in {home}")
            return 0
        return _serve(home, arguments)
    except (EverstepError, OSError) as error:
        if arguments.detach:
            print(json.dumps(rpc.encode_error(error)), flush=True)
        print(error, file=sys.stderr)
        return EXIT_BAD


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m everstep.providers.local", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="run the box until it is stopped")
    serve.add_argument("--config", type=Path, help="what the box offers; default: as last time, or this computer")
    serve.add_argument("--agent-argv", type=json.loads, default=[], help="command of the agent, as a JSON list")
    serve.add_argument("--name", default="local", help="name of the provider in offers")
    serve.add_argument("--detach", action="store_true", help="return when the box serves, and leave it running")
    end = commands.add_parser("sweep", help="end every process of the box, whatever its state says")
    for command in (serve, end):
        command.add_argument("--home", type=Path, required=True, help="folder of the box")
    end.set_defaults(detach=False)
    return parser


def _serve(home: Path, arguments: argparse.Namespace) -> int:
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    # Held as long as this process or the one it forks lives; the machines do not inherit it.
    lock = os.open(home / rpc.LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            # Another daemon has this box. If it serves, that is what was wanted; else it comes or goes: ask again.
            if rpc.serves(home):
                return 0
            time.sleep(0.01)
    state = State(home / STATE_NAME)
    try:
        path = arguments.config.resolve() if arguments.config else _known_config(state)
        config = read_config(path)
        argv = arguments.agent_argv or list(config.agent_argv) or state.facts.agent_argv
        state.save(replace(state.facts, config_path=str(path or ""), agent_argv=argv))
        begin_market(state, config, time.time())
        metadata_socket = open_metadata_socket(state)
        api_socket = rpc.listen(home)
    finally:
        # SQLite must not be carried across a fork.
        state.close()
    if arguments.detach:
        _detach(home / LOG_NAME)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)

    async def run() -> None:
        daemon = Daemon(
            home,
            config,
            State(home / STATE_NAME),
            lock=lock,
            api_socket=api_socket,
            metadata_socket=metadata_socket,
            name=arguments.name,
        )
        await daemon.run()

    asyncio.run(run())
    return 0


def _known_config(state: State) -> Path | None:
    return Path(state.facts.config_path) if state.facts.config_path else None


def _detach(log: Path) -> None:
    """Leaves the caller's session; the caller's process ends here with success."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, null), (1, output), (2, output)):
        os.dup2(source, target)
    os.close(null)
    os.close(output)


if __name__ == "__main__":
    sys.exit(main())
