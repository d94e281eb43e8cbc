"""How the engine is called: decided from values, so tested from values."""

import contextlib
import errno
import itertools
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins import catalog
from encoder_plugins.__main__ import main
from encoder_plugins.artifact import manifest
from encoder_plugins.errors import BadArgument, ChecksumMismatch, NotServable
from encoder_plugins.parity import tolerance_table
from encoder_plugins.plugin import REQUEST_LIMITS, resolve
from encoder_plugins.prep.checkpoint import EngineSettings
from encoder_plugins.serving import command as serve
from encoder_plugins.serving import entrypoint, host, limits, mps, settings, signals
from encoder_plugins.serving.command import Adapter, Service
from encoder_plugins.serving.graceful_shutdown import LONGEST_SECONDS
from encoder_plugins.serving.http import worker_counters
from encoder_plugins.serving.settings import CountersFile, Settings
from encoder_plugins.serving.tuning import Tuning

PLUGIN = catalog.get("sentence_transformer")
GIB = 1 << 30
CHECKPOINT = EngineSettings(max_model_len=256, batch_tokens=256, arguments=("--no-enable-prefix-caching",))
SINGLE = Tuning(engines=1, api_servers=1)
SEVERAL = Tuning(
    engines=2, api_servers=3, batch_tokens=512, batch_sequences=64, graph_sizes=(16, 512), memory_share=0.45
)
SETTINGS = Settings(plugin=PLUGIN.name, limits=limits.defaults(PLUGIN), digest="sha256:0")


def service(**changes: Any) -> Service:
    values: dict[str, Any] = {
        "artifact": Path("/artifacts/key"),
        "name": "minilm",
        "port": 8000,
        "accelerator": "cpu",
        "limits": limits.defaults(PLUGIN),
    }
    return Service(**values | changes)


def value_of(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_the_engine_serves_the_model_of_the_artifact_by_its_name() -> None:
    command = serve.command(service(), PLUGIN, CHECKPOINT, SINGLE, "/usr/bin/python")
    assert command[0] == "/usr/bin/python"
    assert command[2:4] == ["encoder_plugins.serving.signals", "encoder_plugins.serving.server"]
    assert value_of(command, "--model") == "/artifacts/key/model"
    assert value_of(command, "--served-model-name") == "minilm"
    assert value_of(command, "--scheduling-policy") == "priority"
    assert resolve(value_of(command, "--middleware").replace(".Application", ":Application"))
    assert not {"--io-processor-plugin", "--enable-lora"} & set(command)
    assert {"--disable-fastapi-docs", "--disable-uvicorn-access-log"} <= set(command)


def test_the_checkpoint_decides_what_the_user_does_not() -> None:
    command = serve.command(service(), PLUGIN, CHECKPOINT, SINGLE, "python")
    assert value_of(command, "--max-model-len") == "256"
    assert command[-1] == "--no-enable-prefix-caching"
    assert (
        value_of(serve.command(service(max_model_len=64), PLUGIN, CHECKPOINT, SINGLE, "python"), "--max-model-len")
        == "64"
    )
    bare = serve.command(service(), PLUGIN, EngineSettings(), SINGLE, "python")
    assert "--max-model-len" not in bare
    assert serve.longest_prompt(CHECKPOINT, None) == 256
    assert serve.longest_prompt(CHECKPOINT, 64) == 64
    assert serve.longest_prompt(EngineSettings(max_model_len=128_000), None) == 0


def test_nothing_of_ours_is_in_the_key_of_vllms_compile_cache() -> None:
    assert "--additional-config" not in serve.command(service(), PLUGIN, CHECKPOINT, SEVERAL, "python")


def test_the_server_gets_plugin_limits_and_counters_by_its_environment() -> None:
    expected = Settings(
        plugin="p", limits={"texts": 3}, adapters={"a": "/a"}, counters=CountersFile(path="/tmp/counters", processes=6)
    )
    found = serve.environment({settings.VARIABLE: "of another server"}, service(), SEVERAL, 2, expected)
    assert settings.read(found) == expected
    assert settings.read({}) is None
    for unknown in ('"other": 1', '"counters": {"path": "", "processes": 1, "other": 1}'):
        with pytest.raises(ValueError, match="unknown field"):
            settings.read({settings.VARIABLE: f'{{"plugin": "p", "limits": {{}}, {unknown}}}'})


@pytest.mark.parametrize(
    ("accelerator", "dtype", "expected"),
    [("cpu", None, "float32"), ("nvidia", None, "bfloat16"), ("nvidia", "float16", "float16")],
)
def test_the_dtype_is_the_plugins_unless_it_is_set(accelerator: str, dtype: str | None, expected: str) -> None:
    command = serve.command(service(accelerator=accelerator, dtype=dtype), PLUGIN, CHECKPOINT, SINGLE, "python")
    assert value_of(command, "--dtype") == expected
    # graphs are for GPUs
    assert ("--enforce-eager" in command) == (accelerator == "cpu")


def test_the_users_arguments_come_last_and_win() -> None:
    extra = ("--pooler-config", '{"pooling_type": "CLS"}')
    assert serve.command(service(arguments=extra), PLUGIN, CHECKPOINT, SINGLE, "python")[-2:] == list(extra)


def test_the_environment_is_completed_and_never_overruled() -> None:
    found = serve.environment({"OMP_NUM_THREADS": "7", "HOME": "/tmp"}, service(), SINGLE, 2, SETTINGS)
    assert found["OMP_NUM_THREADS"] == "7"
    assert found["HOME"] == "/tmp"
    assert found["HF_HUB_OFFLINE"] == "1"
    ours = serve.environment({}, service(), SINGLE, 2, SETTINGS)
    assert ours["OMP_NUM_THREADS"] == "2"
    assert {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} < set(ours)
    # neither a request to a hub, nor usage statistics, nor plugins of other packages
    quiet = {"TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"}
    assert {name for name in quiet if ours[name] == "1"} == quiet
    assert ours["VLLM_PLUGINS"] == "encoder"
    # longer than load balancers keep a connection, so that they are the ones to close it
    assert 60 < int(ours["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]) <= 120
    users = dict.fromkeys(ours, "the user's")
    changed = serve.environment(users, service(), SINGLE, 2, SETTINGS)
    assert {name for name in ours if changed[name] != "the user's"} == {settings.VARIABLE}
    gpu = serve.environment({}, service(accelerator="nvidia"), Tuning(engines=4, api_servers=3), 16, SETTINGS)
    assert "OMP_NUM_THREADS" not in gpu
    assert gpu["RAYON_NUM_THREADS"] == "4"


def test_limits_have_their_defaults_or_what_the_user_sets() -> None:
    found = limits.parse(PLUGIN, ["texts=3", "body_bytes=1", "texts=4"])
    assert found == {**limits.defaults(PLUGIN), "texts": 4, "body_bytes": 1}
    assert {limit.name for limit in REQUEST_LIMITS} < set(found)


@pytest.mark.parametrize("assignment", ["text=3", "texts=", "texts=0", "texts=-1", "texts=many", "texts", "texts=٣"])
def test_a_limit_that_is_none_is_refused(assignment: str) -> None:
    with pytest.raises(BadArgument, match="--limit text"):
        limits.parse(PLUGIN, [assignment])


@pytest.mark.parametrize("plugin", list(catalog.plugins()))
def test_a_plugins_page_lists_its_limits(plugin: str) -> None:
    found = catalog.get(plugin)
    assert len({limit.name for limit in found.limits}) == len(found.limits)
    assert all(limit.default >= 1 and limit.description.endswith(".") for limit in found.limits)
    page = tolerance_table.page(found).read_text()
    for limit in found.limits:
        default = f"{limit.default:,}".replace(",", " ")
        assert f"| `{limit.name}` | {default} | {limit.description} |" in page


def test_a_changed_artifact_is_not_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "MANIFEST.json").write_text("{}")
    arguments = ["serve", str(tmp_path), "--digest", f"sha256:{'0' * 64}", "--name", "m", "--accelerator", "cpu"]
    assert main([*arguments, "--", "--enforce-eager"]) == 65
    assert "ChecksumMismatch" in capsys.readouterr().err


def test_list_shows_every_declaration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    assert [plugin["name"] for plugin in json.loads(capsys.readouterr().out)] == list(catalog.plugins())


def test_several_processes_are_given_time_to_stop() -> None:
    command = serve.command(service(accelerator="nvidia"), PLUGIN, CHECKPOINT, SEVERAL, "python")
    assert value_of(command, "--api-server-count") == "3"
    assert LONGEST_SECONDS < int(value_of(command, "--shutdown-timeout")) <= LONGEST_SECONDS + 10
    assert value_of(command, "--max-num-batched-tokens") == "512"
    assert value_of(command, "--max-num-seqs") == "64"
    assert value_of(command, "--gpu-memory-utilization") == "0.45"
    start = command.index("--cudagraph-capture-sizes")
    assert command[start + 1 : start + 3] == ["16", "512"]
    assert command[start + 3].startswith("--")


def test_a_single_server_needs_none_of_that() -> None:
    command = serve.command(service(), PLUGIN, CHECKPOINT, Tuning(engines=1, api_servers=1), "python")
    several = ("--api-server-count", "--shutdown-timeout", "--gpu-memory-utilization")
    unset = ("--max-num-batched-tokens", "--max-num-seqs", "--cudagraph-capture-sizes", "--lora-modules")
    assert not {*several, *unset} & set(command)


def test_an_engine_that_serves_several_api_servers_is_a_process_of_its_own() -> None:
    single = serve.environment({}, service(), SINGLE, 8, SETTINGS)
    assert (single["VLLM_ENABLE_V1_MULTIPROCESSING"], single[settings.FORKED]) == ("0", "1")
    several = serve.environment({}, service(), Tuning(engines=2, api_servers=2), 8, SETTINGS)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in several
    assert several[settings.FORKED] == "1"
    assert several["OMP_NUM_THREADS"] == several["RAYON_NUM_THREADS"] == "4"


def test_a_model_without_a_name_is_called_as_its_folder() -> None:
    assert serve.name_of(Path("/artifacts/minilm"), PLUGIN) == "minilm"
    assert serve.name_of(Path(f"/artifacts/{'0a' * 32}"), PLUGIN) == "sentence_transformer"


def test_vllms_own_arguments_are_understood_where_they_matter_here() -> None:
    assert serve.number_in(["--api-server-count", "3"], "--api-server-count") == 3
    assert serve.number_in(["--port", "8", "--api-server-count", "3", "--seed", "4"], "--api-server-count") == 3
    assert serve.number_in(["4", "--api-server-count", "x"], "--api-server-count") is None
    assert serve.number_in(["-x", "--api-server-count=4"], "--api-server-count") == 4
    assert serve.number_in(["--api-server-count"], "--api-server-count") is None
    assert serve.number_in([], "--api-server-count") is None


@pytest.mark.parametrize(("only_ipv6", "address"), [(0, "::"), (1, "0.0.0.0"), (None, "0.0.0.0")])
def test_a_server_listens_on_both_families_of_addresses_where_one_socket_can(
    monkeypatch: pytest.MonkeyPatch, only_ipv6: int | None, address: str
) -> None:
    class Probe(socket.socket):
        def __init__(self, family: int, kind: int) -> None:
            if only_ipv6 is None:
                raise OSError(errno.EAFNOSUPPORT, "no IPv6")
            super().__init__(socket.AF_INET, kind)

        def bind(self, _: object) -> None:
            """Bind nothing: this machine may have no IPv6."""

        def getsockopt(self, *_: int) -> int:  # type: ignore[override]
            return only_ipv6 or 0

    monkeypatch.setattr(socket, "socket", Probe)
    assert host.listen_address() == address
    line = serve.command(service(), PLUGIN, CHECKPOINT, SINGLE, "python", host.listen_address())
    assert value_of(line, "--host") == address


def test_a_server_on_the_address_of_this_machine_is_reached_over_ipv4(prepared: Path) -> None:
    (line,) = entrypoint.plan(service(artifact=prepared, engines=1), {}, dry=True).commands
    address = value_of(list(line), "--host")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # as vLLM does; socket.create_server would accept IPv6 only
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind((address, 0))
        server.listen()
        socket.create_connection(("127.0.0.1", server.getsockname()[1]), timeout=30).close()


def test_adapters_are_loaded_at_start_and_named_by_requests() -> None:
    adapters = (Adapter(name="a", path=Path("/a"), rank=4), Adapter(name="b", path=Path("/b"), rank=17))
    command = serve.command(service(adapters=adapters), PLUGIN, CHECKPOINT, SINGLE, "python")
    assert "--enable-lora" in command
    # vLLM applies what is in the last slot to requests without an adapter
    assert (value_of(command, "--max-loras"), value_of(command, "--max-lora-rank")) == ("3", "32")
    on_gpu = serve.command(service(adapters=adapters, accelerator="nvidia"), PLUGIN, CHECKPOINT, SINGLE, "python")
    assert value_of(on_gpu, "--max-loras") == "2"
    start = command.index("--lora-modules")
    assert command[start + 1 : start + 3] == ["a=/a", "b=/b"]
    assert [serve.lora_rank(rank) for rank in (1, 2, 8, 9, 512)] == [1, 8, 8, 16, 512]
    with pytest.raises(NotServable, match="rank 1000"):
        serve.lora_rank(1000)


def test_what_cannot_be_served_is_refused_before_the_engine_starts() -> None:
    serve.check_servable(PLUGIN, "0.32.0+cpu", {})
    with pytest.raises(NotServable, match=r"supports vLLM 0\.32\.0 and found 0\.33\.1"):
        serve.check_servable(PLUGIN, "0.33.1", {})
    with pytest.raises(NotServable, match="none is installed"):
        serve.check_servable(PLUGIN, None, {})
    with pytest.raises(NotServable, match="ENCODER_PLUGINS_DISABLED=sentence_transformer"):
        serve.check_servable(PLUGIN, "0.32.0", {"ENCODER_PLUGINS_DISABLED": "sentence_transformer"})


def test_a_dry_run_prints_the_command_line_and_starts_nothing(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["serve", str(prepared), "--port", "9", "--accelerator", "cpu", "--api-servers", "1"]
    assert main([*arguments, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert f"--model {prepared}/model" in shown
    assert "--max-model-len 256" in shown
    assert "--served-model-name minilm" in shown
    assert main([*arguments, "--engines", "2", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["commands"]) == 2
    assert plan["tuning"]["api_servers"] == 2
    assert plan["environment"]["HF_HUB_OFFLINE"] == "1"
    serving = settings.read(plan["environment"])
    # the file would be a new one at every start
    assert serving is not None
    assert serving.counters == CountersFile(path="COUNTERS", processes=4)
    # what the user has set like that is not shown as ours
    found = entrypoint.plan(service(artifact=prepared), {"HF_HUB_OFFLINE": "1"}, dry=True).environment
    assert ("HF_HUB_OFFLINE" in found, found["TRANSFORMERS_OFFLINE"]) == (False, "1")
    limited = ["--max-in-flight", "7", "--limit", "texts=3", "--dry-run", "--json", "--", "--seed", "1"]
    assert main([*arguments, *limited]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["commands"][0][-2:] == ["--seed", "1"]
    serving = settings.read(plan["environment"])
    assert serving is not None
    assert (serving.limits["in_flight"], serving.limits["texts"]) == (7, 3)
    assert serving.digest == manifest.read(prepared).digest


class BecameError(Exception):
    """Stands for the program that took this process's place."""


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a serving process did to become the engine."""
    events: list[Any] = []

    def execve(path: str, command: list[str], environment: dict[str, str]) -> None:
        events.append((path, command, environment))
        raise BecameError

    monkeypatch.setattr(os, "execve", execve)
    for name in ("end_on_sigterm", "exit_on_sigterm", "hold_sigterm"):
        monkeypatch.setattr(signals, name, lambda name=name: events.append(name))
    return events


def test_what_was_verified_becomes_the_engine(
    prepared: Path, became: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = service(artifact=prepared, engines=1, api_servers=1)
    digest = manifest.read(prepared).digest
    with pytest.raises(BecameError):
        entrypoint.run(wanted, digest)
    (path, command, environment) = became.pop()
    # a signal is neither lost before the engine's own handlers are there, nor does it wait for the check of the weights
    assert became == ["end_on_sigterm", "hold_sigterm"]
    assert (path, value_of(command, "--model")) == (command[0], f"{prepared}/model")
    read = settings.read(environment)
    assert read is not None
    assert (read.plugin, read.digest, environment["PATH"]) == (PLUGIN.name, digest, os.environ["PATH"])
    # a single process counts alone
    assert read.counters is None
    became.clear()
    with pytest.raises(ChecksumMismatch):
        entrypoint.run(wanted, f"sha256:{'0' * 64}")
    with monkeypatch.context() as disabled:
        disabled.setenv("ENCODER_PLUGINS_DISABLED", PLUGIN.name)
        with pytest.raises(NotServable, match="disabled"):
            entrypoint.run(wanted, digest)
    (prepared / "model" / "config.json").write_bytes(bytes((prepared / "model" / "config.json").stat().st_size))
    with pytest.raises(ChecksumMismatch, match=r"config\.json"):
        entrypoint.run(wanted, digest)
    assert became == ["end_on_sigterm"] * 3


def test_the_users_own_scheduler_wins() -> None:
    def schedulers(*arguments: str) -> list[str]:
        line = serve.command(service(arguments=arguments), PLUGIN, CHECKPOINT, SINGLE, "python")
        return [value for flag, value in itertools.pairwise(line) if flag == "--scheduler-cls"]

    assert schedulers() == [serve.SHORT_STEP_SCHEDULER]
    assert schedulers("--scheduler-cls", "own.Scheduler") == ["own.Scheduler"]
    # it needs vLLM's other one
    assert schedulers("--async-scheduling") == []


# vLLM warns of itself when it is imported
@pytest.mark.filterwarnings("ignore")
def test_engines_of_a_gpu_start_at_once_and_take_turns(
    prepared: Path, became: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    class FakeSupervisor:
        def __init__(self, commands: Any, environment: dict[str, str], next_may_start: Any) -> None:
            seen.update(commands=commands, environment=environment, at_once=next_may_start(1))

        def run(self) -> int:
            return 0

    monkeypatch.setattr(entrypoint, "Supervisor", FakeSupervisor)
    monkeypatch.setattr(mps, "shared_gpu", lambda environment: contextlib.nullcontext({mps.PIPES: "/pipes"}))
    assert entrypoint.run(service(artifact=prepared, accelerator="nvidia", engines=2, api_servers=2), None) == 0
    assert seen["at_once"] is True
    assert Path(seen["environment"][serve.START_TURNS]).is_absolute()
    # after that, they run side by side
    assert seen["environment"][mps.PIPES] == "/pipes"
    # each may take as long as one alone
    assert seen["environment"]["VLLM_ENGINE_READY_TIMEOUT_S"] == "1200"
    worker = resolve(value_of(seen["commands"][0], "--worker-cls").replace(".TurnTaking", ":TurnTaking"))
    assert worker.__mro__[1].__module__ == "vllm.v1.worker.gpu_worker"
    # one engine has nobody to wait for, engines on a CPU measure no memory, and replicas in an engine wait for each other
    replicas = service(accelerator="nvidia", arguments=("--data-parallel-size", "2"))
    for other, tuning in ((service(accelerator="nvidia"), SINGLE), (service(), SEVERAL), (replicas, SEVERAL)):
        assert "--worker-cls" not in serve.command(other, PLUGIN, CHECKPOINT, tuning, "python")
        assert "VLLM_ENGINE_READY_TIMEOUT_S" not in serve.environment({}, other, tuning, 4, SETTINGS)


@pytest.mark.parametrize("all_listened", [True, False])
def test_several_engines_are_supervised_and_leave_nothing(
    prepared: Path, became: list[Any], monkeypatch: pytest.MonkeyPatch, all_listened: bool
) -> None:
    seen: dict[str, Any] = {}

    class FakeSupervisor:
        def __init__(self, commands: Any, environment: dict[str, str], next_may_start: Any) -> None:
            read = settings.read(environment)
            assert read is not None
            assert read.counters is not None
            assert environment["PATH"] == os.environ["PATH"]
            seen["folders"] = [Path(read.counters.path), Path(environment["PROMETHEUS_MULTIPROC_DIR"])]
            seen["commands"], self._next_may_start = commands, next_may_start
            self._counters = worker_counters.SharedCounters(read.counters)

        def run(self) -> int:
            assert all(path.exists() for path in seen["folders"])
            assert (self._next_may_start(0), self._next_may_start(1)) == (True, False)
            self._counters.open()
            assert self._next_may_start(1) is False
            # all API servers of the first engine
            self._counters.open()
            assert (self._next_may_start(1), self._next_may_start(2)) == (True, False)
            if all_listened:
                self._counters.open()
                # the last process to listen removes the file of the counters
                self._counters.open()
            assert seen["folders"][0].exists() is not all_listened
            return 7

    monkeypatch.setattr(entrypoint, "Supervisor", FakeSupervisor)
    # engines on a CPU share no GPU
    monkeypatch.setattr(mps, "shared_gpu", lambda environment: contextlib.nullcontext({"PATH": ""}))
    assert entrypoint.run(service(artifact=prepared, engines=2, api_servers=2), None) == 7
    assert len(seen["commands"]) == 2
    # what was begun is cleaned up when a signal comes
    assert became == ["end_on_sigterm", "exit_on_sigterm"]
    assert not any(path.exists() for path in seen["folders"])


@pytest.mark.parametrize(
    ("weights", "batch_tokens", "changes", "expected"),
    [
        ([GIB], 512, {}, (4, 3, 32_768)),
        # all files together
        ([GIB, GIB], 512, {}, (2, 3, 32_768)),
        ([5 * GIB], 512, {}, (1, 4, 32_768)),
        ([GIB], 40_000, {}, (4, 3, 40_000)),
        ([GIB], 40_000, {"max_model_len": 36_000}, (4, 3, 36_000)),
        ([GIB], 40_000, {"max_model_len": 100, "arguments": ("--max-model-len", "36000")}, (4, 3, 36_000)),
        ([GIB], 512, {"engines": 3, "arguments": ("--api-server-count=5",)}, (3, 5, 32_768)),
        ([GIB], 512, {"engines": 1, "api_servers": 2}, (1, 2, 32_768)),
    ],
)
def test_weights_and_the_longest_prompt_decide_how_a_model_is_served(
    tmp_path: Path,
    weights: list[int],
    batch_tokens: int,
    changes: dict[str, Any],
    expected: tuple[int, int, int],
) -> None:
    for number, size in enumerate(weights):
        path = tmp_path / "model" / str(number) / "model.safetensors"
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            file.truncate(size)
    checkpoint = EngineSettings(max_model_len=batch_tokens, batch_tokens=batch_tokens, batch_sequences=64)
    wanted = service(artifact=tmp_path, accelerator="nvidia", **changes)
    found = entrypoint.tuning_of(wanted, checkpoint, host.Host(cores=16))
    assert (found.engines, found.api_servers, found.batch_tokens, found.batch_sequences) == (*expected, 64)


@pytest.mark.parametrize("count", ["0", "-1", "two"])
def test_a_number_of_engines_that_is_none_is_refused(prepared: Path, count: str) -> None:
    with pytest.raises(SystemExit):
        main(["serve", str(prepared), f"--engines={count}", "--dry-run"])


def test_a_port_in_use_is_refused_before_anything_starts(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entrypoint, "run", lambda service, digest: 0)
    with socket.create_server(("0.0.0.0", 0), reuse_port=True) as other:
        port = other.getsockname()[1]
        options = ["serve", str(prepared), "--name", "minilm", "--accelerator", "cpu", "--port", str(port)]
        assert main(options) == 2
        assert capsys.readouterr().err == f"--port {port}: Address already in use\n"
        # which vLLM checks itself
        assert main([*options, "--", "--host=127.0.0.1"]) == 0
    assert main(options) == 0
