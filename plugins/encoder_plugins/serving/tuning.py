"""How many processes serve a model, and how much an engine takes at a time: decided from the machine, pure.

What holds an encoder back on a GPU is the host. One API server process tops out near 600 requests a second (tokenising,
JSON), and an engine launches kernels for a GPU that waits for them half of the time: several API servers, larger
steps, graphs as large as the steps, and two engines that overlap their host's work gave 600 → 2 030 → 3 750
texts a second on one H200 (`docs/benchmarks.md`). On a CPU the matrix products take the time, and processes take it from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from encoder_plugins.plugin import Accelerator

# bytes of host memory that a process with vLLM imported takes, engine or API server
PROCESS_BYTES = 3 << 29
# weights up to which a second copy on the GPU costs nothing that matters
SMALL_BYTES = 4 << 30
MOST_API_SERVERS = 4
# the LSTM of a step takes as long for many texts as for few: 32 768 tokens gave a fifth more texts a second than 16 384, 65 536 a
# twentieth more than that
STEP_TOKENS = 32_768
STEP_SEQUENCES = 512
# of the GPU's memory, for all engines together
GPU_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is to serve with.

    Attributes:
        cores: Threads that are of use.
        memory: Bytes that the processes together may take; None where nothing limits them.
    """

    cores: int
    memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """How a model is served.

    Attributes:
        engines: Engines with the whole model each, behind one port.
        api_servers: Processes of each engine that parse, tokenise and answer.
        step_tokens: Tokens of one step; None leaves vLLM's choice.
        step_sequences: Texts of one step; None leaves vLLM's choice.
        graph_sizes: Numbers of tokens for which CUDA graphs are captured; empty leaves vLLM's choice.
        memory_share: Part of the GPU's memory for each engine; None leaves vLLM's choice.
    """

    engines: int
    api_servers: int
    step_tokens: int | None = None
    step_sequences: int | None = None
    graph_sizes: tuple[int, ...] = ()
    memory_share: float | None = None

    @property
    def processes(self) -> int:
        """How many processes listen on the port."""
        return self.engines * self.api_servers


def choose(
    accelerator: Accelerator,
    machine: Machine,
    *,
    weights: int,
    longest: int,
    engines: int | None = None,
    api_servers: int | None = None,
) -> Tuning:
    """Decide how to serve.

    Args:
        accelerator: What the engine runs on.
        machine: What there is to serve with.
        weights: Bytes of the checkpoint.
        longest: Tokens of the longest text that the engine must take, 0 where that is not known.
        engines: What somebody said; None leaves the choice here.
        api_servers: What somebody said, for each engine; None leaves the choice here.
    """
    engines = engines or _engines(accelerator, machine, weights)
    if api_servers is None:
        api_servers = _api_servers(accelerator, machine, engines)
    if engines > 1:
        # vLLM lets others listen on its port only where it listens several times itself
        api_servers = max(2, api_servers)
    if accelerator == "cpu":
        return Tuning(engines=engines, api_servers=api_servers)
    # a text is never cut in two: a step has to hold the longest
    tokens = max(STEP_TOKENS, longest)
    return Tuning(
        engines=engines,
        api_servers=api_servers,
        step_tokens=tokens,
        step_sequences=STEP_SEQUENCES,
        graph_sizes=graph_sizes(tokens),
        memory_share=round(GPU_SHARE / engines, 3) if engines > 1 else None,
    )


def _engines(accelerator: Accelerator, machine: Machine, weights: int) -> int:
    if accelerator == "cpu" or machine.cores < 12 or weights > SMALL_BYTES:
        return 1
    # two engines, their parents, and at least two API servers each
    return 2 if machine.memory is None or machine.memory >= 8 * PROCESS_BYTES + 2 * weights else 1


def _api_servers(accelerator: Accelerator, machine: Machine, engines: int) -> int:
    wanted = 1 + machine.cores // 4 if accelerator == "cpu" else (machine.cores - engines) // (2 * engines)
    if machine.cores < 4:
        wanted = 1
    if machine.memory is not None:
        # the engine, its worker on a CPU, and the process that started all are three of them
        wanted = min(wanted, machine.memory // PROCESS_BYTES // engines - 3)
    return max(1, min(MOST_API_SERVERS, wanted))


def graph_sizes(most: int) -> tuple[int, ...]:
    """Return numbers of tokens, each at most an eighth above the one before from 512 on: a step is padded to the next.

    vLLM's own list has a graph for every 16 tokens, a thousand of them at this size.
    """
    sizes = [16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + max(64, sizes[-1] // 8 // 64 * 64))
    return (*(size for size in sizes if size < most), most)
