"""How many processes serve a model, and how large an engine's batches are: decided from the host, pure.

What holds an encoder back on a GPU is the host. An engine launches kernels for a GPU that waits for them half of the time, and an
API server process parses, tokenises and answers on one core: several of both, larger batches, and graphs as large as
the batches use what is there (`docs/benchmarks/requests.md`). On a CPU the matrix products take the time, and processes take it from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from encoder_plugins.plugin import Accelerator
from encoder_plugins.serving.host import Host

# bytes of host memory that a process with vLLM imported takes, engine or API server
PROCESS_BYTES = 3 << 29
# weights up to which a second copy on the GPU costs nothing that matters, and up to which three more do not
SMALL_BYTES = 4 << 30
SMALLEST_BYTES = 3 << 29
MOST_API_SERVERS = 4
# of each engine, where there are several engines
MOST_API_SERVERS_EACH = 3
# the LSTM of a batch takes as long for many texts as for few: 32 768 tokens gave a fifth more texts a second than 16 384, and
# 65 536 a twentieth more than that
BATCH_TOKENS = 32_768
BATCH_SEQUENCES = 512
# of the GPU's memory, for all engines together
GPU_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """How a model is served.

    Attributes:
        engines: Engines with the whole model each, behind one port.
        api_servers: Processes of each engine that parse, tokenise and answer.
        batch_tokens: Tokens of one scheduler step; None leaves vLLM's choice.
        batch_sequences: Prompts of one scheduler step; None leaves vLLM's choice.
        graph_sizes: Numbers of tokens for which CUDA graphs are captured; empty leaves vLLM's choice.
        memory_share: Part of the GPU's memory for each engine; None leaves vLLM's choice.
    """

    engines: int
    api_servers: int
    batch_tokens: int | None = None
    batch_sequences: int | None = None
    graph_sizes: tuple[int, ...] = ()
    memory_share: float | None = None

    @property
    def processes(self) -> int:
        """The number of processes that listen on the port."""
        return self.engines * self.api_servers


def choose(
    accelerator: Accelerator,
    host: Host,
    *,
    weights: int,
    longest: int,
    sequences: int | None = None,
    engines: int | None = None,
    api_servers: int | None = None,
) -> Tuning:
    """Decide how to serve.

    Args:
        accelerator: What the engine runs on.
        host: What there is to serve with.
        weights: Bytes of the checkpoint.
        longest: Tokens that a batch must be able to hold; 0 where there is no lower bound.
        sequences: Prompts of a batch, where the checkpoint sets them.
        engines: What the user set; None leaves the choice to this function.
        api_servers: What the user set, for each engine; None leaves the choice to this function.
    """
    engines = engines or _engines(accelerator, host, weights)
    if api_servers is None:
        api_servers = _api_servers(accelerator, host, engines)
    if engines > 1:
        # vLLM shares its port with other engines only where it listens several times itself
        api_servers = max(2, api_servers)
    if accelerator == "cpu":
        return Tuning(engines=engines, api_servers=api_servers, batch_sequences=sequences)
    tokens = max(BATCH_TOKENS, longest)
    return Tuning(
        engines=engines,
        api_servers=api_servers,
        batch_tokens=tokens,
        batch_sequences=sequences or BATCH_SEQUENCES,
        graph_sizes=graph_sizes(tokens),
        memory_share=round(GPU_SHARE / engines, 3) if engines > 1 else None,
    )


def _engines(accelerator: Accelerator, host: Host, weights: int) -> int:
    if accelerator == "cpu":
        return 1
    # cores, bytes of weights, engines, API servers of each that the host must have memory for
    for cores, most, engines, api_servers in ((16, SMALLEST_BYTES, 4, 3), (8, SMALL_BYTES, 2, 2)):
        # each engine has a parent process beside them
        memory = engines * ((api_servers + 2) * PROCESS_BYTES + weights)
        if host.cores >= cores and weights <= most and (host.memory is None or host.memory >= memory):
            return engines
    return 1


def _api_servers(accelerator: Accelerator, host: Host, engines: int) -> int:
    if accelerator == "cpu":
        wanted = 1 + host.cores // 4
    elif engines > 1:
        # each of them has less to do than the engines' main threads
        wanted = (host.cores - engines) // engines
    else:
        wanted = (host.cores - engines) // 2
    if host.memory is not None:
        # the engine, its worker on a CPU, and the process that started all are three of them
        wanted = min(wanted, host.memory // PROCESS_BYTES // engines - 3)
    return max(1, min(MOST_API_SERVERS_EACH if engines > 1 else MOST_API_SERVERS, wanted))


def graph_sizes(most: int) -> tuple[int, ...]:
    """Return numbers of tokens, each at most an eighth above the one before from 512 on: a batch is padded to the next.

    vLLM's own list has a graph for every 16 tokens, a thousand of them at this size.
    """
    sizes = [16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + max(64, sizes[-1] // 8 // 64 * 64))
    return (*(size for size in sizes if size < most), most)
