"""Engines' options for KV offloading (host memory, disk, store), read into the flag ``kv_tier`` and written from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_values import parse_json
from kernelsight.files.numbers import is_number
from kernelsight.scenario.kv_tiers import parse_tiers, tiers_text

if TYPE_CHECKING:
    from kernelsight.scenario.launch.command_options import Setting
    from kernelsight.scenario.launch.engine_options import Option
    from kernelsight.scenario.launch.reading import Reading

# vLLM's connectors with the size of host memory in the line; others transfer KV between prefill and decode replicas
OFFLOADING = ("OffloadingConnector", "SimpleCPUOffloadConnector")
SIZED_ELSEWHERE = ("LMCacheConnectorV1", "LMCacheConnector", "LMCacheMPConnector", "DynamoConnector")

# columns of kv_tiers that no option of an engine sets
LINKS = ("read_bytes_per_s", "write_bytes_per_s", "latency_us", "shared")


def kv_tier(reading: Reading, option: Option, setting: Setting, value: str) -> None:
    """Read a size of host memory in the engine's own unit, or a kind of storage behind it."""
    ranks = reading.flags.get("tensor_parallel_size", 1) * reading.flags.get("pipeline_parallel_size", 1)
    sizes = {
        "--kv-offloading-size": lambda: f"host:{_number(setting, value):.12g}GiB",
        "--hicache-ratio": lambda: f"host:{_number(setting, value):g}x",
        "--hicache-size": lambda: f"host:{_number(setting, value) * 1e9 * ranks:.0f}",
        "--kv_cache_config.host_cache_size": lambda: f"host:{_number(setting, value) * ranks:.0f}",
        "--enable-hierarchical-cache": lambda: f"host:{option.value}",
        "--hicache-storage-backend": lambda: f"{value}:unlimited",
    }
    if option.option == "--enable-hierarchical-cache" and "host:" in str(reading.flags.get("kv_tier")):
        reading.ignore(setting, "none", "the size of host memory is stated")
    elif option.option in ("--hicache-size", "--kv_cache_config.host_cache_size") and _number(setting, value) == 0:
        reading.ignore(setting, "none", "0: the default")
    else:
        _add(reading, option, setting, sizes[option.option]())


def kv_connector(reading: Reading, option: Option, setting: Setting, value: str) -> None:
    """Read vLLM's --kv-transfer-config: offloading connectors have a size, others transfer KV between engines."""
    try:
        value_read = parse_json(value, InvalidInput)
    except InvalidInput:
        value_read = None
    fields = value_read if isinstance(value_read, dict) else {}
    extra = fields.get("kv_connector_extra_config")
    size = extra.get("cpu_bytes_to_use") if isinstance(extra, dict) else None
    name = fields.get("kv_connector")
    if name in OFFLOADING and is_number(size) and size >= 0:
        _add(reading, option, setting, f"host:{size:.0f}")
    elif name in SIZED_ELSEWHERE:
        reading.ignore(setting, "none", "the sizes of its tiers are variables of the environment, or in its own file")
    else:
        reading.ignore(setting, "not_modelled", option.reason)


def kv_variable(reading: Reading, option: Option, setting: Setting, value: str) -> None:
    """Read the sizes of Dynamo's KVBM and of LMCache from environment variables."""
    unit = "GiB" if option.option.startswith("LMCACHE") else "GB"
    _add(reading, option, setting, f"{option.value}:{_number(setting, value):.12g}{unit}")


def tier_options(engine: str, tiers: str, ranks: int) -> dict[str, str | None] | None:
    """Return the options of an engine for KV tiers, with their values; None: it has no options for them.

    >>> tier_options("vllm", "host:8GiB", 2), tier_options("sglang", "host:2x", 1)
    ({'--kv-offloading-size': '8'}, {'--enable-hierarchical-cache': None, '--hicache-ratio': '2'})
    """
    rows = parse_tiers(tiers)
    if len(rows) != 1 or rows[0]["tier"] != "host" or any(rows[0][name] is not None for name in LINKS):
        return None
    size, factor = rows[0]["capacity_bytes"], rows[0]["capacity_factor"]
    if engine == "sglang" and (size or factor):
        size_option = {"--hicache-ratio": f"{factor:g}"} if factor else {"--hicache-size": f"{size / 1e9 / ranks:.12g}"}
        return {"--enable-hierarchical-cache": None, **size_option}
    if size is None or engine == "sglang":
        return None
    if engine == "trtllm":
        return {"--kv_cache_config.host_cache_size": f"{size // ranks}"}
    return {"--kv-offloading-size": f"{size / 2**30:.12g}"}


def _add(reading: Reading, option: Option, setting: Setting, tier: str) -> None:
    """Add a tier to those that the line has set so far; it replaces an earlier one of its kind."""
    tiers: dict[str, dict[str, Any]] = {
        row["tier"]: row for row in parse_tiers(reading.flags.get("kv_tier") or "none")
    } | {row["tier"]: row for row in parse_tiers(tier)}
    all_tiers = "+".join(filter(None, [tiers_text([row]) for row in tiers.values()]))
    reading.use(setting, "kv_tier", all_tiers, option.reason, part=tier)


def _number(setting: Setting, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e18:
        value_shown = "" if setting.of_file else f", and has {text!r}"
        raise InvalidInput(f"{setting.words} of the launch line needs a number of at least 0{value_shown}.")
    return number
