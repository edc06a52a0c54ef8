"""The command line of `python -m cute_fa4 tune`: problems, trials that resume, a file of rows, what changed."""

from __future__ import annotations

import argparse
import datetime
import sys
from dataclasses import fields
from pathlib import Path

# No further imports: `python -m cute_fa4 --help` loads neither torch nor the compiler.

PREFILL = ((8, 1024), (2, 4096), (1, 16384))  # sequences, queries of each
DECODE = ((1, 1024), (1, 16384), (16, 4096), (64, 2048))  # sequences, keys of each
DEFAULT_HEADS = (
    (64, 32, 32),
    (128, 16, 16),
    (128, 32, 8),
    (256, 32, 2),
)  # head dim, query heads, of keys
NO_SUITABLE_GPU = 2


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", choices=("cuda",), default="cuda", help="only a GPU has times; default: cuda"
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME",
        help="shapes of a model of the serving catalogue; may be repeated; default: head dims 64, 128 and 256",
    )
    parser.add_argument(
        "--training",
        action="store_true",
        help="with --model also the backward pass of the shapes of its prefill; default: without --model alone",
    )
    parser.add_argument(
        "--shapes",
        metavar="FILE",
        help="TOML with one [[shape]] a problem: batch, seqlen_q, seqlen_k, heads_q, heads_kv, head_dim, and "
        "optionally causal, window, page_size, dtype, training (the backward pass of the call); default: none",
    )
    parser.add_argument(
        "--choice",
        action="append",
        metavar="NAME",
        help="only this choice of the tuning table; may be repeated; default: all with candidates",
    )
    parser.add_argument(
        "--out",
        default="tuning.toml",
        metavar="FILE",
        help="for CUTE_FA4_TUNING; an interrupted run resumes from FILE.progress; default: tuning.toml",
    )


def problems(options) -> list:
    """The Problems that the options describe."""
    from cute_fa4.bench.problems import Problem, Training

    if options.shapes:
        return _of_file(Path(options.shapes))
    kinds = (Problem, Training) if options.training or not options.model else (Problem,)
    heads = _of_models(options.model) if options.model else [(*h, (None,)) for h in DEFAULT_HEADS]
    found = []
    for head_dim, heads_q, heads_kv, windows in heads:
        sizes = dict(heads_q=heads_q, heads_kv=heads_kv, head_dim=head_dim)
        for window in windows:
            mask = dict(causal=True, window=window)
            for batch, length in PREFILL:
                found += [kind(batch, length, length, **sizes, **mask) for kind in kinds]
            for batch, length in DECODE:
                found.append(Problem(batch, 1, length, **sizes, **mask))
    return list(dict.fromkeys(found))


def _of_models(names: list[str]) -> list[tuple]:
    from cute_fa4.aot import catalogue
    from cute_fa4.system import toml

    models = toml.read(catalogue.SHIPPED / "serving.toml")["model"]
    by_name = {model["name"]: model for model in models if "latent" not in model.get("calls", ())}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise ValueError(f"--model: {', '.join(unknown)}; accepted: {', '.join(by_name)}")
    found = []
    for name in names:
        model = by_name[name]
        sides = [window[0] if window else None for window in model.get("windows", [[]])]
        found.append((model["head_dim"], model["heads_q"], model["heads_kv"], tuple(sides)))
    return found


def _of_file(path: Path) -> list:
    from cute_fa4.bench.problems import Problem, Training
    from cute_fa4.system import toml

    names = [*(f.name for f in fields(Problem)), "training"]
    content = toml.read(path)
    shapes = content.get("shape")
    if set(content) != {"shape"} or not isinstance(shapes, list) or not shapes:
        raise ValueError(
            f"--shapes: {path} has {', '.join(content) or 'nothing'}; accepted: [[shape]]"
        )
    for shape in shapes:
        unknown = sorted(set(shape) - set(names))
        if unknown:
            raise ValueError(
                f"--shapes: {path}: {', '.join(unknown)}; accepted: {', '.join(names)}"
            )
    try:
        return [
            (Training if shape.pop("training", False) else Problem)(**shape) for shape in shapes
        ]
    except TypeError as error:
        raise ValueError(f"--shapes: {path}: {error}; accepted: {', '.join(names)}") from None


def main(options, machine=None) -> int:
    """0: the file is written; 1: a result was wrong; 2: no GPU that runs the kernel.

    machine: the device to measure; None: the current CUDA device.
    """
    from cute_fa4.bench import command

    if machine is None:
        why = command.refusal()
        if why is not None:
            print(why.replace("bench:", "tune:", 1), file=sys.stderr)
            return NO_SUITABLE_GPU
    from cute_fa4.bench import timing, tune
    from cute_fa4.sm100.blueprint import choices, tuning

    unknown = [name for name in options.choice or () if name not in choices.CHOICES]
    if unknown:
        wanted = [name for name, choice in choices.CHOICES.items() if choice.candidates]
        raise ValueError(f"--choice: {', '.join(unknown)}; accepted: {', '.join(wanted)}")
    machine, out = machine or timing.CudaMachine(), Path(options.out)
    asked, base, told = problems(options), tuning.active(), machine.describe()
    head = {"machine": told, "versions": _versions(), "table": tuning.text(base)}
    progress = tune.Progress(out.with_name(f"{out.name}.progress"), head)
    trials = _trials(asked, base, machine, progress, options.choice)
    subjects = {tune.str_of(p): _maker(p, machine.device) for p in asked}
    found, notes = tune.verified(tune.winners(trials), subjects, base, machine)
    about = {
        "evidence": "measured",
        "by": "python -m cute_fa4 tune",
        "device": f"{told['gpu']}, {told['power_limit_w'] or 'unknown'} W",
        "date": datetime.date.today().isoformat(),
    }
    out.write_text(tuning.text(tune.table_of(found, about)) or "# no candidate won\n")
    tuning.read(out)
    progress.path.unlink()
    wrong = [(t, text, why) for t in trials for text, why in t.wrong.items()]
    print("\n".join([*_changes(found, base), *notes, *_wrong(wrong)]))
    print(f"{out}: {len(found)} rows; CUTE_FA4_TUNING={out} puts them before the package's table")
    return int(bool(wrong))


def _trials(asked, base, machine, progress, only) -> list:
    from cute_fa4.bench import tune
    from cute_fa4.system import progress as bars

    found = []
    with bars.bar(len(asked), "tune", "problem") as step:
        for problem in asked:
            subject, name = tune.Subject.of(problem, machine.device), tune.str_of(problem)
            bars.say(name)
            for choice in tune.asked(subject, base):
                if only and choice[0] not in only:
                    continue
                done = progress.done(name, *choice[:2])
                if done is None:
                    done = tune.trial(subject, base, choice, machine)
                    progress.add(done)
                found.append(done)
                bars.say(f"    {_line(done)}")
            step()
    return found


def _maker(problem, device):
    from cute_fa4.bench import tune

    return lambda: tune.Subject.of(problem, device)


def _line(trial) -> str:
    """The candidates of a trial in one line: sustained and burst times as shares of the base's, and mean power."""
    from cute_fa4.bench import tune
    from cute_fa4.system import gains

    base, cells = trial.times.get(tune.BASE), []
    for text, times in trial.times.items():
        if text == tune.BASE or base is None:
            continue
        shares = [
            gains.change(-tune.gain(before, after), tune.noise(before, after))
            for before, after in ((base.sustained, times.sustained), (base.burst, times.burst))
        ]
        watts = f", {times.watts:.0f} W" if times.watts is not None else ""
        cells.append(f"{text} {shares[0]} sustained, {shares[1]} burst{watts}")
    cells += [f"{text} wrong" for text in trial.wrong]
    others = "; ".join(cells) or "no other kernel"
    return f"{trial.choice} = {trial.chosen}: {others}"


def _changes(found, base) -> list[str]:
    from cute_fa4.sm100.blueprint import choices
    from cute_fa4.system import gains

    lines = ["what changed against the table before:"] if found else ["nothing changed"]
    for winner in found:
        facts = ", ".join(f"{name} {value}" for name, value in winner.row.facts.items())
        value = choices.value_text(winner.row.value)
        lines.append(f"    {winner.choice} ({facts}): {value}, {gains.change(-winner.gain)} time")
    return lines


def _wrong(wrong) -> list[str]:
    return [f"WRONG {trial.problem}: {trial.choice} = {text}: {why}" for trial, text, why in wrong]


def _versions() -> dict:
    from cute_fa4.aot import manifest

    return manifest.versions()
