"""`kernelsight serve`: runs an OpenAI-compatible server that answers when the predicted deployment would."""

from __future__ import annotations

from typing import Any

from kernelsight.cli.options import deployment_flags, launch_line, open_session
from kernelsight.present.output import note, print_notes


def run(arguments: Any) -> None:
    """Serve until the process is stopped."""
    options = {name: getattr(arguments, name) for name in ("speed", "seed", "output_len", "range_ratio", "tokenizer")}
    options |= {name: getattr(arguments, name) for name in ("served_model_name", "max_waiting_requests")}
    flags = deployment_flags(arguments)
    launch_line(arguments, flags)
    print_notes()  # now, because the server runs until it is stopped
    from kernelsight.server.start import check_packages, is_local, listening_socket, serve_until_stopped, server_of
    from kernelsight.serving.load.prompts import estimated_tokens
    from kernelsight.serving.runs.step_times import deploy

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
