"""Run programs for a Blackwell GPU on a CPU, and inspect their kernels, or the attention kernel.

python -m cute_fa4.emulator run their_example.py --its --arguments      # as it is: torch and the DSL report a GPU
python -m cute_fa4.emulator run kernel.ptx --grid 2 --block 64 --argument f32:100:zeros    # or kernel.cu, with nvcc
python -m cute_fa4.emulator trace --head-dim 128 --causal --seqlen 512 --text --svg pipeline.svg --html pipeline.html
python -m cute_fa4.emulator profile my_kernel.py --its --arguments     # modelled cycles, and where they go
python -m cute_fa4.emulator coverage --head-dim 64 --seqlen 300
python -m cute_fa4.emulator ptx --out annotated.ptx my_kernel.py --its --arguments
python -m cute_fa4.emulator compare my_kernel.py          # calls its run() under several schedules
"""

import argparse
import contextlib
import importlib.util
import os
import runpy
import sys
import warnings

from cute_fa4.emulator import compare, kernel_files, use
from cute_fa4.emulator.model import nvdisasm, report
from cute_fa4.emulator.ptx.errors import EmulatorError
from cute_fa4.emulator.reports import annotated, coverage, trace
from cute_fa4.emulator.run.schedules import MODES
from cute_fa4.system import pipes


def arguments(argv):
    """The parsed command line; argparse exits with 2 for invalid arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m cute_fa4.emulator", description=__doc__.split("\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    started = commands.add_parser(
        "run", help="execute a program as it is; torch, the DSL and cuda-python report a GPU"
    )
    started.add_argument(
        "--checks",
        choices=("ptx", "hardware", "none"),
        help="how strictly accesses must be ordered; default: hardware",
    )
    traced = commands.add_parser("trace", help="what every role did, and what it waited for")
    traced.add_argument(
        "--out",
        metavar="FILE",
        help="Chrome trace events for https://ui.perfetto.dev; default: not written",
    )
    traced.add_argument(
        "--text", action="store_true", help="print a timeline: columns are roles; default: off"
    )
    traced.add_argument(
        "--svg", metavar="FILE", help="write the timeline as a picture; default: not written"
    )
    traced.add_argument(
        "--html",
        metavar="FILE",
        help="write the timeline as a page for the browser; default: not written",
    )
    covered = commands.add_parser("coverage", help="which PTX lines are not executed")
    covered.add_argument(
        "--limit", type=int, default=40, help="ranges of lines to print; default: 40"
    )
    listed = commands.add_parser("ptx", help="the PTX with roles, counts, mbarriers, source lines")
    listed.add_argument("--out", metavar="FILE", help="default: printed")
    profiled = commands.add_parser(
        "profile", help="modelled cycles of each kernel, and where they go"
    )
    profiled.add_argument("--json", metavar="FILE", help="all numbers; default: not written")
    profiled.add_argument(
        "--html",
        metavar="FILE",
        help="tables and a timeline as a page for the browser; default: not written",
    )
    profiled.add_argument(
        "--against",
        metavar="FILE",
        help="the --json of another version, to compare with; default: none",
    )
    profiled.add_argument(
        "--cluster",
        type=int,
        default=0,
        help="number of the CTA or cluster that is modelled; default: 0",
    )
    compared = commands.add_parser("compare", help="many schedules: what differs, races or hangs")
    compared.add_argument("--seeds", type=int, default=4, help="of random and hostile; default: 4")
    for command in (started, traced, covered, listed, profiled, compared):
        if command is not started:
            _attention_arguments(command)
        if command is not compared:
            command.add_argument(
                "--mode", choices=MODES, default="in_order", help="default: in_order"
            )
            command.add_argument("--seed", type=int, default=0, help="of the mode; default: 0")
        command.add_argument(
            "script",
            nargs=None if command is started else "?",
            help="a Python file to run instead of the attention kernel, a .ptx or .cu file with a kernel; of compare: "
            "a Python file whose run() is called",
        )
        command.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    parsed = parser.parse_args(argv)
    lacking = _lacking(parsed)
    if lacking:
        parser.error(f"{parsed.command}: {lacking}")
    if parsed.command == "trace" and not (parsed.out or parsed.text or parsed.svg or parsed.html):
        parser.error("trace: say what to write: --out FILE, --text, --svg FILE, --html FILE")
    return parsed


def _lacking(parsed):
    """The requirement of the command that is not installed, with the remedy; None: nothing is missing."""
    if parsed.script is None:
        if importlib.util.find_spec("cute_fa4.interface") is None:
            return (
                "without a script it calls the attention kernel, which is the distribution cute-fa4, not installed "
                "here: name a .py, .ptx or .cu file, or pip install cute-fa4"
            )
    elif not parsed.script.endswith(kernel_files.SUFFIXES) and getattr(parsed, "as_if_cuda", True):
        for module in ("torch", "cutlass", "tvm_ffi"):
            if importlib.util.find_spec(module) is None:
                return (
                    f"{parsed.script}: programs for a GPU run with torch and CuTe DSL, and no module {module!r} is "
                    "installed: pip install 'cute-fa4-emulator[dsl]'; .ptx and .cu files need neither"
                )
    return None


def _attention_arguments(command):
    """The call of attention that is made without a script, and how a script is run."""
    command.add_argument("--head-dim", type=int, default=128, help="default: 128")
    command.add_argument("--causal", action="store_true", help="default: every key is seen")
    command.add_argument("--seqlen", type=int, default=512, help="queries; default: 512")
    command.add_argument("--seqlen-k", type=int, help="keys; default: as many as queries")
    command.add_argument("--heads", type=int, default=1, help="default: 1")
    command.add_argument(
        "--as-if-cuda",
        action="store_true",
        help="torch and the DSL say that there is a Blackwell GPU: for scripts written for one; default: off",
    )


def attention(options):
    """One call of flash_attn_func on random tensors; returns its output."""
    import torch

    from cute_fa4 import flash_attn_func

    generator = torch.Generator().manual_seed(0)
    keys = options.seqlen if options.seqlen_k is None else options.seqlen_k
    q, k, v = (
        torch.randn(1, n, options.heads, options.head_dim, generator=generator).bfloat16()
        for n in (options.seqlen, keys, keys)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return flash_attn_func(q, k, v, causal=options.causal)


@contextlib.contextmanager
def _arguments_of(options):
    """Context with the script's sys.argv and sys.path, and if requested with a GPU."""
    outside = sys.argv, list(sys.path)
    sys.argv = [options.script, *options.arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
    try:
        if options.as_if_cuda:
            from cute_fa4.emulator.as_if_cuda import as_if_cuda

            with as_if_cuda():
                yield
        else:
            yield
    finally:
        sys.argv, sys.path[:] = outside


def executed(options, **settings):
    """The Run of the script, or of one call of attention. settings: of use(), besides mode and seed.

    An error of the emulator ends the script and is printed; the recording up to that point is kept.
    """
    with use(mode=options.mode, seed=options.seed, **settings) as run:
        if options.script is None:
            attention(options)
            return run
        options.status = 0
        try:
            if options.script.endswith(kernel_files.SUFFIXES):
                kernel_files.run(options.script, options.arguments)
            else:
                with _arguments_of(options):
                    runpy.run_path(options.script, run_name="__main__")
        except EmulatorError as error:
            options.status = 1
            print(f"{options.script}: {type(error).__name__}\n{error}", file=sys.stderr)
        except kernel_files.KernelFileError as error:
            options.status = 2
            print(error, file=sys.stderr)
    if not run.launches and not run.levels and not options.status:
        print(
            f"{options.script}: launched no kernel on the emulator in this process: compile with emulator.compile, "
            "call attention with CPU tensors, or, for programs for a GPU, use the command run or --as-if-cuda",
            file=sys.stderr,
        )
    return run


def compared(options):
    """Exit status of compare: 1 with findings, 2 for a script without run()."""
    if options.script is None:
        found = compare(lambda: attention(options), seeds=options.seeds)
    elif options.script.endswith(kernel_files.SUFFIXES):
        print(
            f"{options.script}: compare takes a Python file with a function run(); for a kernel file use run with "
            "--mode random or hostile, and --seed",
            file=sys.stderr,
        )
        return 2
    else:
        with _arguments_of(options):
            function = runpy.run_path(options.script, run_name="cute_fa4_compare").get("run")
            if not callable(function):
                print(
                    f"{options.script}: compare calls its function run(), and there is none; write one that makes "
                    "its inputs anew, launches, and returns the results",
                    file=sys.stderr,
                )
                return 2
            found = compare(function, seeds=options.seeds)
    print(found)
    return int(bool(found.findings))


def main(argv=None) -> int:
    """Run a command; returns the exit status."""
    options = arguments(argv)
    functions = {
        "run": started, "trace": traced, "coverage": covered, "ptx": listed, "profile": profiled, "compare": compared
    }  # fmt: skip
    return functions[options.command](options)


def started(options):
    """Executes the program; 1 if the emulator reported an error, 2 for a kernel file whose launch is not complete."""
    options.as_if_cuda = True
    settings = {}
    if options.checks:
        settings["checks"] = None if options.checks == "none" else options.checks
    run = executed(options, **settings)
    for note in dict.fromkeys(note.split("\n")[0] for note in map(str, run.notes)):
        print(f"note: {note}", file=sys.stderr)
    if run.levels:
        print(
            f"emulator: {run.launches} launches, {run.instructions:,} warp instructions, ordering checks at level "
            f"{run.level}",
            file=sys.stderr,
        )
    return options.status


def covered(options):
    """Prints the lines that were not executed."""
    with coverage.collect() as lines:
        run = executed(options)
    print(lines.report(options.limit))
    print(f"ordering checks at level {run.level}")
    return 0


def listed(options):
    """Prints or writes the annotated PTX."""
    with annotated.record() as recording:
        executed(options)
    if options.out:
        recording.write(options.out)
        print(f"{options.out}: written")
    else:
        print(recording.text())
    return 0


def profiled(options):
    """The modelled profile of every kernel that was launched; 1 where there is none, 2 without nvdisasm."""
    before = report.read_json(options.against) if options.against else None
    try:
        nvdisasm.find()
    except nvdisasm.NvdisasmError as missing:
        print(f"profile: {missing}", file=sys.stderr)
        return 2
    with report.profiling(options.cluster) as found:
        executed(options, **report.SETTINGS)
    print(found if before is None else found.against(before))
    for path, write in ((options.json, found.write_json), (options.html, found.write_html)):
        if path:
            write(path)
            print(f"{path}: written")
    return int(not found.kernels)


def traced(options):
    """Writes the timeline in every requested form."""
    with trace.record() as recording:
        run = executed(options)
    if options.text:
        print(recording.text())
    if options.out:
        recording.chrome(options.out)
        print(
            f"{options.out}: {len(recording.marks)} marks of {run.instructions:,} warp instructions, "
            f"ordering checks at level {run.level}"
        )
    for path, write in ((options.svg, recording.svg), (options.html, recording.html)):
        if path:
            write(path)
            print(f"{path}: written")
    return 0


def script() -> int:
    """The program cute-fa4-emulator; main() with its exit status for a closed pipe."""
    return pipes.run(main)


if __name__ == "__main__":
    sys.exit(script())
