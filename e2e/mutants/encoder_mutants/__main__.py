"""The command behind `make mutants`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from encoder_mutants import choice, mutants, pool, scores, table
from encoder_mutants.mutants import Mutant
from encoder_mutants.scores import Score
from encoder_mutants.table import Equivalent, Group
from encoder_mutants.worker import Task
from encoder_node.settings import cache_folder

# tests that take this much longer than without a mutant, plus what a busy machine adds in seconds, are ended
TIMES_LONGER, SECONDS_MORE = 3, 20.0
BASELINE_SECONDS = 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants of the selected modules, write their scores and the page; return the exit status."""
    options = _parser().parse_args(arguments)
    groups, equivalents = table.read()
    if options.page or options.check:
        return _page(groups, check=options.check)
    if options.outdated:
        for module, score in scores.read().items():
            if (now := len(_found(module, equivalents))) != score.of:
                print(f"{module}: {score.of} mutants when it was measured, {now} now")
        return 0
    # the workers end their tests, and the copies of the tree go
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    for group, module in table.select(groups, options.only):
        if not (table.ROOT / module).exists():
            print(f"{module} is not in this tree: passed over", file=sys.stderr)
            continue
        score = _module(group, module, equivalents, options)
        scores.write({**scores.read(), module: score})
        _page(groups, check=False)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m encoder_mutants", description=__doc__)
    parser.add_argument("only", nargs="*", metavar="MODULE", help="a module's path or its end, or a group's name")
    parser.add_argument("--level", choices=("unit", "all"), default="unit", help="which tests run (default: unit)")
    parser.add_argument("--limit", type=int, help="at most this many mutants of a module, chosen by chance")
    parser.add_argument("--seed", type=int, default=0, help="which of them (default: 0)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="tests at the same time")
    parser.add_argument("--outdated", action="store_true", help="run nothing; list scores of code that has changed")
    parser.add_argument("--page", action="store_true", help="run nothing; write the page again")
    parser.add_argument("--check", action="store_true", help="run nothing; fail when the page is not up to date")
    return parser


def _page(groups: Sequence[Group], *, check: bool) -> int:
    text = scores.page(groups, scores.read())
    if not check:
        scores.PAGE.write_text(text, "utf-8")
    elif not scores.PAGE.exists() or scores.PAGE.read_text("utf-8") != text:
        print(f"{scores.PAGE.name} is not what the scores say: run `make generate`", file=sys.stderr)
        return 1
    return 0


def _found(module: str, equivalents: Sequence[Equivalent]) -> list[Mutant]:
    """Return the mutants of a module that a test could notice."""
    nothing = {(line, e.operator) for e in equivalents if e.module == module for line in e.lines}
    found = mutants.mutants((table.ROOT / module).read_text("utf-8"))
    return [mutant for mutant in found if (mutant.text, mutant.operator) not in nothing]


def _module(group: Group, module: str, equivalents: Sequence[Equivalent], options: argparse.Namespace) -> Score:
    original = (table.ROOT / module).read_text("utf-8")
    found = _found(module, equivalents)
    chosen = mutants.sample(found, options.limit, module, options.seed)
    print(f"{module}: {len(chosen)} of {len(found)} mutants", flush=True)
    with pool.running(options.workers, group.preload) as workers:
        alive = _level(workers, "unit", table.files(group.unit), module, original, chosen)
        by_unit = len(chosen) - len(alive)
        by_all = None
        if options.level == "all":
            tests = table.files(group.everything(module))
            if tests and alive:
                alive = _level(workers, "all", tests, module, original, alive)
            by_all = len(chosen) - len(alive)
    report = _report(module, original, alive)
    print(f"{module}: {len(chosen) - len(alive)} of {len(chosen)} killed; the others: {report}", flush=True)
    seed = options.seed if len(chosen) < len(found) else 0
    return Score(len(chosen), len(found), by_unit, by_all, seed)


def _level(
    workers: pool.Pool, level: str, tests: Sequence[str], module: str, original: str, alive: Sequence[Mutant]
) -> list[Mutant]:
    """Return the mutants that survive a level's tests."""
    print(f"{module}: {level} tests without a mutant: {', '.join(tests)}", flush=True)
    (baseline,) = workers.run([Task("", "", tests, level, BASELINE_SECONDS, trace=module)])
    if baseline.status != "passed":
        raise SystemExit(f"{baseline.log}\n{module}: without any mutant, {baseline.by or 'a test'} {baseline.status}")
    timeout = TIMES_LONGER * baseline.seconds + SECONDS_MORE
    print(f"{module}: {level} tests take {baseline.seconds:.1f} s", flush=True)
    chosen = {mutant: choice.tests(original, mutant.line, baseline.traces) for mutant in alive}
    # a line that no test executes: whatever stands there survives
    survivors = {mutant for mutant, tests_of_it in chosen.items() if not tests_of_it}
    for mutant in sorted(survivors, key=lambda mutant: mutant.line):
        print(f"  {mutant}: no test executes the line", flush=True)
    run = [mutant for mutant in alive if mutant not in survivors]
    failed = set()
    begin = time.monotonic()
    tasks = [Task(module, mutant.source(original), chosen[mutant], level, timeout) for mutant in run]
    for number, (mutant, outcome) in enumerate(zip(run, workers.run(tasks), strict=True), 1):
        survived = outcome.status == "passed"
        if survived:
            survivors.add(mutant)
        elif "::" in outcome.by:
            failed.add(outcome.by)
        what = "survived" if survived else f"{outcome.status}: {outcome.by}".removesuffix(": ")
        print(f"  {number} of {len(run)}, {time.monotonic() - begin:.0f} s: {mutant}: {what}", flush=True)
    # for a mutant few tests run, in another order; a scenario takes too long to run it again
    if level == "unit" and (dependent := workers.dependent(sorted(failed), level, timeout)):
        raise SystemExit(
            f"{module}: without any mutant, these fail where no test has run before: {', '.join(dependent)}"
        )
    return [mutant for mutant in alive if mutant in survivors]


def _report(module: str, original: str, alive: Sequence[Mutant]) -> Path:
    """Write the diffs of the mutants that survived, and return where."""
    path = cache_folder(os.environ) / "mutants" / f"{module.replace('/', '.')}.diff"
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [f"# line {m.line}, {m.operator}\n{m.diff(original, module)}\n" for m in alive]
    path.write_text("".join(texts), "utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
