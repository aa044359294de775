"""Start-up of the server for a deployment: engines, tokenizer, socket, and the event loop until a signal."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelsight.errors import InvalidInput, extra_missing
from kernelsight.server.live_engines import LiveEngines
from kernelsight.serving.engine.inputs import Routing
from kernelsight.serving.engine.records import ROUTERS
from kernelsight.serving.load.prompts import estimated_tokens, read_tokenizer
from kernelsight.serving.runs.step_times import Deployed

if TYPE_CHECKING:
    from kernelsight.server.app import Server

ROUND_ROBIN = ROUTERS[0]
# connections that wait to be accepted; uvicorn's default
BACKLOG = 2048


def check_packages() -> None:
    """Check that the extra ``serve`` is installed; InvalidInput: a package is missing."""
    try:
        import uvicorn  # noqa: F401

        import kernelsight.server.app  # noqa: F401
    except ImportError as error:
        raise extra_missing("serve", error.name or "uvicorn", "serve") from None


def engines_of(deployed: Deployed, waiting: int) -> LiveEngines:
    """Return a deployment's live engines, with slots for ``waiting`` requests in addition to running ones."""
    pool, settings = deployed.pool, deployed.settings
    router = settings["rank_router"] if settings["lock_step"] else ROUND_ROBIN
    slots = pool.limits.max_num_seqs * pool.engines + waiting
    hash_tokens = pool.limits.block_size if deployed.shares_prefixes else 0
    return LiveEngines(pool, slots, hash_tokens, Routing(ROUTERS.index(router)))


def warm_up(deployed: Deployed) -> None:
    """Run one request, so that compilation does not delay the first real one."""
    engines = engines_of(deployed, 1)
    slot, _ = engines.add(0.0, 1, 1)
    engines.cancel(slot)
    engines.advance(1.0)


def server_of(deployed: Deployed, model: str | None, options: Mapping[str, Any]) -> Server:
    """Return the server of a deployment; ``model``: as the user stated it, ``options``: of the command line, by name.

    InvalidInput: a tokenizer that cannot be read.
    """
    from kernelsight.server.app import Server, Serving

    settings, limits = deployed.settings, deployed.pool.limits
    warm_up(deployed)
    names = [*(options["served_model_name"] or ()), settings["model"], *([model] if model else [])]
    cache = {"block_size": limits.block_size, "enable_prefix_caching": deployed.shares_prefixes}
    cache["num_gpu_blocks"] = limits.capacity_units // max(limits.full_units, 1)
    serving = Serving(
        engines_of(deployed, options["max_waiting_requests"]), list(dict.fromkeys(names)), limits.max_model_len,
        tokens_of(options["tokenizer"], model), options["speed"], options["seed"], options["output_len"],
        options["range_ratio"], cache,
    )  # fmt: skip
    return Server(serving)


def tokens_of(path: str | None, model: str | None) -> Callable[[str], np.ndarray]:
    """Return a function from text to token ids: the tokenizer at ``path`` or of the model's config, or estimates."""
    if path is not None:
        return read_tokenizer(Path(path))
    model_folder = Path(model or "").expanduser()
    model_folder = model_folder.parent if model_folder.suffix == ".json" else model_folder
    if model and (model_folder / "tokenizer.json").is_file():
        return read_tokenizer(model_folder)
    return estimated_tokens


def is_local(host: str) -> bool:
    """Return whether only this machine reaches an address to listen at.

    >>> is_local("127.0.0.1"), is_local("localhost"), is_local("::1"), is_local("0.0.0.0"), is_local("")
    (True, True, True, False, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; InvalidInput: the port is in use, or the host is not an address of this machine.

    Requests that arrive before the server starts wait in its backlog.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InvalidInput(f"cannot listen at {host} port {port}: {error.strerror}; use another --port.") from None
    return listener


def serve_until_stopped(server: Server, listener: socket.socket) -> None:
    """Serve requests until a signal, which is a normal end: answers that are underway end with an error, at once."""
    import uvicorn

    class Stoppable(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            server.stop()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        server.app, log_level="warning", access_log=False, backlog=BACKLOG, timeout_graceful_shutdown=1
    )
    with contextlib.suppress(KeyboardInterrupt):
        Stoppable(config).run(sockets=[listener])
