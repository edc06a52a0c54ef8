"""The first run on a B200, as one command: stages in separate processes, and one report.

    python -m cute_fa4 check --device cuda --report first_run.json
    python -m cute_fa4 check --device cpu --report dry_run.json        the same command on the emulator

stage.py         a stage and its context
basics.py        device, one copy, the smallest launch, every head dim
contracts.py     documented behavior of pairs, clusters, copies, MMAs and launches, one small launch each
endurance.py     the same launch many times, claims, packed sequences, every block once
company.py       streams, graphs, another kernel on the same SMs
probes.py        small kernels of these stages; cycles.py: the kernel of figures.py
figures.py       cycles of single instructions, claims by class, bench
assumptions.py   the constants that the documents assume, compared with the measured figures
runner.py        processes and their time limit
report.py        the file: JSON that starts with a readable summary

The run stops at the first stage that fails, hangs or crashes, and names it. On the emulator, stages that measure
time are skipped.
"""
