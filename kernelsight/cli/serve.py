"""`kernelsight serve`: runs an OpenAI-compatible server that answers when the predicted deployment would."""

from __future__ import annotations

import argparse
import math
from typing import Any

from kernelsight.cli.options import add_deployment, deployment_flags, launch_line, open_session, whole_number
from kernelsight.errors import InvalidInput
from kernelsight.present.output import note, print_notes


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    verb.epilog = "It serves until Ctrl-C or SIGTERM, and then ends with status 0; answers underway end with an error."
    add_deployment(verb)
    group = verb.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    group.add_argument("--port", type=int, default=8000, metavar="N", help="port (default: 8000; 0: a free one)")
    group.add_argument(
        "--speed", type=float, default=1.0, metavar="X",
        help="simulated seconds per second: 0.1 answers ten times slower than the deployment (default: 1)",
    )  # fmt: skip
    group.add_argument("--seed", type=int, default=0, metavar="N", help="seed of drawn answer lengths (default: 0)")
    group.add_argument(
        "--output-len", type=whole_number, default=256, metavar="N",
        help="tokens after which an answer ends if its request has no max_tokens (default: 256)",
    )  # fmt: skip
    group.add_argument(
        "--range-ratio", type=float, default=1.0, metavar="LOW",
        help="draw these lengths uniformly from [LOW, 1] x --output-len (default: 1)",
    )  # fmt: skip
    group.add_argument(
        "--served-model-name", nargs="+", metavar="NAME", help="names that requests may use, the first is reported"
    )
    group.add_argument(
        "--tokenizer", metavar="PATH",
        help="tokenizer.json or its folder (default: beside --model, or an estimate of 4 bytes per token)",
    )  # fmt: skip
    group.add_argument(
        "--max-waiting-requests", type=whole_number, default=2048, metavar="N",
        help="requests beyond max_num_seqs that may wait; further ones get status 429 (default: 2048)",
    )  # fmt: skip


def run(arguments: Any) -> None:
    """Serve until the process is stopped."""
    options = {name: getattr(arguments, name) for name in ("speed", "seed", "output_len", "range_ratio", "tokenizer")}
    options |= {name: getattr(arguments, name) for name in ("served_model_name", "max_waiting_requests")}
    _check(arguments)
    flags = deployment_flags(arguments)
    launch_line(arguments, flags)
    print_notes()  # now, because the server runs until it is stopped
    from kernelsight.server.prompts import estimated_tokens
    from kernelsight.server.start import check_packages, is_local, listening_socket, serve_until_stopped, server_of
    from kernelsight.serving.runs.deployed import deploy

    check_packages()
    with open_session(arguments) as session:
        deployed = deploy(session, flags)
    server = server_of(deployed, flags.get("model"), options)
    socket = listening_socket(arguments.host, arguments.port)
    settings, host = deployed.settings, arguments.host
    for sentence in deployed.assumed:
        note(f"assumed: {sentence}")
    if server.serving.tokens_of is estimated_tokens:
        note("the tokens of texts are estimated, 4 bytes each; prompts as token ids, or --tokenizer, are exact")
    if not is_local(host):
        note(
            f"whoever reaches {host} can use this server: it has no key and no TLS; 127.0.0.1 is for this machine alone"
        )
    shown = f"[{host}]" if ":" in host else host
    note(
        f"serving {settings['model']} on {settings['gpu']} ({settings['engine']}) at http://{shown}:"
        f"{socket.getsockname()[1]}, {arguments.speed:g} simulated seconds per second; answers are filler text"
    )
    serve_until_stopped(server, socket)


def _check(arguments: Any) -> None:
    """Raise InvalidInput for a value out of range."""
    if not 0.0 < arguments.speed < math.inf:
        raise InvalidInput(f"--speed is {arguments.speed}; give a number above 0.")
    if not 0.0 < arguments.range_ratio <= 1.0:
        raise InvalidInput(f"--range-ratio is {arguments.range_ratio}; give a share above 0 and up to 1.")
    if not 0 <= arguments.port < 2**16:
        raise InvalidInput(f"--port is {arguments.port}; give 0 to 65535.")
    for name in ("output_len", "max_waiting_requests"):
        if not 1 <= getattr(arguments, name) <= 10**6:
            raise InvalidInput(f"--{name.replace('_', '-')} is {getattr(arguments, name)}; give 1 to 1,000,000.")
    if arguments.seed < 0:
        raise InvalidInput(f"--seed is {arguments.seed}; give a whole number of at least 0.")
