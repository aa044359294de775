"""Writes the files of a deployment (Compose, Kubernetes, Dynamo, llm-d) by the table ``deployment_shapes``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput
from kernelsight.escape import shell_line
from kernelsight.files.shell_words import split_commands
from kernelsight.scenario.launch.commands import OPTIONS_FILE, PARALLEL, engine_words, launch_command
from kernelsight.scenario.launch.shape_table import Row, rows_of
from kernelsight.scenario.scenario_rows import deployment_row, normalise, prefill_flags
from kernelsight.scenario.speculation import named_draft

FORMS = ("compose", "kubernetes", "dynamo", "llm-d")
# a node of a domain of more than NODE_GPUS (GB200 NVL72) is a tray
NODE_GPUS, TRAY_GPUS = 8, 4
PORT = 8000
LABELS = {"nvidia": "nvidia.com/gpu.product", "amd": "amd.com/gpu.product-name"}
LEADER = "$(LWS_LEADER_ADDRESS)"


class Pool(NamedTuple):
    """Replicas of one server as files state them, by field of ``deployment_shapes``; ``unsaid``: as LaunchCommand."""

    facts: dict[str, Any]
    unsaid: dict[str, Any]


def deployment_files(
    form: str, flags: Mapping[str, Any], model: Mapping[str, Any] | None = None, asked: str | None = None
) -> tuple[str, dict[str, Any]]:
    """Return (the text of the files of a deployment, one YAML document an object; flags that no field expresses).

    ``flags``: of ``simulate``; those of a load are ignored. ``model``: its row of ``models``; ``asked``: the model's
    name as a user wrote it. InvalidInput: a replica that spans nodes, where the form cannot state it.
    """
    import yaml

    if form not in FORMS:
        raise InvalidInput(f"write_launch is {form!r}; give one of {', '.join(FORMS)}.")
    flags = normalise(flags)
    if not flags.get("model") or not flags.get("gpu"):
        raise InvalidInput("--write-launch needs --model and --gpu, or a --launch that names them.")
    prefill = prefill_flags(flags)
    given = {None: flags} if prefill is None else {"prefill": prefill, "decode": flags}
    name = (
        re.sub(r"[^a-z0-9]+", "-", str(asked or flags["model"]).rpartition("/")[2].lower()).strip("-")[:40] or "model"
    )
    pools = [_pool(form, role, own, model, asked, name) for role, own in given.items()]
    documents = DOCUMENTS[form]([pool.facts for pool in pools])
    unsaid = {name: value for pool in pools for name, value in pool.unsaid.items()}
    return yaml.safe_dump_all(documents, sort_keys=False, width=10**6), unsaid


def _pool(
    form: str, role: str | None, flags: Mapping[str, Any], model: Mapping[str, Any] | None, asked: str | None, name: str
) -> Pool:
    """Return what the files say of one pool of replicas."""
    row = deployment_row(flags)
    engine, sizes = row["engine"], [flags.get(size, 1) for size in PARALLEL[:3]]
    draft = named_draft(flags)
    command, own = launch_command(row, model, draft, asked, explicit=True), engine_words(engine)
    words = next(split_commands(command.line))
    served = words[len(own["program"])]
    gpus = sizes[0] * sizes[1] * sizes[2]
    nodes = -(-gpus // _gpus_of_node(flags["gpu"]))
    if nodes > 1 and form in ("compose", "llm-d"):
        raise InvalidInput(
            f"a replica of {gpus} GPUs spans {nodes} nodes, which {form} files cannot state here; write kubernetes or "
            "dynamo."
        )
    if form == "dynamo":
        words = _dynamo_words(engine, words, served) + (["--disaggregation-mode", role] if role else [])
    else:
        words += [] if engine == "vllm" else ["--host", "0.0.0.0", "--port", str(PORT)]
        words += [word.format(own["pools"][role]) for word in own["role"]] if role else []
    version, vendor = row.get("engine_version"), _facts_of_gpu().get(flags["gpu"], {}).get("vendor", "nvidia")
    image = f"nvcr.io/nvidia/ai-dynamo/{own['dynamo_image']}" if form == "dynamo" else own["image"]
    tag = f":{'' if engine == 'trtllm' else 'v'}{version}" if version and form != "dynamo" else ""
    replicas = flags.get(f"{role}_replicas" if role else "replicas", 1)
    stated = {
        "name": f"{name}-{role}" if role else name,
        "family": name,
        "role": role,
        "image": image + tag,
        "tag": version,
        "engine": engine,
        "model": served if served.startswith(("/", ".")) else f"hf://{served}",
        "served_model": served,
        "replicas": replicas,
        "nodes": nodes if nodes > 1 else None,
        "gpu": product_of(flags["gpu"]),
        "vendor": vendor,
        "label": LABELS.get(vendor, "gpu"),
        "gpus": -(-gpus // nodes),
        "option": sizes[0],
        "enabled": True,
    }
    return Pool(stated | _starts(form, engine, words, command.options_file, sizes, nodes), command.unsaid)


def _starts(
    form: str, engine: str, words: list[str], options_file: str | None, sizes: Sequence[int], nodes: int
) -> dict[str, Any]:
    """Return the commands of a pool's container; over several nodes of Kubernetes, of its leader and its workers."""
    leader, worker, suffix = words, None, ""
    if nodes > 1 and form == "kubernetes":
        if engine == "trtllm":
            raise InvalidInput(
                f"TensorRT-LLM starts over {nodes} nodes by MPI, which these files do not set up; write dynamo."
            )
        rank = "$(LWS_WORKER_INDEX)"
        if engine == "sglang":
            shared = ["--nnodes", str(nodes), "--dist-init-addr", f"{LEADER}:20000", "--node-rank"]
            leader, worker = [*words, *shared, "0"], [*words, *shared, rank]
        elif sizes[2] > 1:
            local = sizes[2] // nodes
            shared = ["--data-parallel-size-local", str(local), "--data-parallel-address", LEADER]
            leader, worker = [*words, *shared], [*words, *shared, "--headless"]
            suffix = f" --data-parallel-start-rank $((LWS_WORKER_INDEX * {local}))"
        else:
            shared = ["--nnodes", str(nodes), "--master-addr", LEADER, "--node-rank"]
            leader, worker = [*words, *shared, "0"], [*words, *shared, rank, "--headless"]
    return {
        "entrypoint": _with_file(leader, options_file),
        "worker": worker and (["sh", "-c", f"exec {shell_line(worker)}{suffix}"] if suffix else worker),
    }


def _with_file(words: list[str], options_file: str | None) -> list[str]:
    """Return words that first write the file of options that they name."""
    if options_file is None:
        return words
    return ["bash", "-c", f"cat > {OPTIONS_FILE} <<'EOF'\n{options_file}EOF\nexec {shell_line(words)}"]


def _dynamo_words(engine: str, words: list[str], served: str) -> list[str]:
    """Return the words of Dynamo's worker of an engine."""
    options, own = words[words.index(served) + 1 :], engine_words(engine)
    if renamed := own.get("dynamo_words"):
        options = [renamed.get(word, word) for word in options]
        options = [word.replace("_", "-") if word.startswith("--") else word for word in options]
    return ["python3", "-m", f"dynamo.{engine}", own["dynamo_model"], served, *options]


@cache
def _facts_of_gpu() -> dict[str, dict[str, Any]]:
    return {row["gpu"]: row for row in facts("gpus").to_pylist()}


def _gpus_of_node(gpu: str) -> int:
    """Return the number of GPUs in a node of a GPU's usual server."""
    fabrics = {row["fabric"]: row["max_gpus"] for row in facts("fabrics").to_pylist()}
    largest = fabrics.get(_facts_of_gpu().get(gpu, {}).get("link_fabric"), NODE_GPUS)
    return TRAY_GPUS if largest > NODE_GPUS and gpu.startswith("gb") else NODE_GPUS


def product_of(gpu: str) -> str:
    """Return the name of a GPU as node labels have it, or its catalogue name where a label would be read as another."""
    from kernelsight.catalog.gpu_names import find_gpu

    names = [row["alias"] for row in facts("gpu_aliases").to_pylist() if row["gpu"] == gpu and "*" not in row["alias"]]
    names = [name.replace(" ", "-") for name in names if name.startswith(("NVIDIA", "AMD"))]
    return next((name for name in names if (found := find_gpu(name)) and found == (gpu, None)), gpu)


# --- by the table ---


def _object(form: str, stated: Mapping[str, Any], pools: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return an object of a form with what is stated; ``pools``: of a form that holds them all."""
    tree: dict[str, Any] = {}
    for row in rows_of(form):
        if not row.written:
            continue
        if row.field == "shape":
            name, *words = row.value.split()
            given = dict(word.partition("=")[::2] for word in words)
            own = [pool for pool in pools or [stated] if given.get("role") in (None, pool["role"] or "decode")]
            for pool in own:
                if "place" in given:
                    pool = {**pool, "entrypoint": pool["worker"]}
                _put(tree, row.steps, _object(name, pool), pool["name"], _holds_name(name))
        elif row.field in ("is", "text"):
            value = row.value.split()[0] if row.value else None
            _put(tree, row.steps, int(value) if value and value.isdecimal() else value)
        elif (value := _value(row, stated)) is not None:
            steps = [stated["label"] if step == "{label}" else step for step in row.steps]
            _put(tree, steps, value, stated["name"], is_list=True)
    return tree


def _holds_name(form: str) -> bool:
    return any(row.field == "name" and row.written for row in rows_of(form))


def _value(row: Row, stated: Mapping[str, Any]) -> Any:
    """Return what stands at a row's path; None: nothing."""
    if row.field == "gpu":
        return f"{row.value or ''}{stated['gpu']}"
    if row.field == "resources":
        if row.steps[-1] == "*":
            return {"driver": stated["vendor"], "count": stated["gpus"], "capabilities": ["gpu"]}
        number = str(stated["gpus"])
        return number if row.steps[-1] == "gpu" else {"limits": {f"{stated['vendor']}.com/gpu": number}}
    return stated.get(row.field)


def _put(tree: dict[str, Any], steps: Sequence[str], value: Any, name: str = "", is_list: bool = False) -> None:
    """Set a value at a path; ``*`` is an item of a list, or the field ``name``."""
    if value is None:
        return
    for index, step in enumerate(steps):
        following = steps[index + 1] if index + 1 < len(steps) else None
        inner: Any = [] if following == "0" or (following == "*" and is_list) else {}
        if isinstance(tree, list):
            if step == "*" or not tree:
                tree.append(value if following is None else inner)
            tree = tree[-1]
        elif following is None:
            tree[name if step == "*" else step] = value
        else:
            tree = tree.setdefault(name if step == "*" else step, inner)


def _kubernetes(pools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a Deployment or LeaderWorkerSet and a Service for each pool, and a router in front of two."""
    documents = [_object("leader_worker_set" if pool["nodes"] else "workload", pool) for pool in pools]
    if len(pools) > 1:
        first, family = pools[0], pools[0]["family"]
        start = shell_line(next(split_commands(engine_words(first["engine"])["router"].format(family, PORT)))).split()
        urls = {name: {"num_instances": 1, "urls": [f"{family}-{role}:{PORT}"]} for name, role in TRTLLM_POOLS.items()}
        if first["engine"] == "trtllm":
            import yaml

            text = yaml.safe_dump({"hostname": "0.0.0.0", "port": PORT, **urls}, sort_keys=False)
            start = ["bash", "-c", f"cat > disaggregated.yaml <<'EOF'\n{text}EOF\nexec {' '.join(start)}"]
        router = {
            **first,
            "name": f"{family}-router",
            "role": "router",
            "replicas": 1,
            "entrypoint": start,
            "gpus": None,
        }
        documents.append(_object("router", router))
        pools = [*pools, router]
    return [*documents, *(_object("service", pool) for pool in pools)]


def _dynamo_graph(pools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a graph with a frontend before its pools."""
    graph = _object("dynamo", {**pools[0], "name": pools[0]["family"]}, pools)
    graph["spec"]["services"] = {"Frontend": _object("dynamo_frontend", pools[0]), **graph["spec"]["services"]}
    return [graph]


def _llm_d(pools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return values of llm-d's chart; without a prefill pool the chart's own is switched off."""
    values = _object("llm_d", pools[0], pools)
    return [values if len(pools) > 1 else {**values, "prefill": {"create": False}}]


TRTLLM_POOLS = {"context_servers": "prefill", "generation_servers": "decode"}
DOCUMENTS = {
    "compose": lambda pools: [_object("compose", pools[0], pools)],
    "kubernetes": _kubernetes,
    "dynamo": _dynamo_graph,
    "llm-d": _llm_d,
}
